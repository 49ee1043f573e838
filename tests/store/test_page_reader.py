"""The catalog of a read-only store, beside writers that do not know of it: each read is one committed state, or a typed
error.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochlog.errors import CatalogLost, CatalogUnavailable, Corrupt, StoreClosed
from epochlog.store.catalog.lmdb import page_reader
from epochlog.store.catalog.lmdb.catalog import LmdbCatalog
from epochlog.store.catalog.lmdb.page_reader import PageReader
from epochlog.store.catalog.lmdb.reader import LmdbReader
from epochlog.store.catalog.protocol import ReadTxn, Txn, scan_prefix

pytestmark = pytest.mark.local_only

KEYS = [b"k%04d" % number for number in range(400)]
PADDING = "x" * 200  # some twenty leaves


@dataclass
class Pair:
    """A catalog for writing, and a reader of its file in the same process."""

    writer: LmdbCatalog
    reader: LmdbReader
    commits: int = 0

    def commit(self, count: int = 1) -> None:
        """Give all keys the number of the commit."""
        for _ in range(count):
            self.commits += 1
            self.writer.transact(self._write)

    def _write(self, tx: Txn) -> None:
        for key in KEYS:
            tx.put(key, {"n": self.commits, "text": PADDING})


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return make_pair(tmp_path)


def make_pair(folder: Path) -> Pair:
    writer = LmdbCatalog(folder / "catalog", lambda: 0, durability="os", create=True)
    made = Pair(writer, None)  # pyright: ignore[reportArgumentType]: it needs a file with a commit
    made.commit()
    made.reader = LmdbReader(folder, folder / "catalog", lambda: 0)
    return made


def read_beside_commits(pair: Pair, before: int, commits: int, attempts: int = 1) -> set[int]:
    """Read all keys, with commits before the key number `before` in the first attempts; return the numbers that the
    records have.
    """
    tried = 0

    def body(view: ReadTxn) -> set[int]:
        nonlocal tried
        tried += 1
        numbers = set[int]()
        for place, key in enumerate(KEYS):
            if place == before and tried <= attempts:
                pair.commit(commits)
            record = view.get(key)
            assert record is not None, "a record is missing"
            numbers.add(record["n"])
        return numbers

    return pair.reader.read(body)


@pytest.mark.rule("1.71")
def test_a_read_beside_commits_is_one_state(pair: Pair) -> None:
    for commits in range(7):
        for before in (0, 1, len(KEYS) // 2, len(KEYS) - 1):
            first = pair.commits
            numbers = read_beside_commits(pair, before, commits)
            assert len(numbers) == 1, f"{commits} commits before key {before}: records of {sorted(numbers)}"
            assert numbers <= set(range(first, pair.commits + 1))


@pytest.mark.rule("1.71")
def test_a_long_read_beside_commits_comes_to_its_end(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commits never end, but each attempt fetches first what the last one had come to."""
    monkeypatch.setattr("epochlog.store.catalog.lmdb.reader.PATIENCE_S", 1e9)
    attempts = 0

    def body(view: ReadTxn) -> set[int]:
        nonlocal attempts
        attempts += 1
        numbers = set[int]()
        for place, (_, record) in enumerate(scan_prefix(view, b"k")):
            numbers.add(record["n"])
            if place % 100 == 99:
                pair.commit(3)
        return numbers

    assert len(pair.reader.read(body)) == 1
    assert 1 < attempts <= 10


