"""Rendering of facts: pages for people, JSON for programs, files for rows."""
