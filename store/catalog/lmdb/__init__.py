"""Embedded catalog: one LMDB file in the root, for the processes of one host."""
