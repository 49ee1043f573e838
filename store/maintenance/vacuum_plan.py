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

REACHED_AND_GONE = "the catalog reaches it and has noted it as gone: never deleted; please report this"


class FileState(StrEnum):
    """A file is data; or it is garbage that stays for now, or is due; or it is none of ours."""

    REACHED = "reached"
    KEPT = "kept"
    DUE = "due"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class FileDecision:
    """One file's fate and its reason. since_ms: when it became unreachable; until_ms: when it may go at the earliest.

    fresh: nobody has noted so far that it is gone. listed: it is there (else only the note of it).
    """

    path: str
    bytes: int
    fate: FileState
    reason: str = ""
    table_id: int = 0
    since_ms: int = 0
    until_ms: int | None = None
    fresh: bool = False
    listed: bool = True


@dataclass(frozen=True, slots=True)
class Known:
    """Catalog records that decide on the listed files, read at one moment after the listing.

    intents: those that live. ended: those just revoked, with the moment at which they had run out. holds: by table.
    """

    store_id: str
    now_ms: int
    reached: Mapping[str, int]
    gone: Mapping[str, UnreachableFile]
    intents: Mapping[str, Intent]
    holds: Mapping[int, Sequence[Hold]]
    ended: Mapping[str, int] = field(default_factory=dict)


def classify_files(listed: Iterable[FileInfo], known: Known, grace_ms: int) -> Iterator[FileDecision]:
    """Return the decision for every file that was listed, and for those that the catalog notes as unreachable."""
    seen = set()
    for info in listed:
        seen.add(info.path)
        yield _judge(info.path, info.size, known, grace_ms)
    for path, gone in known.gone.items():
        if path not in seen and path not in known.reached:
            verdict = _unreached(gone.path, gone.bytes, known, gone, grace_ms)
            yield replace(verdict, listed=False)


def _judge(path: str, size: int, known: Known, grace_ms: int) -> FileDecision:
    table_id, gone = table_of(known.store_id, path), known.gone.get(path)
    if path in known.reached:
        if gone is None:
            return FileDecision(path, size, FileState.REACHED)
        return FileDecision(path, size, FileState.KEPT, REACHED_AND_GONE, gone.table_id)
    if gone is not None:
        return _unreached(path, size, known, gone, grace_ms)
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
    fresh = UnreachableFile(path, table_id, size, since_ms, NO_PLAN)
    return replace(_unreached(path, size, known, fresh, grace_ms), fresh=True)


def _unreached(path: str, size: int, known: Known, gone: UnreachableFile, grace_ms: int) -> FileDecision:
    """Decide on a file unreachable since gone.at_ms: it is due when its grace is over and no hold pins it."""
    until_ms = gone.at_ms + grace_ms
    if known.now_ms < until_ms:
        return FileDecision(path, size, FileState.KEPT, "in grace", gone.table_id, gone.at_ms, until_ms)
    held = [hold for hold in known.holds.get(gone.table_id, ()) if pins(hold, gone.version)]
    if held:
        others = f" and {len(held) - 1} more" if len(held) > 1 else ""
        reason = f"held by {held[0].holder}{others}"
        ends = [hold.expires_ms for hold in held]
        last = None if None in ends else max(end for end in ends if end is not None)
        return FileDecision(path, size, FileState.KEPT, reason, gone.table_id, gone.at_ms, last)
    return FileDecision(path, size, FileState.DUE, "nothing reaches it", gone.table_id, gone.at_ms)


def pins(hold: Hold, version: int) -> bool:
    """Return True if the hold is older than that version of the store, so its reader may use a file that became
    unreachable then.
    """
    return hold.version < version
