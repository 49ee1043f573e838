"""A creation cut off at any step is taken up by the next one; what is somebody else's is refused and left alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import lmdb
import pyarrow as pa
import pytest

import epochlog as el
from epochlog.store.env.local_folder import LocalFiles
from epochlog.store.session import handle
from epochlog.store.session.marker import Marker

SCHEMA = pa.schema([pa.field("id", pa.int64())])


def only_folder(root: Path) -> None:
    root.mkdir()


def catalog_folder(root: Path) -> None:
    (root / "catalog").mkdir(parents=True)


def empty_catalog_file(root: Path) -> None:
    catalog_folder(root)
    (root / "catalog" / "lock.mdb").touch()
    (root / "catalog" / "data.mdb").touch()


def catalog_without_records(root: Path) -> None:
    catalog_folder(root)
    lmdb.open(str(root / "catalog")).close()


def store_record_without_marker(root: Path) -> None:
    el.open(root).close()
    (root / "epochlog.json").unlink()


def catalog_file_without_its_pages(root: Path) -> None:
    """As a power cut leaves it before LMDB has synced them."""
    catalog_without_records(root)
    (root / "catalog" / "data.mdb").write_bytes(bytes(8192))


def catalog_file_with_one_page(root: Path) -> None:
    catalog_without_records(root)
    data = root / "catalog" / "data.mdb"
    data.write_bytes(data.read_bytes()[:4096])


STEPS = [
    catalog_file_without_its_pages,
    catalog_file_with_one_page,
    only_folder,
    catalog_folder,
    empty_catalog_file,
    catalog_without_records,
    store_record_without_marker,
]


def works(root: Path) -> None:
    with el.open(root) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert(pa.table({"id": [1]}))
    with el.open(root, create=False) as store:
        assert store.table("t").count() == 1
        assert store.verify().ok


@pytest.mark.parametrize("step", STEPS)
def test_a_creation_goes_on_where_it_was_cut_off(tmp_path: Path, step: Callable[[Path], None]) -> None:
    step(tmp_path / "s")
    with pytest.raises(el.StoreNotFound):
        el.open(tmp_path / "s", create=False)
    works(tmp_path / "s")


@pytest.mark.medium
def test_a_marker_cut_off_at_any_byte_is_written_again(tmp_path: Path) -> None:
    el.open(tmp_path / "s").close()
    marker = tmp_path / "s" / "epochlog.json"
    content = marker.read_bytes()
    for length in range(len(content)):
        for lost in (b"", bytes(len(content) - length)):  # power cuts leave zeros, too
            marker.write_bytes(content[:length] + lost)
            with pytest.raises(el.StoreNotFound):
                el.open(tmp_path / "s", create=False)
            el.open(tmp_path / "s").close()
            assert marker.read_bytes() == content
    works(tmp_path / "s")


def test_a_marker_cut_short_in_a_used_store_is_damage(tmp_path: Path) -> None:
    works(tmp_path / "s")
    marker = tmp_path / "s" / "epochlog.json"
    content = marker.read_bytes()
    for length in range(len(content)):
        marker.write_bytes(content[:length])
        with pytest.raises(el.EpochlogError):
            el.open(tmp_path / "s")
        assert marker.read_bytes() == content[:length]
    marker.write_bytes(content)
    with el.open(tmp_path / "s") as store:
        assert store.table("t").count() == 1


@pytest.mark.parametrize("part", [0, 10, None])
def test_a_marker_that_another_creator_writes_at_the_same_time_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int | None
) -> None:
    """Two processes create one store; the other's marker appears, perhaps half of it, after this one has looked."""
    root, write = tmp_path / "s", LocalFiles.write

    def second(files: LocalFiles, path: str, data: pa.Buffer | bytes) -> None:
        (root / path).write_bytes(bytes(data)[:part])
        write(files, path, data)

    monkeypatch.setattr(LocalFiles, "write", second)
    el.open(root).close()
    monkeypatch.undo()
    works(root)


def test_a_store_that_appears_while_another_looks_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, look, seen = tmp_path / "s", handle.read_marker, []

    def slow_look(files: LocalFiles) -> Marker | None:
        marker = look(files)
        if not seen:
            seen.append(files)
            works(root)
        return marker

    monkeypatch.setattr(handle, "read_marker", slow_look)
    with el.open(root) as store:
        assert store.table("t").count() == 1


def files_below(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("stranger", ["notes.txt", "catalog/notes.txt", "catalog", ".hidden"])
def test_a_foreign_folder_is_refused_and_left_alone(tmp_path: Path, stranger: str) -> None:
    root = tmp_path / "s"
    (root / stranger).parent.mkdir(parents=True)
    (root / stranger).write_text("mine")
    for _ in range(2):
        with pytest.raises(el.ForeignRoot, match=Path(stranger).name):
            el.open(root)
    assert files_below(root) == {stranger: b"mine"}


def test_a_file_as_root_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("mine")
    with pytest.raises(el.ForeignRoot):
        el.open(tmp_path / "s")
    assert (tmp_path / "s").read_text() == "mine"


@pytest.mark.parametrize("text", ["{}", "[]", '{"store_id": "x"}', "true", '{"format": 1}'])
def test_a_foreign_marker_is_refused(tmp_path: Path, text: str) -> None:
    root = tmp_path / "s"
    root.mkdir()
    (root / "epochlog.json").write_text(text)
    with pytest.raises(el.ForeignRoot):
        el.open(root)
    assert files_below(root) == {"epochlog.json": text.encode()}


@pytest.mark.damages_store
def test_a_store_of_a_newer_format_is_refused_before_any_write(tmp_path: Path) -> None:
    el.open(tmp_path / "s").close()
    marker = tmp_path / "s" / "epochlog.json"
    marker.write_text(marker.read_text().replace('"format": 1', '"format": 2'))
    before = files_below(tmp_path / "s")
    with pytest.raises(el.UnsupportedFormat):
        el.open(tmp_path / "s")
    assert files_below(tmp_path / "s") == before


@pytest.mark.damages_store
def test_a_store_without_its_catalog_or_with_that_of_another_is_lost(tmp_path: Path) -> None:
    works(tmp_path / "s")
    works(tmp_path / "other")
    catalog = tmp_path / "s" / "catalog"
    shutil.move(catalog, tmp_path / "kept")
    with pytest.raises(el.CatalogLost):
        el.open(tmp_path / "s")
    assert not catalog.exists()
    shutil.copytree(tmp_path / "other" / "catalog", catalog)
    with pytest.raises(el.CatalogLost):
        el.open(tmp_path / "s")


def test_a_store_made_anew_in_the_same_folder_is_another_store(tmp_path: Path) -> None:
    """The first store is still open: its environment must not be taken for that of the new file."""
    old = el.open(tmp_path / "s")
    old.create_table("t", SCHEMA, ["id"])
    for path in sorted((tmp_path / "s").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else None
    with el.open(tmp_path / "s") as new:
        assert new.tables() == []
        new.create_table("u", SCHEMA, ["id"])
    with el.open(tmp_path / "s") as again:
        assert [info.name for info in again.tables()] == ["u"]
    old.close()


def test_durability_is_never_lowered_silently(tmp_path: Path) -> None:
    """A process has one environment a catalog: it cannot sync for one handle and not for another."""
    with el.open(tmp_path / "s", durability="os"):
        with pytest.raises(el.InvalidInput, match="durability"):
            el.open(tmp_path / "s")
        el.open(tmp_path / "s", durability="os").close()
    with el.open(tmp_path / "s"), el.open(tmp_path / "s", durability="os") as store:
        store.create_table("t", SCHEMA, ["id"])
