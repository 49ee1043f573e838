"""Check of a view by its text as it was given, which DuckDB runs; `View.check` runs the tree that epochlog has read."""

from __future__ import annotations

from functools import cache

import epochlog as el
from confirmed import RawJudge


@cache
def _judge() -> RawJudge:
    return RawJudge()


def raw_check(view: el.View) -> el.CheckReport:
    """Compare a view with its text over the rows of its upstreams at its newest commit."""
    sql, upstreams = view.sql, view.info.upstreams
    return view.job.check(lambda ctx: _judge().rows(sql, {name: ctx.table(name) for name in upstreams}))
