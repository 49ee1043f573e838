"""Tests of telling that another process of this machine has died: at once, whatever its parent does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from epochlog.store.env.process_id import has_died, identity

IDENTITY = "from epochlog.store.env.process_id import identity; print(identity(), flush=True); input()"


def test_a_process_lives_until_it_is_killed_though_nobody_waits_for_it() -> None:
    """Until its parent waits for it, as some supervisors never do, the system keeps its entry."""
    assert not has_died(identity())
    with subprocess.Popen(
        [sys.executable, "-c", IDENTITY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        who = child.stdout.readline().strip()
        assert not has_died(who)
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and its entry stays
        assert has_died(who)
    assert has_died(who)
