"""Coordinator of loads and jobs whose workers are other processes."""
