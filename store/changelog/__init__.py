"""Reading a table's log: change rows, raw replay, and consumers with durable positions."""
