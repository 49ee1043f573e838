"""Jobs: barriers, refreshes, commits, rebuilds, and the catalog's edits around them."""
