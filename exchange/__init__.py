"""Moving logs: what a table's change log is to those who follow it."""
