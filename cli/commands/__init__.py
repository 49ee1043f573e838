"""Commands: each gathers facts or changes the store, and shows the result."""
