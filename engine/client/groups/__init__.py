"""Groups as an operator sees and changes them."""
