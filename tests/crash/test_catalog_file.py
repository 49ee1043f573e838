"""A catalog file that is cut short or damaged gives a typed error and never ends the process that opens it."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.store.catalog.lmdb import catalog

SCHEMA = pa.schema([("id", pa.int64())])
PAGE = 4096
META_ID = 16 + 128  # where a meta page has the id of its transaction
COMMITS = 12


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a tree of several pages, some of them free."""
    root = tmp_path_factory.mktemp("whole") / "s"
    with el.open(root, durability="os") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        for number in range(COMMITS):
            table.upsert(pa.table({"id": [number]}), txn=("writer", number))
        store.compact("t")
    return root


def look(root: Path) -> str:
    """Open, verify, read and write the store; return "ok", "problems", or the error's class."""
    try:
        with el.open(root, durability="os") as store:
            table, report = store.table("t"), store.verify()
            rows, changes, commits = table.count(), table.changes(0).read_all().num_rows, len(table.history())
            table.upsert(pa.table({"id": [-1]}))
    except el.EpochlogError as error:
        return type(error).__name__
    if report.ok:
        assert (rows, changes, commits) == (COMMITS,) * 3
    return "ok" if report.ok else "problems"


def look_apart(root: Path) -> str:
    """Run `look` in a forked child, which may die."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(into, look(root).encode())
        except BaseException as error:
            os.write(into, f"raised {error!r}".encode())
        os._exit(0)
    os.close(into)
    with os.fdopen(out) as stream:
        outcome = stream.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return outcome or f"died {code}"


def with_catalog(whole: Path, root: Path, data: bytes) -> Path:
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(whole, root)
    (root / "catalog" / "lock.mdb").unlink()
    (root / "catalog" / "data.mdb").write_bytes(data)
    return root


@pytest.mark.medium
def test_a_file_cut_short_at_any_page_is_refused(whole: Path, tmp_path: Path) -> None:
    """It is read only when nothing but free pages is missing."""
    data = (whole / "catalog" / "data.mdb").read_bytes()
    lengths = sorted({0, 1, 100, PAGE + 1, 2 * PAGE - 1, len(data) - 1, *range(0, len(data) + 1, PAGE)})
    met = {length: look_apart(with_catalog(whole, tmp_path / "s", data[:length])) for length in lengths}
    assert set(met.values()) <= {"ok", "Corrupt", "CatalogLost"}, met
    assert met[0] == "CatalogLost" and met[1] == met[2 * PAGE] == "Corrupt"
    assert met[len(data)] == "ok"
    readable = [length for length in lengths if met[length] == "ok"]
    assert readable == lengths[-len(readable) :], "what can be read stays so with more of the file"


def test_an_empty_catalog_file_is_not_made_a_new_catalog(whole: Path, tmp_path: Path) -> None:
    root = with_catalog(whole, tmp_path / "s", b"")
    for _ in range(2):
        with pytest.raises(el.CatalogLost):
            el.open(root)
    assert (root / "catalog" / "data.mdb").read_bytes() == b""


def test_a_file_that_is_no_catalog_is_refused(whole: Path, tmp_path: Path) -> None:
    for data in (b"no LMDB file at all", b"\0" * 3 * PAGE, b"\xff" * 3 * PAGE):
        assert look_apart(with_catalog(whole, tmp_path / "s", data)) == "Corrupt"


@pytest.mark.damages_store
def test_a_damaged_record_is_named_and_the_rest_is_served(whole: Path, tmp_path: Path) -> None:
    """The record of the head: its own checksum tells, as LMDB has none."""
    data = (whole / "catalog" / "data.mdb").read_bytes()
    root = with_catalog(whole, tmp_path / "s", data.replace(b"max_committed_epoch", b"max_committed_fpoch"))
    with el.open(root) as store:
        with pytest.raises(el.Corrupt, match="head/00000001"):
            store.table("t").to_arrow()
        report = store.verify()
        assert not report.ok and any("head/00000001" in problem.what for problem in report.problems)
        assert len(store.table("t").history()) == COMMITS


@pytest.mark.medium
@pytest.mark.parametrize(
    "bits", [(0, 2, 31, 63), pytest.param((0, *range(2, 64)), marks=pytest.mark.long)], ids=["some", "all"]
)
def test_a_flipped_transaction_id_is_no_way_back(whole: Path, tmp_path: Path, bits: Sequence[int]) -> None:
    """Of LMDB's two meta pages the one with the higher id counts: a flipped bit must not bring the older state back.

    Bit 1 alone is not told: it makes a pair of ids that a whole file could have.
    """
    data = (whole / "catalog" / "data.mdb").read_bytes()
    for page in range(2):
        for bit in bits:
            hurt = bytearray(data)
            hurt[page * PAGE + META_ID + bit // 8] ^= 1 << bit % 8
            met = look_apart(with_catalog(whole, tmp_path / "s", bytes(hurt)))
            assert met == "Corrupt", f"page {page}, bit {bit}: {met}"


@pytest.mark.parametrize("page", [0, 1])
@pytest.mark.parametrize(
    "at, message", [(META_ID - 8, "pages of 4096 bytes"), (40, "bytes, more than any catalog has")]
)
def test_a_meta_page_that_counts_too_much_is_damage(
    whole: Path, tmp_path: Path, page: int, at: int, message: str
) -> None:
    """LMDB maps as many bytes as that, and says that there is no memory: the catalog is not merely unavailable."""
    hurt = bytearray((whole / "catalog" / "data.mdb").read_bytes())
    hurt[page * PAGE + at : page * PAGE + at + 8] = (1 << 50).to_bytes(8, "little")
    with pytest.raises(el.Corrupt, match=message):
        el.open(with_catalog(whole, tmp_path / "s", bytes(hurt)))


@pytest.mark.parametrize("page", [0, 1])
def test_a_meta_page_of_another_format_is_damage(whole: Path, tmp_path: Path, page: int) -> None:
    """LMDB has no class of its own for this error: the catalog is not merely unavailable."""
    hurt = bytearray((whole / "catalog" / "data.mdb").read_bytes())
    hurt[page * PAGE + 22] ^= 1
    with pytest.raises(el.Corrupt, match="data format 1"):
        el.open(with_catalog(whole, tmp_path / "s", bytes(hurt)))


def test_a_meta_page_with_unknown_flags_of_a_tree_is_damage(whole: Path, tmp_path: Path) -> None:
    """LMDB finds them when it begins a transaction, while it opens the file."""
    data = (whole / "catalog" / "data.mdb").read_bytes()
    ids = [int.from_bytes(data[page * PAGE + META_ID :][:8], "little") for page in range(2)]
    for tree in range(2):
        hurt = bytearray(data)
        hurt[ids.index(max(ids)) * PAGE + 44 + 48 * tree] ^= 0xC1
        with pytest.raises(el.Corrupt):
            el.open(with_catalog(whole, tmp_path / "s", bytes(hurt)))


@pytest.mark.medium
def test_random_damage_ends_no_process(whole: Path, tmp_path: Path) -> None:
    damage(whole, tmp_path, times=12)


@pytest.mark.long
def test_much_random_damage_ends_no_process(whole: Path, tmp_path: Path) -> None:
    damage(whole, tmp_path, times=400)


def damage(whole: Path, tmp_path: Path, times: int) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    data = (whole / "catalog" / "data.mdb").read_bytes()
    for turn in range(times):
        at = dice.randrange(2 * PAGE if turn % 3 == 0 else len(data))
        hurt = bytearray(data)
        if turn % 2:
            hurt[at : at + 64] = dice.randbytes(min(64, len(data) - at))
        else:
            hurt[at] ^= 1 << dice.randrange(8)
        met = look_apart(with_catalog(whole, tmp_path / "s", bytes(hurt)))
        assert met in ("ok", "problems", "Corrupt", "CatalogLost", "CatalogFull"), f"byte {at}, seed {seed}: {met}"


@pytest.mark.damages_store
def test_opening_looks_at_a_bounded_number_of_pages_and_verify_at_all(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaves past the bound lose their page number: what is read by the way is served, and `verify` names the page."""
    larger = with_catalog(whole, tmp_path / "larger", (whole / "catalog" / "data.mdb").read_bytes())
    with el.open(larger, durability="os") as store:  # records of tables part the leaves of the store and of outcomes
        for number in range(30):
            store.create_table(f"more{number}", SCHEMA, ["id"])
    monkeypatch.setattr(catalog, "PAGES_CHECKED_AT_OPEN", 1)
    data = (larger / "catalog" / "data.mdb").read_bytes()
    hurt = bytearray(data)
    for at in range(2 * PAGE, len(data), PAGE):
        page = data[at : at + PAGE]
        is_leaf = page[10] & 0x0F == 2  # a branch may name the key, too, and the walk begins at one
        if is_leaf and b"txn/writer" in page and b"meta/store" not in page:  # used or free, of any version
            hurt[at : at + 8] = (10**6).to_bytes(8, "little")
    root = with_catalog(larger, tmp_path / "s", bytes(hurt))
    with el.open(root) as store:
        report = store.verify()
        assert not report.ok
        assert "page" in report.problems[-1].what


