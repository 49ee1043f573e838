"""Any one call fails: it is told with path and reason, what was acknowledged is durable, and the same again works."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

import epochlog as el
from epochlog.store.env.local_folder import LocalFiles
from faults.ledger import SCHEMA, rows, shown
from faults.power import Again, calls, fail_once, run_with_faults, seeded

pytestmark = [pytest.mark.local_only, pytest.mark.slow]


@pytest.mark.parametrize("code", [errno.EIO, pytest.param(errno.ENOSPC, marks=pytest.mark.long)])
def test_one_call_fails(tmp_path: Path, code: int) -> None:
    count = calls(tmp_path / "first")
    for number in seeded().sample(range(1, count + 1), 2 if code == errno.EIO else 8):
        fail_once(tmp_path / str(number), number, code)


@pytest.mark.campaign
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_each_call_fails_once(tmp_path: Path, code: int) -> None:
    for number in range(1, calls(tmp_path / "first") + 1):
        fail_once(tmp_path / str(number), number, code)


@pytest.mark.parametrize("most_bytes", [1, 100])
def test_short_writes(tmp_path: Path, most_bytes: int) -> None:
    run_with_faults(tmp_path, Again(), lambda operation, path: None, most_bytes)


def test_a_writer_whose_write_failed_gives_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer with a failed write must not seal the rows left over as if they were all rows."""
    with el.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        writer = table.writer()
        writer.upsert(rows({1: 1}))
        with monkeypatch.context() as patch:
            patch.setattr(LocalFiles, "write", failing)
            with pytest.raises(el.WriteFailed, match="no more disk"):
                writer.seal(store.last_epoch + 1)
        for action in (lambda: writer.upsert(rows({2: 2})), lambda: writer.seal(store.last_epoch + 2)):
            with pytest.raises(el.WriteFailed, match="earlier write"):
                action()
        writer.abort()
        writer.upsert(rows({3: 3}))
        store.commit({"t": writer.seal(store.last_epoch + 3)})
        assert shown(table.to_arrow()) == {3: 3}


def failing(files: LocalFiles, path: str, data: object) -> None:
    raise el.WriteFailed("no more disk")
