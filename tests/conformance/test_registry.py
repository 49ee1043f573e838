"""The registry of catalogs: a further kind is a module and a line, and nothing else knows the kinds by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from catalog_makers import check_stores
from epochlog.store.catalog import registry
from epochlog.store.catalog.kind import DetectedCatalog, Refilled, Site, foreign_files_among
from epochlog.store.catalog.lmdb.catalog import LmdbCatalog
from epochlog.store.env.clock import SystemClock

pytestmark = pytest.mark.local_only


class Shelf:
    """Catalogs in a folder beside the root, by the root's name."""

    name = "shelf"
    schemes: tuple[str, ...] = ("shelf",)
    url = "shelf:///folder"
    location = "on a shelf"
    reach = "pass catalog='shelf:///folder' to open it"
    generations = False

    def connect(self, site: Site) -> ShelfSource:
        return ShelfSource(site)


class ShelfSource:
    def __init__(self, site: Site) -> None:
        assert site.folder is not None and site.url is not None
        self._site = site
        self._folder = Path(site.url.removeprefix("shelf://")) / site.folder.name
        self._opened: LmdbCatalog | None = None

    def open(self, store_id: str, generation: str | None) -> LmdbCatalog:
        assert generation is None
        return self._open(create=False)

    def foreign_files(self) -> Sequence[str]:
        return foreign_files_among(self._site.files.list(), "")

    def create(self, replacing: str) -> DetectedCatalog:
        return DetectedCatalog(self._open(create=True))

    def refill(
        self, store_id: str, version: int, records: Sequence[tuple[bytes, bytes]], is_alive: Callable[[str, int], bool]
    ) -> Refilled | None:
        raise NotImplementedError

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def _open(self, *, create: bool) -> LmdbCatalog:
        self._opened = LmdbCatalog(self._folder, self._site.clock or SystemClock(), durability="os", create=create)
        return self._opened


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a shelf. The stores that the test opened are verified while the kind is still known."""
    kinds = [*registry.KINDS, Shelf()]
    monkeypatch.setattr(registry, "KINDS", kinds)
    yield f"shelf://{tmp_path}/catalogs"
    monkeypatch.setattr(registry, "KINDS", kinds)
    check_stores()


SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


def test_a_further_kind_is_opened_by_its_scheme_and_named_by_the_marker(tmp_path: Path, shelf: str) -> None:
    with el.open(tmp_path / "s", shelf) as store:
        store.create_table("t", SCHEMA, ["id"]).upsert(pa.table({"id": [1]}))
    assert json.loads((tmp_path / "s" / "epochlog.json").read_bytes())["catalog"] == "shelf"
    assert not (tmp_path / "s" / "catalog").exists()
    with el.open(tmp_path / "s", shelf, create=False) as store:
        assert store.table("t").count() == 1
        store.export_catalog(tmp_path / "export")
        store.vacuum()


def test_the_other_kinds_say_what_to_pass(tmp_path: Path, shelf: str) -> None:
    el.open(tmp_path / "s", shelf).close()
    el.open(tmp_path / "own").close()
    with pytest.raises(el.InvalidInput, match=r"on a shelf: pass catalog='shelf:///folder' to open it"):
        el.open(tmp_path / "s")
    with pytest.raises(el.InvalidInput, match="in its own folder: leave catalog out"):
        el.open(tmp_path / "own", shelf)
    with el.open(tmp_path / "s", shelf) as store:
        store.export_catalog(tmp_path / "export")
    with pytest.raises(el.InvalidInput, match="is on a shelf: pass catalog="):
        el.restore_catalog(tmp_path / "s", tmp_path / "export")


def test_a_kind_that_is_not_known_is_named_so(tmp_path: Path, shelf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    el.open(tmp_path / "s", shelf).close()
    for url in ("etcd://host", "host:6379", "://", "shelf:/x"):
        with pytest.raises(
            el.InvalidInput, match=r"catalog must be a URL like redis://.*shelf:///folder; leave it out"
        ):
            el.open(tmp_path / "other", url)
    monkeypatch.setattr(registry, "KINDS", registry.KINDS[:-1])
    with pytest.raises(el.Corrupt, match="unknown kind of catalog"):
        el.open(tmp_path / "s")


def test_somebody_elses_folder_is_left_alone(tmp_path: Path, shelf: str) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "notes").write_text("mine")
    with pytest.raises(el.ForeignRoot, match="notes"):
        el.open(tmp_path / "s", shelf)
    assert not (tmp_path / "catalogs").exists()
