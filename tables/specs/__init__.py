"""The specs of the stored tables: a module per table or group of tables, with a frozen row class for its columns."""
