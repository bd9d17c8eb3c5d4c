"""What flows through Greylag and what is promised about it."""
