"""Reading: which epoch of each table to read, snapshots of many tables, and their ways to Arrow, Spark and others."""
