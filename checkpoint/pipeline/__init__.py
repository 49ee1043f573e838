"""Pipelines: many jobs stepped in one process."""
