"""A coordinator verifies reported segments before it commits them. It refuses by name each segment that is missing,
short, corrupt, or of another table or worker. The segment's part starts again, and the other parts continue.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import epochlog as el
from control_fixture import SCHEMA, attach, ids, open_worker, rows, served
from epochlog.checkpoint import control_messages as wire
from epochlog.checkpoint.coordinator import coordinator
from epochlog.checkpoint.worker import actor as part
from epochlog.store.metadata.unreachable_files import mark_unreachable
from epochlog.store.sst import data_file
from epochlog.store.sst.segment import Segment
from wait_until import WAIT_LIMIT_S, wait_until

pytestmark = pytest.mark.local_only
Spoil = Callable[[el.Store, Segment], Segment]


@pytest.fixture(autouse=True)
def nothing_read_yet() -> Iterator[None]:
    """Clear the list of verified files: a coordinator has not read the files of other processes."""
    data_file._verified.clear()
    yield
    data_file._verified.clear()


def file_of(store: el.Store, segment: Segment) -> Path:
    return Path(store.root) / segment.path


def is_gone(store: el.Store, segment: Segment) -> Segment:
    file_of(store, segment).unlink()
    return segment


def is_short(store: el.Store, segment: Segment) -> Segment:
    file = file_of(store, segment)
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data[:-1])
    return segment


def is_spoilt(store: el.Store, segment: Segment) -> Segment:
    file = file_of(store, segment)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.unlink()
    file.write_bytes(data)
    return segment


def never_was(store: el.Store, segment: Segment) -> Segment:
    return replace(segment, path=segment.path[:-14] + "0123456789.arrow"[-14:])


def tells_another_size(store: el.Store, segment: Segment) -> Segment:
    return replace(segment, bytes=segment.bytes + 1)


def tells_another_checksum(store: el.Store, segment: Segment) -> Segment:
    return replace(segment, crc32=segment.crc32 ^ 1)


def of_another_table(store: el.Store, segment: Segment) -> Segment:
    other = store.create_table("other", SCHEMA, ["id"]).writer()
    other.upsert(rows(7))
    return other.seal(1)[0]


def under_no_intent(store: el.Store, segment: Segment) -> Segment:
    folder, _, name = segment.path.rpartition("/")
    copy = replace(segment, path=f"{folder}/{'0' * 32}{name[32:]}")
    file_of(store, copy).write_bytes(file_of(store, segment).read_bytes())
    return copy


def committed_already(store: el.Store, segment: Segment) -> Segment:
    sealed = store.table("clicks").writer()
    sealed.upsert(rows(2))
    segments = sealed.seal(1)
    store.commit({"clicks": segments})
    return segments[0]


def was_let_go(store: el.Store, segment: Segment) -> Segment:
    """The file is there yet; vacuum has decided that it goes."""
    paths = [(segment.path, segment.bytes)]
    store._handle.catalog.transact(
        lambda tx: mark_unreachable(tx, segment.table_id, paths, store._handle.catalog.now_ms())
    )
    return segment


SPOILT: list[Spoil] = [
    is_gone,
    is_short,
    is_spoilt,
    never_was,
    tells_another_size,
    tells_another_checksum,
    of_another_table,
    under_no_intent,
    committed_already,
    was_let_go,
]


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda function: function.__name__)
def test_a_segment_that_is_not_what_was_reported_is_refused(
    tmp_path: Path, spoil: Spoil, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        served(tmp_path) as (store, server),
        open_worker(server, store) as first_worker,
        open_worker(server, store) as second_worker,
    ):
        liar, honest = attach(first_worker, 0, 2), attach(second_worker, 1, 2)
        reported: list[str] = []

        def finish(writer: part.PartWriter) -> list[Segment]:
            segments = writer._writer.finish()
            if writer._part is liar and segments and not reported:
                segments = [spoil(store, segment) for segment in segments]
                reported.extend(segment.path for segment in segments)
            return segments

        monkeypatch.setattr(part.PartWriter, "finish", finish)
        liar.writer("clicks").upsert(rows(1))
        honest.writer("clicks").upsert(rows(2))
        with pytest.raises(el.RolledBack, match="SegmentUnknown") as error:
            wait_until(lambda: False, liar, honest)
        message = str(error.value)
        assert "RolledBack" not in message and (reported[0] in message or "0" * 32 in message)
        wait_until(lambda: ids(store) == [2], liar, honest)  # the other part's rows, and of the liar nothing
        liar.writer("clicks").upsert(rows(3))
        wait_until(lambda: ids(store) == [2, 3], liar, honest)


def test_a_file_that_cannot_be_read_now_is_reported_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is no damage: the attempt fails, and the next one has the same rows."""
    refusals = [el.ReadFailed("too many open files")]

    def check(*args: object) -> None:
        if refusals:
            raise refusals.pop()
        check_reported(*args)

    check_reported = coordinator.check_reported
    monkeypatch.setattr(coordinator, "check_reported", check)
    with served(tmp_path) as (store, server), open_worker(server, store) as worker:
        part = attach(worker)
        part.writer("clicks").upsert(rows(1))
        wait_until(lambda: ids(store) == [1], part)
        assert not refusals


def test_a_report_that_comes_twice_is_no_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second copy is looked at when the first is committed already: its segments are used, and its part lives."""
    late, again = threading.Event(), threading.Event()
    check_reported, calls = coordinator.check_reported, []

    def check(*args: object) -> None:
        calls.append(args)
        if len(calls) == 2:
            late.wait(WAIT_LIMIT_S)
        try:
            check_reported(*args)
        finally:
            if len(calls) == 2:
                again.set()

    monkeypatch.setattr(coordinator, "check_reported", check)
    with served(tmp_path) as (store, server), open_worker(server, store) as worker:
        part = attach(worker)
        with worker.changed:
            send = worker.send
            monkeypatch.setattr(
                worker, "send", lambda message: (send(message), type(message) is wire.Reported and send(message))
            )
        part.writer("clicks").upsert(rows(1))
        wait_until(lambda: ids(store) == [1], part)
        late.set()
        assert again.wait(WAIT_LIMIT_S)
        part.writer("clicks").upsert(rows(2))
        wait_until(lambda: ids(store) == [1, 2], part)


def test_what_was_checked_once_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_file, "SMALL_BYTES", 0)  # a small file is checked at each read
    summed: list[str] = []
    check_crc32 = data_file._check_crc32
    monkeypatch.setattr(data_file, "_check_crc32", lambda path, *args: (summed.append(path), check_crc32(path, *args)))
    with served(tmp_path) as (store, server), open_worker(server, store) as worker:
        part = attach(worker)
        part.writer("clicks").upsert(rows(1, 2))
        wait_until(lambda: ids(store) == [1, 2], part)
        assert len(summed) == 1
