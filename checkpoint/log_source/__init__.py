"""Log sources: the logs of tables as changes with barriers between them, for executors outside."""