@pytest.mark.rule("1.71")
def test_a_read_that_is_always_overtaken_ends_with_a_typed_error(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochlog.store.catalog.lmdb.reader.PATIENCE_S", 0.0)
    with pytest.raises(CatalogUnavailable, match="overtaken"):
        read_beside_commits(pair, len(KEYS) // 2, 3, attempts=1_000)


def test_a_check_beside_commits_finds_no_damage(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    real, commits = os.pread, 0

    def pread(file: int, size: int, offset: int) -> bytes:
        nonlocal commits
        if commits < 30 and offset > 8192:
            commits += 1
            pair.commit()
        return real(file, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    pair.reader.verify_storage()
    assert commits == 30


def random_history(folder: Path, seed: int, rounds: int) -> None:
    """Compare the reader with a dict, through random commits with records of all sizes."""
    generator, model = random.Random(seed), dict[bytes, dict[str, object]]()
    writer = LmdbCatalog(folder / "catalog", lambda: 0, durability="os", create=True)
    writer.transact(lambda tx: tx.put(b"\xff\xff", {}))
    model[b"\xff\xff"] = {}
    reader = LmdbReader(folder, folder / "catalog", lambda: 0)

    def name(shortest: int) -> bytes:
        return bytes(generator.choices(b"\0ab\xff", k=generator.randint(shortest, 9)))

    def write(tx: Txn) -> None:
        for _ in range(generator.choice([1, 5, 100])):
            key = name(1)
            if generator.random() < 0.3:
                tx.delete(key)
                model.pop(key, None)
            else:
                model[key] = {"text": "x" * generator.choice([0, 40, 900, 3_000, 9_000])}
                tx.put(key, model[key])

    for _ in range(rounds):
        writer.transact(write)
        start, stop = sorted((name(0), name(0)))
        wanted = [(key, model[key]) for key in sorted(model) if start <= key < stop]
        key = name(1)

        def body(view: ReadTxn, start: bytes = start, stop: bytes = stop, key: bytes = key) -> tuple[object, ...]:
            return list(view.scan(start, stop)), list(view.scan(start, stop, reverse=True)), view.get(key), view.version

        version = writer.read(lambda view: view.version)
        assert reader.read(body) == (wanted, wanted[::-1], model.get(key), version), f"seed {seed}"
    reader.close()
    writer.close()


@pytest.mark.medium
@given(seed=st.integers(0, 1 << 32))
@settings(deadline=None)
def test_random_commits_of_records_of_all_sizes(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        random_history(Path(folder), seed, 20)


def test_a_closed_reader_and_a_catalog_that_is_gone(pair: Pair, tmp_path: Path) -> None:
    other = LmdbReader(tmp_path, tmp_path / "catalog", lambda: 0)
    other.close()
    with pytest.raises(StoreClosed):
        other.read(lambda view: view.version)
    pair.writer.close()
    os.rename(tmp_path / "catalog", tmp_path / "elsewhere")
    with pytest.raises(CatalogLost):
        pair.reader.read(lambda view: view.version)
    with pytest.raises(CatalogLost):
        LmdbReader(tmp_path, tmp_path / "catalog", lambda: 0)


def test_damage_is_corrupt(pair: Pair, tmp_path: Path) -> None:
    """Each page of the file in turn, in its header and in its middle: the read raises Corrupt or has the records."""
    file = tmp_path / "catalog" / "data.mdb"
    whole = file.read_bytes()
    refused = 0
    for page in range(len(whole) // 4096):
        for place in (0, 10, 13, 18, 2048):
            with file.open("r+b") as stream:
                stream.seek(page * 4096 + place)
                stream.write(bytes([whole[page * 4096 + place] ^ 0x55]))
            try:
                assert len(pair.reader.read(lambda view: list(scan_prefix(view, b"k")))) == len(KEYS)
            except Corrupt:
                refused += 1
            file.write_bytes(whole)
    assert refused


# ---- planted bugs --------------------------------------------------------------------------------------------------


def _never_overtaken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PageReader, "require_current", lambda self: None)


def _checked_only_at_first(patch: pytest.MonkeyPatch) -> None:
    real: Callable[[PageReader], None] = PageReader.require_current

    def once(self: PageReader) -> None:
        if not self._pages:
            real(self)

    patch.setattr(PageReader, "require_current", once)


def _one_commit_too_late(patch: pytest.MonkeyPatch) -> None:
    def require_current(self: PageReader) -> None:
        if page_reader.read_meta(self._file, self._path).txn_id > self.version + 3:
            raise page_reader.Overtaken(self._touched)

    patch.setattr(PageReader, "require_current", require_current)


@pytest.mark.planted
@pytest.mark.parametrize("plant", [_never_overtaken, _checked_only_at_first, _one_commit_too_late])
def test_planted_bugs(
    plant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = make_pair(tmp_path)
    plant(monkeypatch)
    with pytest.raises((AssertionError, Corrupt)):
        test_a_read_beside_commits_is_one_state(pair)


@pytest.mark.planted
def test_planted_attempts_that_begin_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PageReader, "_prefetch", lambda self, key, with_values: None)
    made = make_pair(tmp_path)
    monkeypatch.setattr("epochlog.store.catalog.lmdb.reader.PATIENCE_S", 0.2)

    def body(view: ReadTxn) -> int:
        rows = 0
        for rows, _ in enumerate(scan_prefix(view, b"k")):
            if rows % 100 == 99:
                made.commit(3)
        return rows

    with pytest.raises(CatalogUnavailable):
        made.reader.read(body)
