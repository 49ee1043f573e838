"""The marker: the small file in a root that says which store it is and what kind of catalog keeps it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from epochlog.errors import Corrupt, ForeignRoot, InvalidInput, UnsupportedFormat
from epochlog.store.catalog.kind import CatalogKind
from epochlog.store.catalog.registry import EMBEDDED, kind_named
from epochlog.store.env.files import Files
from epochlog.store.env.paths import MARKER, is_store_id
from epochlog.store.metadata.definitions import FORMAT_VERSION

_START = b'{\n "store_id": "'


@dataclass(frozen=True, slots=True)
class Marker:
    """`catalog`: the name of its kind. `generation`: which making of the catalog this is; no URL, no password."""

    store_id: str
    catalog: str = EMBEDDED.name
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
    """Return the root's marker; None without one, or with just the beginning of one, left by a cut-off creation."""
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
    kind, generation = kind_named(found.get("catalog")), found.get("generation")
    if not is_store_id(found["store_id"]) or kind is None:
        raise Corrupt(path, "it names no store, or no catalog that there is")
    if kind.generations and not is_store_id(generation):
        raise Corrupt(path, "it names no generation of its catalog")
    return Marker(found["store_id"], kind.name, generation, found["format"])


def require_kind(marker: Marker | None, kind: CatalogKind, files: Files) -> None:
    """Raise InvalidInput when a store is opened with another kind of catalog than it has."""
    if marker is None or marker.catalog == kind.name:
        return
    stored = kind_named(marker.catalog)
    assert stored is not None  # read_marker knows the name
    raise InvalidInput(f"the store at {files.place} has its catalog {stored.location}: {stored.reach}")
