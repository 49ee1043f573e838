"""Runs seeds: once as they are, and again without the trouble of one job; a failure is made small before it is told."""

from __future__ import annotations

import random
from typing import Any

from simulation.shapes import KINDS, Violation
from simulation.world import World

APART_EVERY = 4
"""Of how many seeds one is run again without one job's trouble."""


class Found(AssertionError):
    """A seed that fails: its message says what, with the least kinds of faults, and how it went."""


def check(seed: int, **options: Any) -> World:
    """One seed, with all its invariants; Found when one is broken."""
    world = World(seed, **options)
    try:
        world.run()
        if seed % APART_EVERY == 0:
            check_apart(seed, world, **options)
    except Exception as error:
        raise Found(story(seed, error, world, **options)) from error
    return world


def check_apart(seed: int, world: World, **options: Any) -> None:
    """The same seed without the trouble of one job: to all that do not read what it writes nothing changes."""
    troubled = random.Random(seed).choice([shape.name for shape in world.plan.jobs])
    calm = World(seed, calm=[troubled], **options).run()
    touched = world.plan.descendants(troubled)
    for name in world.books.keys() - touched:
        with_it, without = world.trace_of(name), calm.trace_of(name)
        for one, other in zip(with_it, without, strict=False):
            if one != other:
                raise Violation(f"{name} does {one} with the trouble of {troubled}, {other} without")


def story(seed: int, error: Exception, world: World, **options: Any) -> str:
    """The seed, what is wrong, and the end of the trace with no more kinds of faults than it takes."""
    kinds = list(options.pop("kinds", KINDS))
    for kind in list(kinds):
        fewer = [other for other in kinds if other != kind]
        smaller = World(seed, kinds=fewer, **options)
        try:
            smaller.run()
        except Exception as again:
            kinds, error, world = fewer, again, smaller
    about = next((name for name in world.books if name in str(error)), None)
    lines = world.trace if about is None else world.trace_of(about)
    shapes = "\n".join(f"  {shape}" for shape in world.plan.jobs if about in (None, shape.name))
    trace = "\n".join(f"  {entry}" for entry in lines[-40:])
    return (
        f"seed {seed}: {type(error).__name__}: {error}\n"
        f"again: World({seed}, kinds={kinds!r}).run()\n{shapes}\nthe last of {len(lines)} steps:\n{trace}"
    )
