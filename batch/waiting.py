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
"""Time after which a policy is asked again without a change of the catalog, because it may depend on the clock."""
CHECK_S = 0.1
"""Time between two calls of the check of a wait."""
PAUSE_RATIO = 4
"""Ratio of the pause after a choice to its duration, so that waiting takes at most a fifth of a core under many
commits.
"""


def until_chosen(
    handle: Handle, policy: Policy | None, choose: Callable[[], T], check: Callable[[], None] | None = None
) -> T:
    """Return the result of `choose`. While it raises NoConsistentEpoch, call it again after each change of the catalog.

    This ends with the policy's `timeout` (seconds of monotonic time; no timeout: no waiting), which raises the last
    error. check: called every CHECK_S of the wait; it raises an error to end the wait.
    """
    deadline = Deadline.after(timeout_of(policy))
    try:
        return choose()
    except NoConsistentEpoch:
        if deadline.passed:
            raise
    pause = threading.Event()  # never set
    with handle.watcher.listen() as event:
        while True:
            _wait(event.wait, min(deadline.remaining_s, ASK_ANYWAY_S), check)
            began_s = monotonic_s()
            try:
                return choose()
            except NoConsistentEpoch:
                if deadline.passed:
                    raise
            _wait(pause.wait, min(deadline.remaining_s, PAUSE_RATIO * (monotonic_s() - began_s)), check)


def _wait(wait: Callable[[float], bool], timeout_s: float, check: Callable[[], None] | None) -> None:
    """Call `wait` until it returns True or the timeout has passed, with a check before each CHECK_S."""
    deadline = Deadline.after(timeout_s)
    while True:
        if check is not None:
            check()
        if wait(deadline.remaining_s if check is None else min(deadline.remaining_s, CHECK_S)) or deadline.passed:
            return
