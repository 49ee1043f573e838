"""The machine: clock, file systems, processes, threads, names of files, and failpoints. No module here knows tables."""
