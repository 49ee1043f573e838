"""Log sources: the logs of tables as changes with barriers between them, for external executors."""
