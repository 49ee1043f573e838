"""Consumers in processes that are stopped, replaced and killed: a zombie has no effect, what was acknowledged stays."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from catalog_makers import KINDS
from crash.children import child, lines
from stores import servers

pytestmark = [pytest.mark.local_only, pytest.mark.slow]


def say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


@pytest.mark.rule("4.13")
@pytest.mark.parametrize("kind", KINDS)
def test_a_zombie_that_wakes_up_has_no_effect(tmp_path: Path, kind: str) -> None:
    root, catalog = tmp_path / "s", servers.redis.url() if kind == "redis" else None
    with el.open(root, catalog, volatile=True) as store:
        table = store.create_table("t", pa.schema([("k", pa.int64())]), ["k"])
        epochs = [table.upsert(pa.table({"k": [key]})) for key in range(4)]
        with child("consumer_driver", root, catalog or "", "dash") as old:
            assert lines(old, 1) == ["open 1 None"]
            say(old, f"ack {epochs[0]}")
            assert lines(old, 1) == [f"acked {epochs[0]}"]
            old.send_signal(signal.SIGSTOP)
            say(old, f"ack {epochs[3]}")  # it will try as soon as it wakes up
            with child("consumer_driver", root, catalog or "", "dash") as new:
                assert lines(new, 1) == [f"open 2 {epochs[0]}"]
                old.send_signal(signal.SIGCONT)
                assert lines(old, 1) == ["Fenced"]
                (info,) = store.consumers()
                assert (info.position, info.incarnation, info.state) == (epochs[0], 2, "open")
                say(new, f"ack {epochs[1]}")
                assert lines(new, 1) == [f"acked {epochs[1]}"]
                say(old, f"ack {epochs[2]}")
                assert lines(old, 1) == ["Fenced"]
                new.kill()  # between its acknowledgement and any close
                new.wait()
        (info,) = store.consumers()
        assert (info.position, info.state) == (epochs[1], "open")  # until its lease ends
        with pytest.raises(el.LogHeld, match="consumer:dash"):
            table.truncate_log(epochs[3])
        with child("consumer_driver", root, catalog or "", "dash") as third:
            assert lines(third, 1) == [f"open 3 {epochs[1]}"]
