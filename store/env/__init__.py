"""The machine: clock, file systems, processes, threads, names of files, and failpoints. It knows nothing of tables."""
