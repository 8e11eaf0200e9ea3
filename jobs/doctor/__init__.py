"""`lakemq doctor`: find problems, and say how to fix them."""
