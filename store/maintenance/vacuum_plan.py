"""Classification of a store's files for vacuum: a pure function of a listing and of the catalog as read after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from epochlog.store.env.files import FileInfo
from epochlog.store.env.paths import intent_of, is_shipped, table_of
from epochlog.store.metadata.unreachable_files import UnreachableFile
from epochlog.store.retention.holds import NO_PLAN, Hold
from epochlog.store.session.write_intents import Intent

REACHED_AND_UNREACHABLE = "noted as unreachable, but the catalog reaches it: never deleted; please report this"


class FileState(StrEnum):
    """State of a file: data that the catalog reaches, garbage that stays for now or is due, or a foreign file."""

    REACHED = "reached"
    KEPT = "kept"
    DUE = "due"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class FileDecision:
    """State of one file with its reason."""

    path: str
    bytes: int
    state: FileState
    reason: str = ""
    table_id: int = 0
    since_ms: int = 0
    """Time at which the file became unreachable."""
    until_ms: int | None = None
    """Earliest time at which the file may be deleted."""
    is_new: bool = False
    """Not yet noted as unreachable."""
    listed: bool = True
    """True if the file exists, False if only its note does."""


@dataclass(frozen=True, slots=True)
class Known:
    """Catalog records that decide on the listed files, read in one view after the listing."""

    store_id: str
    now_ms: int
    reached: Mapping[str, int]
    unreachable: Mapping[str, UnreachableFile]
    """Files noted as unreachable, by path."""
    intents: Mapping[str, Intent]
    """Live ones, by id."""
    holds: Mapping[int, Sequence[Hold]]
    """By table id."""
    ended: Mapping[str, int] = field(default_factory=dict)
    """Expiry of those just revoked, by id."""


def classify_files(listed: Iterable[FileInfo], known: Known, grace_ms: int) -> Iterator[FileDecision]:
    """Yield the decision for every listed file, and for every unlisted one that the catalog notes as unreachable."""
    listed_paths = set()
    for info in listed:
        listed_paths.add(info.path)
        yield _classify(info.path, info.size, known, grace_ms)
    for path, note in known.unreachable.items():
        if path not in listed_paths and path not in known.reached:
            decision = _classify_unreachable(note.path, note.bytes, known, note, grace_ms)
            yield replace(decision, listed=False)


def _classify(path: str, size: int, known: Known, grace_ms: int) -> FileDecision:
    """Decide on one listed file."""
    table_id, note = table_of(known.store_id, path), known.unreachable.get(path)
    if path in known.reached:
        if note is None:
            return FileDecision(path, size, FileState.REACHED)
        return FileDecision(path, size, FileState.KEPT, REACHED_AND_UNREACHABLE, note.table_id)
    if note is not None:
        return _classify_unreachable(path, size, known, note, grace_ms)
    if table_id is None:
        ours = is_shipped(known.store_id, path)
        return FileDecision(
            path, size, FileState.REACHED if ours else FileState.FOREIGN, "not a data file of this store"
        )
    name = intent_of(path)
    intent = known.intents.get(name)
    if intent is not None:
        by = f" by process {intent.by}" if intent.by else ""
        reason = f"being written under {intent.kind} intent {intent.id}{by}"
        return FileDecision(path, size, FileState.KEPT, reason, table_id, until_ms=intent.expires_ms)
    since_ms = known.ended.get(name, known.now_ms)
    note = UnreachableFile(path, table_id, size, since_ms, NO_PLAN)
    return replace(_classify_unreachable(path, size, known, note, grace_ms), is_new=True)


def _classify_unreachable(path: str, size: int, known: Known, note: UnreachableFile, grace_ms: int) -> FileDecision:
    """Decide on an unreachable file: it is due when its grace is over and no hold pins it."""
    until_ms = note.at_ms + grace_ms
    if known.now_ms < until_ms:
        return FileDecision(path, size, FileState.KEPT, "in grace", note.table_id, note.at_ms, until_ms)
    pinning = [hold for table in note.readers for hold in known.holds.get(table, ()) if pins(hold, note.version)]
    if pinning:
        more = f" and {len(pinning) - 1} more" if len(pinning) > 1 else ""
        reason = f"held by {pinning[0].holder}{more}"
        ends = [hold.expires_ms for hold in pinning]
        last = None if None in ends else max(end for end in ends if end is not None)
        return FileDecision(path, size, FileState.KEPT, reason, note.table_id, note.at_ms, last)
    return FileDecision(path, size, FileState.DUE, "unreachable", note.table_id, note.at_ms)


def pins(hold: Hold, version: int) -> bool:
    """Return True if the hold is older than that version of the store: its reader may have planned a file that became
    unreachable then.
    """
    return hold.version < version
