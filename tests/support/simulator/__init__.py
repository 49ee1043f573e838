"""Simulation of the checkpoint manager: seeded graphs of jobs, seeded faults, and invariants after every step.

`runs.check` runs one seed; `world.World` is one run. EPOCHLOG_SIM_SEEDS sets the number of seeds of tests/simulation.
"""
