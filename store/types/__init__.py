"""Pure functions on epochs, sets of epochs, schemas, column types and encoded keys."""
