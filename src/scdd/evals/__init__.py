"""Every experiment of the paper as a function: `measure` makes the numbers and keeps them, `report` makes tables of them."""
