"""Marker: the small file in a root with the store's id and its kind of catalog."""

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
    """Content of a marker."""

    store_id: str
    catalog: str = EMBEDDED.name
    """Name of its kind."""
    generation: str | None = None
    """Id of the catalog's creation or restore. The marker has no URL and no password."""
    format: int = FORMAT_VERSION

    def to_bytes(self) -> bytes:
        fields: dict[str, Any] = {"store_id": self.store_id, "format": self.format, "catalog": self.catalog}
        if self.generation is not None:
            fields["generation"] = self.generation
        body = json.dumps(fields, indent=1).encode()
        assert body.startswith(_START)
        return body


def read_marker(files: Files) -> Marker | None:
    """Return the root's marker; None if it is missing, or is the incomplete one of an interrupted creation."""
    if not files.exists(MARKER):
        return None
    path = f"{files.place}/{MARKER}"
    try:
        text = bytes(files.read(MARKER))
    except FileNotFoundError:  # a concurrent creator has deleted an incomplete marker to write it again
        return None
    text = text.rstrip(b"\0")  # a power cut may leave zeros in place of the bytes
    if _START.startswith(text[: len(_START)]) and not text.endswith(b"}"):
        return None
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise Corrupt(path, "it is no JSON") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("format"), int) or "store_id" not in fields:
        raise ForeignRoot(f"{path} is not an epochlog marker; choose another folder as root")
    if fields["format"] > FORMAT_VERSION:
        raise UnsupportedFormat(
            f"the store at {files.place} has format {fields['format']}, newer than {FORMAT_VERSION}: upgrade epochlog"
        )
    kind, generation = kind_named(fields.get("catalog")), fields.get("generation")
    if not is_store_id(fields["store_id"]) or kind is None:
        raise Corrupt(path, "invalid store id, or unknown kind of catalog")
    if kind.generations and not is_store_id(generation):
        raise Corrupt(path, "invalid generation of its catalog")
    return Marker(fields["store_id"], kind.name, generation, fields["format"])


def require_kind(marker: Marker | None, kind: CatalogKind, files: Files) -> None:
    """Raise InvalidInput if a store is opened with another kind of catalog than its own."""
    if marker is None or marker.catalog == kind.name:
        return
    stored = kind_named(marker.catalog)
    assert stored is not None  # read_marker knows the name
    raise InvalidInput(f"the store at {files.place} has its catalog {stored.location}: {stored.reach}")
