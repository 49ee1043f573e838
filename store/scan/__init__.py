"""Reading a table at an epoch: planning, pruning, splitting and point lookups."""