@pytest.mark.damages_store
@pytest.mark.parametrize("key", [b"name/t", b"table/00000001", b"head/00000001", b"runs/00000001"])
def test_a_damaged_key_is_damage_and_no_dropped_table(whole: Path, tmp_path: Path, key: bytes) -> None:
    """A key is under its record's checksum, too; and a record that is missed is told from a table that was dropped."""
    data = (whole / "catalog" / "data.mdb").read_bytes()
    hurt = data.replace(key, key[:2] + b"~" + key[3:])
    assert hurt != data
    with el.open(with_catalog(whole, tmp_path / "s", hurt)) as store:
        with pytest.raises(el.Corrupt, match="catalog record of .*table 't'"):
            store.snapshot(["t"], consistency="latest")
        with pytest.raises(el.Corrupt, match="catalog record"):
            store.table("t").to_arrow()
        with pytest.raises(el.Corrupt, match="catalog record"):
            store.compact("t", full=True)
        assert not store.verify().ok


@pytest.mark.parametrize("change", ["catalog removed", "root removed", "root moved", "another store", "older copy"])
def test_a_store_whose_catalog_was_removed_or_replaced_takes_no_commits(tmp_path: Path, change: str) -> None:
    root, copy = tmp_path / "s", tmp_path / "copy"
    with el.open(root, durability="os") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        shutil.copytree(root, copy)
        table.upsert(pa.table({"id": [1]}))
        if change == "catalog removed":
            shutil.rmtree(root / "catalog")
        elif change == "root moved":
            root.rename(tmp_path / "elsewhere")
        else:
            shutil.rmtree(root)
        if change == "another store":
            el.open(root, durability="os").close()
        elif change == "older copy":
            copy.rename(root)
        for call in (table.to_arrow, store.tables, lambda: table.upsert(pa.table({"id": [2]}))):
            with pytest.raises(el.CatalogLost, match="removed or replaced"):
                call()
    if change == "catalog removed":
        shutil.rmtree(root)  # the files of a store that is gone
    if change == "another store":
        with el.open(root, durability="os") as store:
            assert not store.tables()
            store.create_table("u", SCHEMA, ["id"]).upsert(pa.table({"id": [3]}))
