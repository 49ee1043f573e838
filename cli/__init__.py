"""The `epochlog` command: arguments, what each command gathers, and how people and programs are shown it."""
