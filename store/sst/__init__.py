"""Data files: segments of the log, sorted runs, and the merge of their rows."""
