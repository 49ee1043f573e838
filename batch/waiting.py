"""Waiting for epochs that a policy accepts: it is asked again when the catalog has changed, and keeps nobody busy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from ..errors import NoConsistentEpoch
from ..store.clock import Deadline, monotonic_s
from ..store.handle import Handle
from .policy import Policy, timeout_of

T = TypeVar("T")

ASK_ANYWAY_S = 1.0
"""A policy may look at the clock too, which is no news of the catalog: it is asked so often in any case."""
REST = 4
"""How much longer than a choice took the next one waits: under many commits waiting takes a fifth of a core at most."""


def until_chosen(handle: Handle, policy: Policy, choose: Callable[[], T]) -> T:
    """What `choose` returns; as long as it raises NoConsistentEpoch, and for the `timeout` of the policy (seconds of
    monotonic time; none: no waiting), it is called again when something has changed. Its last error is raised then.
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
