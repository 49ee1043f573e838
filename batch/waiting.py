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
REST = 4
"""Ratio of the pause after a choice to its duration, so that waiting takes at most a fifth of a core under many
commits.
"""


def until_chosen(handle: Handle, policy: Policy, choose: Callable[[], T]) -> T:
    """Return the result of `choose`. While it raises NoConsistentEpoch, call it again after each change of the catalog.

    This ends with the policy's `timeout` (seconds of monotonic time; no timeout: no waiting), which raises the last
    error.
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
            event.wait(min(deadline.remaining_s, ASK_ANYWAY_S))
            began_s = monotonic_s()
            try:
                return choose()
            except NoConsistentEpoch:
                if deadline.passed:
                    raise
            pause.wait(min(deadline.remaining_s, REST * (monotonic_s() - began_s)))
