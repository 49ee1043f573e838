"""Checks of segments that another process wrote and reported for a commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from epochlog.errors import Corrupt, SegmentUnknown
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.env.parallel import parallel_map
from epochlog.store.metadata.lookups import find_table
from epochlog.store.metadata.state_tables import ViewState, read_state
from epochlog.store.session.handle import Handle
from epochlog.store.session.write_intents import require_intents
from epochlog.store.sst.data_file import verified
from epochlog.store.sst.segment import Segment

from .change import TableChange, check_segments
from .prepared import Prepared
from .transaction import check_unused


def check_reported(
    handle: Handle, reported: Mapping[str, Sequence[Segment]], states: Mapping[str, ViewState] | None = None
) -> None:
    """Check the reported segments and states of views, by table name. Segments that a state had before are not read.

    Raises SegmentUnknown unless every segment lies in its table's folder under a live write intent, was neither
    committed nor discarded, and its file has the reported size and checksum. A process reads each file once. Raises
    ReadFailed when a file cannot be read now.
    """

    def check(view: ReadTxn) -> list[TableChange]:
        new = [
            (name, _new_segments(name, state, read_state(view, find_table(view, name).id))) for name, state in of_views
        ]
        _require_own_files(reported, new)
        return [_check_records(view, *entry) for entry in (*reported.items(), *new)]

    of_views = (states or {}).items()
    changes = handle.catalog.read(check)
    for change in changes:
        check_segments(handle, change)
    segments = [(change.name, segment) for change in changes for segment in change.segments]
    parallel_map(lambda entry: _check_file(handle, *entry), segments, sum(segment.rows for _, segment in segments))


def _new_segments(name: str, state: ViewState, before: ViewState | None) -> list[Segment]:
    """Return the segments that a state did not have before. Raises SegmentUnknown for another record of one that it
    had.
    """
    known = {} if before is None else {segment.path: segment for segment in before.segments}
    for segment in state.segments:
        if known.get(segment.path, segment) != segment:
            raise SegmentUnknown(f"segment {segment.path} of the state of table {name!r} is reported as another one")
    return state.new_segments(before)


def _require_own_files(reported: Mapping[str, Sequence[Segment]], states: Iterable[tuple[str, list[Segment]]]) -> None:
    """Raise SegmentUnknown for a file that is reported twice, as rows and in a state."""
    paths = {segment.path for segments in reported.values() for segment in segments}
    for name, segments in states:
        for segment in segments:
            if segment.path in paths:
                raise SegmentUnknown(f"segment {segment.path} of table {name!r} occurs twice in one report")


def _check_records(view: ReadTxn, name: str, segments: Sequence[Segment]) -> TableChange:
    sealed = tuple(segment.labelled(1) for segment in segments)
    change = TableChange(find_table(view, name), sealed)
    require_intents(view, name, (segment.path for segment in segments))
    check_unused(view, Prepared.of(change))
    return change


def _check_file(handle: Handle, table: str, segment: Segment) -> None:
    try:
        verified(handle.files, segment.path, segment.bytes, segment.crc32)
    except Corrupt as error:
        raise SegmentUnknown(
            f"segment {segment.path} of table {table!r} differs from its report: {error.what}; write its rows again"
        ) from error
