"""The marker: the small file in a root that says which store it is and what kind of catalog keeps it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ..errors import Corrupt, ForeignRoot, InvalidInput, UnsupportedFormat
from .definitions import FORMAT_VERSION
from .files import Files
from .paths import MARKER, is_store_id

_START = b'{\n "store_id": "'


@dataclass(frozen=True, slots=True)
class Marker:
    """`catalog`: "lmdb" or "redis". `generation`: which making of the Redis catalog this is; no URL, no password."""

    store_id: str
    catalog: str = "lmdb"
    generation: str | None = None
    format: int = FORMAT_VERSION

    def to_bytes(self) -> bytes:
        fields: dict[str, Any] = {"store_id": self.store_id, "format": self.format, "catalog": self.catalog}
        if self.generation is not None:
            fields["generation"] = self.generation
        body = json.dumps(fields, indent=1).encode()
        assert body.startswith(_START)
        return body


def read_marker(files: Files) -> Marker | None:
    """The root's marker; None when there is none, or only the beginning of one, as a cut-off creation leaves it."""
    if not files.exists(MARKER):
        return None
    path = f"{files.place}/{MARKER}"
    try:
        text = bytes(files.read(MARKER))
    except FileNotFoundError:  # another maker took it for a cut-off one, and is writing it anew
        return None
    text = text.rstrip(b"\0")  # zeros are what a power cut may leave of a name without its bytes
    if _START.startswith(text[: len(_START)]) and not text.endswith(b"}"):
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Corrupt(path, "it is no JSON") from error
    if not isinstance(found, dict) or not isinstance(found.get("format"), int) or "store_id" not in found:
        raise ForeignRoot(f"{path} is not an epochlog marker; choose another folder as root")
    if found["format"] > FORMAT_VERSION:
        raise UnsupportedFormat(
            f"the store at {files.place} has format {found['format']}, newer than {FORMAT_VERSION}: upgrade epochlog"
        )
    kind, generation = found.get("catalog"), found.get("generation")
    if not is_store_id(found["store_id"]) or kind not in ("lmdb", "redis"):
        raise Corrupt(path, "it names no store, or no catalog that there is")
    if kind == "redis" and not is_store_id(generation):
        raise Corrupt(path, "it names no generation of its catalog")
    return Marker(found["store_id"], kind, generation, found["format"])


def require_kind(marker: Marker | None, kind: str, files: Files) -> None:
    """InvalidInput when a store is opened with the other kind of catalog than it has."""
    if marker is None or marker.catalog == kind:
        return
    if marker.catalog == "redis":
        raise InvalidInput(
            f"the store at {files.place} has its catalog in Redis: pass catalog='redis://host:port/db' to open it"
        )
    raise InvalidInput(
        f"the store at {files.place} has its catalog in its own folder: leave catalog out. (To move it, export_catalog "
        "it, take the catalog folder away, and use epochlog.restore_catalog with catalog=…)"
    )
