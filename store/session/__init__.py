"""An open store: its marker, catalog, leases and watcher, and how a store is made where there is none."""
