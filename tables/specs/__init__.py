"""What is stored: a module per table or pair of tables, its columns as a frozen row class, and the views over them."""
