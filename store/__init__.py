"""Tables, their logs and versions, on disk: the LSM store."""
