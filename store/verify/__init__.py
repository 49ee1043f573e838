"""Verification of a store: records, data files, staged exchanges and the state of jobs."""
