"""The shared catalog: one Redis server, for processes on any number of hosts."""
