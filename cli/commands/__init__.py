"""Commands: each gathers facts or changes the store, and prints the result."""
