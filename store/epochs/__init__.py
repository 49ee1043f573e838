"""Epochs of tables: complete, valid and readable epochs, and the lag of a table."""
