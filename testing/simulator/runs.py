"""Runs of seeds: with all faults, and again without those of one job; a failure is made small before it is told."""

from __future__ import annotations

import random
from typing import Any

from .shapes import KINDS, Violation
from .world import World

APART_EVERY = 4
"""One of so many seeds is run again without the faults of one job."""


class Found(AssertionError):
    """Seed that fails: the message says why, with the fewest kinds of faults, and shows the last steps."""


def check(seed: int, **options: Any) -> World:
    """Run one seed with all invariants. The options are those of World. Raises Found when an invariant is broken."""
    world = World(seed, **options)
    try:
        world.run()
        if seed % APART_EVERY == 0:
            check_apart(seed, world, **options)
    except Exception as error:
        raise Found(story(seed, error, world, **options)) from error
    return world


def check_apart(seed: int, world: World, **options: Any) -> None:
    """Run a seed without the faults of one job: nothing may change for jobs that do not read what it writes."""
    troubled = random.Random(seed).choice([shape.name for shape in world.plan.jobs])
    calm = World(seed, calm=[troubled], **options).run()
    touched = world.plan.descendants(troubled)
    for name in world.books.keys() - touched:
        with_it, without = world.trace_of(name), calm.trace_of(name)
        for one, other in zip(with_it, without, strict=False):
            if one != other:
                raise Violation(f"{name} does {one} with the trouble of {troubled}, {other} without")


def story(seed: int, error: Exception, world: World, **options: Any) -> str:
    """Tell the seed, the error, and the end of the trace with the fewest kinds of faults that raise one."""
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
