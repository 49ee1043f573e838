"""Deciding commits: boundaries become barriers, jobs commit their outputs at them, and a restart goes on from there."""
