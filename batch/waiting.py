"""Waiting for epochs that a policy accepts: the policy is asked again when the catalog has changed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from epochlog.errors import NoConsistentEpoch
from epochlog.store.env.clock import Deadline, monotonic_s
from epochlog.store.session.handle import Handle

from .policy import Policy, timeout_of

T = TypeVar("T")

ASK_ANYWAY_S = 1.0
"""A policy may look at the clock too, which is no news of the catalog: it is asked so often in any case."""
REST = 4
"""How much longer than a choice took the next one waits: under many commits waiting takes a fifth of a core at most."""


def until_chosen(handle: Handle, policy: Policy, choose: Callable[[], T]) -> T:
    """Return the result of `choose`, called again after changes of the catalog while it raises NoConsistentEpoch and
    the policy's `timeout` lasts (seconds of monotonic time; none: no waiting). Its last error is raised then.
    """
    deadline = Deadline.after(timeout_of(policy))
    try:
        return choose()
    except NoConsistentEpoch:
        if deadline.passed:
            raise
    rest = threading.Event()  # never set: the time to leave others alone in
    with handle.watch.any_news() as news:
        while True:
            news.wait(min(deadline.left_s, ASK_ANYWAY_S))
            began_s = monotonic_s()
            try:
                return choose()
            except NoConsistentEpoch:
                if deadline.passed:
                    raise
            rest.wait(min(deadline.left_s, REST * (monotonic_s() - began_s)))
