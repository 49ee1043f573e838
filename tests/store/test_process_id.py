"""Tests of telling that another process of this machine has died: at once, whatever its parent does."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from epochlog.store.env import process_id
from epochlog.store.env.process_id import has_died, identity, is_this

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


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Leave this process without a free file descriptor."""
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    taken = list[int]()
    try:
        while True:  # lower ones may be free too
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("known", [True, False])
def test_without_a_descriptor_nobody_takes_a_live_process_for_dead(*, known: bool) -> None:
    """Neither this process, which cannot read what tells of another one, nor another one that is told less of this."""
    whole = identity()
    with subprocess.Popen(
        [sys.executable, "-c", IDENTITY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        who = child.stdout.readline().strip()
        if not known:
            process_id._own_identity.cache_clear()
        with no_descriptors():
            other_has_died, mine, is_mine = has_died(who), identity(), is_this(identity())
        assert not other_has_died
        assert mine == (whole if known else f" {os.getpid()} ")
        assert is_mine is known
        assert not has_died(mine)
        assert identity() == whole
        child.communicate("")
    assert has_died(who)


def test_a_child_has_an_identity_of_its_own() -> None:
    parent, (reader, writer) = identity(), os.pipe()
    if not (pid := os.fork()):
        os.write(writer, identity().encode())
        os._exit(0)
    os.waitpid(pid, 0)
    child = os.read(reader, 1000).decode()
    os.close(reader), os.close(writer)
    assert child != parent == identity()
    assert has_died(child)


def test_a_system_that_hides_its_boot_takes_no_process_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = identity()
    monkeypatch.setattr(process_id, "_PROC", tmp_path)
    process_id._own_identity.cache_clear()
    assert identity() == f" {os.getpid()} "
    assert not is_this(identity())
    assert not has_died(whole)
    assert not has_died(identity())
    process_id._own_identity.cache_clear()
