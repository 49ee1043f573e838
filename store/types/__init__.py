"""Values: epochs and sets of them, schemas, column types, encoded keys. Pure functions."""
