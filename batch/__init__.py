"""Reading: which epoch of each table to read, snapshots of many tables, and the doors to Arrow, Spark and others."""
