"""Names of the files and folders of a store: building and parsing them. Paths are relative to the root.

    epochlog.json                                             the marker
    catalog/data.mdb, catalog/lock.mdb                        an LMDB catalog
    <store>/t<table>/<intent>-<unique>.arrow, .parquet        data files: segments, and files of runs
    <store>/catalog/<generation>-<since>-<version>.dump       shipped records of a Redis catalog

docs/formats/README.md specifies them.
"""

from __future__ import annotations

import re
import uuid

MARKER = "epochlog.json"
CATALOG_FOLDER = "catalog"
"""Folder of an LMDB catalog in the root, and folder of the shipped records in a store's folder."""
LMDB_DATA, LMDB_LOCK = "data.mdb", "lock.mdb"

SEGMENT_ENDING, RUN_ENDING, SHIPPED_ENDING = ".arrow", ".parquet", ".dump"

_ID = "[0-9a-f]{32}"
_TABLE = "t([0-9a-f]{8})"
_STORE_ID = re.compile(_ID)
_DATA_FILE = re.compile(rf"{_TABLE}/{_ID}-{_ID}\.(?:arrow|parquet)")
_SEGMENT_PATH = re.compile(rf"{_ID}/{_TABLE}/{_ID}-{_ID}\.arrow")
_SHIPPED_NAME = re.compile(rf"({_ID})-([0-9a-f]{{16}})-([0-9a-f]{{16}})\.dump")
_UNIQUE_END = re.compile(rf"{_ID}\.[a-z]+$")
_PATH_IN_TEXT = re.compile(rf"\b{_ID}/{_TABLE}/[\w.-]+")


# ---- any path ----------------------------------------------------------------------------------------------------


def name_of(path: str) -> str:
    """Return the last part of a path."""
    return path.rsplit("/", 1)[-1]


def folder_of(path: str) -> str:
    """Return the path of a file's folder."""
    return path.rsplit("/", 1)[0]


def is_store_id(text: object) -> bool:
    """Return True for 32 hexadecimal digits: the id of a store, or of a generation of its catalog."""
    return isinstance(text, str) and _STORE_ID.fullmatch(text) is not None


# ---- data files --------------------------------------------------------------------------------------------------


def table_folder(store_id: str, table_id: int) -> str:
    """Return the folder of a table's files."""
    return f"{store_id}/t{table_id:08x}"


def file_name(intent: str, ending: str) -> str:
    """Return a final, unique name for a new file. Files are never renamed."""
    return f"{intent}-{uuid.uuid4().hex}{ending}"


def has_unique_name(path: str) -> bool:
    """Return True if the path ends with a random number, as the names of data files do: no other file has its name."""
    return _UNIQUE_END.search(path) is not None


def intent_of(path: str) -> str:
    """Return the write intent in a file's name; "" if the name has none."""
    name = name_of(path)
    return name[:32] if name[32:33] == "-" else ""


def table_of(store_id: str, path: str) -> int | None:
    """Return the table id in the path of a data file; None for any other path."""
    folder, slash, data_path = path.partition("/")
    match = _DATA_FILE.fullmatch(data_path) if slash and folder == store_id else None
    return None if match is None else int(match[1], 16)


def is_segment_path(path: str) -> bool:
    """Return True for the path of a segment of any table of any store."""
    return _SEGMENT_PATH.fullmatch(path) is not None


def end_of_file_path(text: str) -> int | None:
    """Return the index in the text after the first path of a table's file; None if the text has no such path."""
    match = _PATH_IN_TEXT.search(text)
    return None if match is None else match.end()


# ---- shipped records of a catalog --------------------------------------------------------------------------------


def ship_folder(store_id: str) -> str:
    """Return the folder of a store's shipped catalog records."""
    return f"{store_id}/{CATALOG_FOLDER}"


def ship_path(store_id: str, generation: str, since: int, version: int) -> str:
    """Return the path of the shipped records of a generation: those written after `since`, through `version`."""
    return f"{ship_folder(store_id)}/{generation}-{since:016x}-{version:016x}{SHIPPED_ENDING}"


def is_shipped(store_id: str, path: str) -> bool:
    """Return True for a file in the folder of shipped records that has their ending."""
    return path.startswith(f"{ship_folder(store_id)}/") and path.endswith(SHIPPED_ENDING)


def shipped_of(path: str) -> tuple[str, int, int] | None:
    """Return the generation, since and version in the name of a file of shipped records; None for another name."""
    match = _SHIPPED_NAME.fullmatch(name_of(path))
    return None if match is None else (match[1], int(match[2], 16), int(match[3], 16))
