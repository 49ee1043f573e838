"""Backups of a catalog: incremental copies in the root, and restoring from them."""
