"""Staged exchange: batches pushed durably to channels, and given to each consumer incarnation in stage order."""
