"""Names of files and folders in a store: their exact form on disk, and the names that are refused."""

from __future__ import annotations

import pytest

from epochlog.store.env.paths import (
    CATALOG_FOLDER,
    LMDB_DATA,
    LMDB_LOCK,
    MARKER,
    end_of_file_path,
    file_name,
    folder_of,
    has_unique_name,
    intent_of,
    is_segment_path,
    is_shipped,
    is_store_id,
    name_of,
    ship_folder,
    ship_path,
    shipped_of,
    table_folder,
    table_of,
)

pytestmark = pytest.mark.local_only

STORE, INTENT, UNIQUE = "0123456789abcdef" * 2, "a" * 32, "b" * 32
SEGMENT = f"{STORE}/t0000002a/{INTENT}-{UNIQUE}.arrow"
RUN_FILE = f"{STORE}/t0000002a/{INTENT}-{UNIQUE}.parquet"
SHIPPED = f"{STORE}/catalog/{INTENT}-00000000000000ff-0000000000000100.dump"


def test_names_on_disk_are_these() -> None:
    assert (MARKER, CATALOG_FOLDER, LMDB_DATA, LMDB_LOCK) == ("epochlog.json", "catalog", "data.mdb", "lock.mdb")
    assert table_folder(STORE, 42) == f"{STORE}/t0000002a"
    assert ship_folder(STORE) == f"{STORE}/catalog"
    assert ship_path(STORE, INTENT, 255, 256) == SHIPPED


@pytest.mark.parametrize("ending", [".arrow", ".parquet"])
def test_a_file_name_tells_its_intent_and_its_table(ending: str) -> None:
    first, second = (f"{table_folder(STORE, 42)}/{file_name(INTENT, ending)}" for _ in range(2))
    assert first != second
    assert (intent_of(first), table_of(STORE, first), has_unique_name(first)) == (INTENT, 42, True)
    assert is_segment_path(first) == (ending == ".arrow")
    assert f"{folder_of(first)}/{name_of(first)}" == first
    assert end_of_file_path(f"in {first}: damaged") == len(f"in {first}:") - 1


@pytest.mark.parametrize("text, good", [
    (STORE, True), (STORE[1:], False), (STORE + "0", False), (STORE.upper(), False), (STORE + "\n", False), ("", False),
    (None, False), (STORE.encode(), False),
])  # fmt: skip
def test_a_store_id_is_32_hexadecimal_digits(text: object, good: bool) -> None:
    assert is_store_id(text) is good


@pytest.mark.parametrize("path", [
    "", STORE, SEGMENT[:-1], SEGMENT + "\n", SEGMENT + ".tmp", SEGMENT.replace("/t", "/u"), SEGMENT.replace("-", "_"),
    SEGMENT.replace("/t0000002a", "/t2a"), SEGMENT.replace("/t0000002a", "/t0000002a/x"), f"x/{SEGMENT}", f"/{SEGMENT}",
    SEGMENT.replace(INTENT, INTENT[1:]), SEGMENT.replace("0000002a", "0000002A"), SHIPPED, MARKER,
])  # fmt: skip
def test_another_path_is_no_data_file(path: str) -> None:
    assert table_of(STORE, path) is None
    assert not is_segment_path(path)


def test_a_file_of_another_store_is_not_of_this_one() -> None:
    assert table_of("f" * 32, SEGMENT) is None


def test_a_run_file_is_a_data_file_and_no_segment() -> None:
    assert table_of(STORE, RUN_FILE) == 42
    assert not is_segment_path(RUN_FILE)


@pytest.mark.parametrize("path", ["notes.txt", f"{INTENT}.arrow", f"{INTENT}_{UNIQUE}.arrow", f"{INTENT}-/x.arrow", ""])
def test_a_name_without_an_intent_tells_none(path: str) -> None:
    assert intent_of(path) == ""


@pytest.mark.parametrize("path", [MARKER, "export.dump", SHIPPED, f"{UNIQUE}.arrow/x", f"{UNIQUE}."])
def test_a_name_that_may_be_taken_is_not_unique(path: str) -> None:
    assert not has_unique_name(path)


def test_the_name_of_shipped_records_is_taken_apart() -> None:
    assert shipped_of(SHIPPED) == (INTENT, 255, 256)
    assert is_shipped(STORE, SHIPPED)
    assert not is_shipped("f" * 32, SHIPPED)
    assert is_shipped(STORE, f"{ship_folder(STORE)}/another.dump")


@pytest.mark.parametrize("name", ["", "x.dump", name_of(SHIPPED)[:-1], name_of(SHIPPED)[1:], name_of(SHIPPED) + "\n"])
def test_another_name_is_none_of_shipped_records(name: str) -> None:
    assert shipped_of(f"{ship_folder(STORE)}/{name}") is None


@pytest.mark.parametrize("text", ["", "no path", f"{STORE}/x", f"{STORE}/t0000002a/", f"x{SEGMENT}", SHIPPED])
def test_a_text_without_a_path_of_a_data_file_has_no_end_of_one(text: str) -> None:
    assert end_of_file_path(text) is None
