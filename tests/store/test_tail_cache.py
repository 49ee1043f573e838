"""The live tail is only a cache: readers share it, it is bounded, and dropping it at any moment changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from epochlog.store.changelog import tail_cache as tail_module
from epochlog.store.changelog.tail_cache import tail
from epochlog.store.env.lru_cache import LRUCache
from epochlog.store.sst import segment_scan
from epochlog.store.sst.segment import SegmentReader
from lab import Lab, commits
from log_source_model import History, Item, RecordingRefresh, received, shown
from wait_until import WAIT_LIMIT_S


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path / "s")
    for name in ("r", "q"):
        made.root_table(name)
    tail.clear()
    yield made
    made.store.close()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The segments that are read, by path."""
    paths: list[str] = []
    for name in ("read", "batches"):
        real: Callable[..., Any] = getattr(SegmentReader, name)

        def noted(reader: SegmentReader, *args: Any, real: Callable[..., Any] = real, **options: Any) -> Any:
            paths.append(reader.segment.path)
            return real(reader, *args, **options)

        monkeypatch.setattr(SegmentReader, name, noted)
    verified = segment_scan.verified
    monkeypatch.setattr(
        segment_scan, "verified", lambda files, path, *rest: (paths.append(path), verified(files, path, *rest))[1]
    )
    return paths


@pytest.mark.rule("5.20")
def test_what_one_reader_has_read_the_others_have(lab: Lab, reads: list[str]) -> None:
    logs = [el.UpstreamLog(lab.store, ["r"]) for _ in range(3)]
    narrow = el.UpstreamLog(lab.store, ["r"], columns={"r": ["k"]})
    for turn in range(3):
        lab.put({turn: (0, turn)})
        lab.tick()
        heard = [shown(received(log)) for log in logs]
        assert heard[0] == heard[1] == heard[2] and len(heard[0]) == 2
        assert len(reads) == len(set(reads)) == turn + 1
    chunks = [item for item in received(narrow) if isinstance(item, el.Chunk)]
    assert [chunk.data.schema.names[0] for chunk in chunks] == ["k"] * 3 and chunks[0].data.num_columns == 4
    tail.clear()
    assert tail.bytes == 0
    with el.UpstreamLog(lab.store, ["r"]) as again:
        assert len(received(again)) == 6
    assert len(reads) == 9


def test_readers_that_wake_up_together_decode_it_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are at the door before the first has decoded anything."""
    lab.put({1: (0, 1)})
    lab.tick()
    arrived, decoded, real = threading.Barrier(4), [], tail_module.replay
    name = tail_module._name
    monkeypatch.setattr(tail_module, "_name", lambda *args: (arrived.wait(WAIT_LIMIT_S), name(*args))[1])
    monkeypatch.setattr(tail_module, "replay", lambda *args: decoded.append(1) or real(*args))
    logs = [el.UpstreamLog(lab.store, ["r"]) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        heard = [shown(items) for items in pool.map(received, logs)]
    assert heard == [heard[0]] * 4 and len(heard[0]) == 2
    assert len(decoded) == 1


@pytest.mark.rule("5.20")
def test_it_is_bounded_and_a_long_replay_leaves_it_alone(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for turn in range(tail_module.NEAR_EPOCHS + 1):
        lab.put({turn: (0, turn)})
    lab.tick()
    with el.UpstreamLog(lab.store, ["r"]) as log:
        received(log)
        assert tail.bytes == 0
        monkeypatch.setattr(tail, "_limit", 1000)
        for turn in range(20):
            lab.put(dict.fromkeys(range(4), (0, turn)))
            lab.tick()
            received(log)
            assert 0 < tail.bytes <= 1000


def by_chance(lab: Lab, seed: int, turns: int) -> None:
    """Several readers at their own pace, beside a job that heard the same; the tail is dropped now and then."""
    history = History(lab, seed)
    rng, tables = history.rng, history.tables
    job, ear = lab.job("hearing", tables, ["heard"], max_lag=1 << 40, backfill="log"), RecordingRefresh(tables, "heard")
    logs = [el.UpstreamLog(lab.store, tables) for _ in range(3)]
    heard: list[list[Item]] = [[] for _ in logs]
    for _ in range(turns):
        history.turn()
        for log, items in zip(logs, heard, strict=True):
            for _ in range(rng.choice((0, 1, 5, 50))):
                if rng.random() < 0.2:
                    tail.clear()
                item = log.poll()
                if item is not None:
                    items.append(item)
    history.settle()
    commits({"hearing": lambda: job.step_local(ear)})
    for log, items in zip(logs, heard, strict=True):
        assert shown([*items, *received(log)]) == ear.heard
        log.close()


@pytest.mark.rule("5.20")
@pytest.mark.medium
def test_dropped_at_any_moment_nobody_notices(lab: Lab) -> None:
    by_chance(lab, 1, 25)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 13))
def test_dropped_at_any_moment_nobody_notices_for_longer(lab: Lab, seed: int) -> None:
    print(f"seed {seed}")
    by_chance(lab, seed, 100)


@pytest.mark.planted
@pytest.mark.medium
def test_the_comparison_is_not_blind(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sees a tail that gives what is of another epoch."""
    monkeypatch.setattr(tail_module, "_name", lambda files, group, columns: (files.place, group.label >> 13))
    with pytest.raises(AssertionError):
        by_chance(lab, 1, 15)


def test_kept_is_empty_once_dropped() -> None:
    cache: LRUCache[bytes] = LRUCache(10, len)
    cache.put(("a",), b"12345")
    cache.clear()
    assert (cache.bytes, cache.get(("a",))) == (0, None)
    cache.put(("a",), b"1234567890")
    assert cache.bytes == 10
