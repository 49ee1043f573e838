"""Maintenance: the background thread, and the deletion of unreachable files."""
