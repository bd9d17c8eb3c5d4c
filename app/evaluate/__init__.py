"""`greylag evaluate`: random scenarios through the whole path in virtual time, and a scorecard of what was said of them."""
