"""Commits: the only way in which a table gets data, and the edits of the catalog around it."""
