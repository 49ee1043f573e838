"""Catalog records of tables, jobs, versions and consumers, and pure edits of them."""
