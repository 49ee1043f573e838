"""Compaction: which runs are merged, in which pieces, and the merge itself."""
