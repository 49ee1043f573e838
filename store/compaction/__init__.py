"""Compaction: the runs to merge, the subcompactions of a merge, and the merge itself."""
