"""Checkpoint manager: the pure state machine that decides checkpoints."""
