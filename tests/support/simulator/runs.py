"""Runs of seeds: with all faults, and again without those of one job. A failure is minimized before it is reported."""

from __future__ import annotations

import random
from typing import Any

from .shapes import KINDS, Violation
from .world import World

APART_EVERY = 4
"""One seed in this many is run again without the faults of one job."""


class SeedFailed(AssertionError):
    """Failure of a seed: the message has the error, the fewest kinds of faults that cause it, and the last steps."""


def check(seed: int, **options: Any) -> World:
    """Run one seed with all invariants. The options are those of World. Raises SeedFailed for a broken invariant."""
    world = World(seed, **options)
    try:
        world.run()
        if seed % APART_EVERY == 0:
            check_apart(seed, world, **options)
    except Exception as error:
        raise SeedFailed(failure_report(seed, error, world, **options)) from error
    return world


def check_apart(seed: int, world: World, **options: Any) -> None:
    """Run a seed without the faults of one job: jobs that do not descend from it must take identical steps."""
    troubled = random.Random(seed).choice([shape.name for shape in world.plan.jobs])
    calm = World(seed, calm=[troubled], **options).run()
    descendants, component = world.plan.descendants(troubled), world.plan.component(troubled)
    for name in world.books.keys() - descendants:
        steps, other_steps = world.trace_of(name), calm.trace_of(name)
        for step, other_step in zip(steps, other_steps, strict=False):
            if step != other_step:
                where = "" if name in component else f", of another component than {sorted(component)},"
                raise Violation(
                    f"{name}{where} does {step} with the faults of {troubled}, but {other_step} without them"
                )


def failure_report(seed: int, error: Exception, world: World, **options: Any) -> str:
    """Return the seed, the error, and the end of the trace, with the fewest kinds of faults that raise one."""
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
