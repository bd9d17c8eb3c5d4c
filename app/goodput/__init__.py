"""`greylag evaluate --goodput`: what finding and repairing is worth, in GPU-hours, over a month of cluster life."""
