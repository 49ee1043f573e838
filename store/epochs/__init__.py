"""Epochs of tables: which are complete, valid and readable, and how far a table lags behind."""
