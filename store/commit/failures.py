"""Errors after which a commit has certainly not landed, so that the files written for it can be deleted."""

from __future__ import annotations

from epochlog.errors import (
    BarrierChanged,
    CatalogFull,
    CatalogUnavailable,
    CheckpointMismatch,
    ClockSkew,
    EpochlogError,
    EpochRegressed,
    Fenced,
    InvalidInput,
    JobNotFound,
    JobParked,
    SchemaChanged,
    SegmentUnknown,
    StoreClosed,
    TableDropped,
    TableFinished,
    TxnAborted,
    TxnMismatch,
    TxnOutcomeForgotten,
    UpstreamIncomplete,
)


class TtlAltered(EpochlogError):
    """Altered ttl: expired rows were chosen by a ttl that the table no longer has."""


DEFINITE_FAILURES = (
    BarrierChanged,
    CatalogFull,
    CatalogUnavailable,
    CheckpointMismatch,
    ClockSkew,
    Fenced,
    InvalidInput,
    SchemaChanged,
    SegmentUnknown,
    StoreClosed,
    TableDropped,
    TableFinished,
    TtlAltered,
    TxnAborted,
    TxnMismatch,
    TxnOutcomeForgotten,
)
"""Errors after which a commit has certainly not landed. After any other error, such as a failed sync, it may have."""
DEFINITE_JOB_FAILURES = (*DEFINITE_FAILURES, EpochRegressed, JobNotFound, JobParked, UpstreamIncomplete)
"""Errors after which the call has certainly added none of the runner's files to the catalog."""
