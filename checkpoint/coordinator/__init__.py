"""The coordinator: runs the checkpoint manager for loads and jobs whose workers are other processes."""
