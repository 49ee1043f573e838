"""Command `epochlog`: its arguments, the facts that each command gathers, and their output for people and programs."""
