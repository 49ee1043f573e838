"""Open store: its marker, catalog, leases and watcher, and the creation of a new store."""
