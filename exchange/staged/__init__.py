"""Staged exchange: durable channels of batches, which each consumer incarnation receives in stage order."""
