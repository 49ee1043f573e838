"""The staged exchange: batches of a query, kept until they are acknowledged, and given out in stage order."""
