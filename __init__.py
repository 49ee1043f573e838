"""epochlog: materialized views that commit by themselves and are still read as of one consistent moment.

The public names, loaded when they are first used: `import epochlog` starts neither Spark nor Arrow Flight.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .errors import (
    AccessDenied,
    BadMessage,
    BarrierChanged,
    BudgetExceeded,
    CallTimedOut,
    Cancelled,
    CatalogFull,
    CatalogInUse,
    CatalogLost,
    CatalogRolledBack,
    CatalogUnavailable,
    ChannelUnknown,
    CheckpointRejected,
    ClockSkew,
    ConsumerNotFound,
    ContentMismatch,
    Corrupt,
    DependencyMissing,
    DrainPending,
    EndMarkMismatch,
    EpochExpired,
    EpochlogError,
    EpochNotCommitted,
    EpochRegressed,
    Fenced,
    ForeignRoot,
    InsecureServer,
    InvalidInput,
    InvalidName,
    InvalidSchema,
    JavaMissing,
    JobCycle,
    JobExists,
    JobNotFound,
    JobParked,
    JobRunning,
    LimitExceeded,
    LoadNotFound,
    LogHeld,
    LogTruncated,
    NoConsistentEpoch,
    NotWritable,
    OutcomeUnknown,
    OutputOwned,
    QueryNotFound,
    ReaderTooSlow,
    ReadFailed,
    RefreshFailed,
    RestoreRejected,
    RolledBack,
    SchemaMismatch,
    SegmentUnknown,
    SequenceReleased,
    ServerUnavailable,
    SnapshotExpired,
    SnapshotNotFound,
    SparkLost,
    StalenessExceeded,
    StoreClosed,
    StoreNotFound,
    TableDropped,
    TableExists,
    TableFinished,
    TableInUse,
    TableNotFound,
    TableNotReadable,
    TicketExpired,
    TicketRefused,
    TxnAborted,
    TxnMismatch,
    TxnOutcomeForgotten,
    UnsupportedFormat,
    UpstreamIncomplete,
    WriteFailed,
)
from .lazy import lazily

if TYPE_CHECKING:  # the same names as in _HOMES, for readers and type checkers
    from .api import Job, Store, open
    from .batch.check import CheckContext
    from .batch.differences import CheckReport, OutputCheck
    from .batch.held import HeldSnapshot
    from .batch.policy import Aligned, AsOf, AtLeast, Bounded, Exact, Global, Latest
    from .batch.snapshot import Snapshot
    from .batch.spark_write import sink
    from .checkpoint.barrier import Barrier
    from .checkpoint.graph import JobInfo, Output, RunnerInfo
    from .checkpoint.local_context import LocalRefreshContext
    from .checkpoint.part import JobPart, LoadPart
    from .checkpoint.pipeline import JobStatus, Pipeline
    from .checkpoint.replay import EndOfData
    from .checkpoint.running import CoordinatorSettings
    from .checkpoint.shares import PartRefreshContext
    from .checkpoint.spark_context import SparkRefreshContext
    from .checkpoint.upstream import Chunk, UpstreamLog
    from .checkpoint.worker import Worker
    from .exchange.client import Client, ServedTable, connect
    from .exchange.subscriber import Subscription
    from .serving import StoreServer, serve
    from .spark import register, spark
    from .store.consumers import ConsumerInfo
    from .store.definitions import TableOptions
    from .store.restore import RestoreReport, restore_catalog
    from .store.segment import Segment
    from .store.vacuum import VacuumedFile, VacuumReport
    from .table import Table, TableInfo, TableWriter
    from .transaction import Transaction

__version__ = "0.1.0"

# Where each lazy name lives. A module's names are all bound at its first use.
_HOMES: dict[str, tuple[str, ...]] = {
    "api": (
        "open",
        "Store",
        "Job",
    ),
    "transaction": ("Transaction",),
    "table": (
        "Table",
        "TableInfo",
        "TableWriter",
    ),
    "store.definitions": ("TableOptions",),
    "store.consumers": ("ConsumerInfo",),
    "store.segment": ("Segment",),
    "store.vacuum": (
        "VacuumReport",
        "VacuumedFile",
    ),
    "store.restore": (
        "restore_catalog",
        "RestoreReport",
    ),
    "checkpoint.graph": (
        "JobInfo",
        "Output",
        "RunnerInfo",
    ),
    "checkpoint.local_context": ("LocalRefreshContext",),
    "checkpoint.shares": ("PartRefreshContext",),
    "checkpoint.spark_context": ("SparkRefreshContext",),
    "checkpoint.pipeline": (
        "Pipeline",
        "JobStatus",
    ),
    "checkpoint.upstream": (
        "UpstreamLog",
        "Chunk",
    ),
    "checkpoint.replay": ("EndOfData",),
    "checkpoint.barrier": ("Barrier",),
    "batch.snapshot": ("Snapshot",),
    "batch.held": ("HeldSnapshot",),
    "batch.check": ("CheckContext",),
    "batch.differences": ("CheckReport", "OutputCheck"),
    "batch.policy": (
        "Global",
        "Aligned",
        "Latest",
        "AsOf",
        "AtLeast",
        "Bounded",
        "Exact",
    ),
    "serving": ("serve", "StoreServer"),
    "exchange.client": ("connect", "Client", "ServedTable"),
    "exchange.subscriber": ("Subscription",),
    "checkpoint.worker": ("Worker",),
    "checkpoint.part": ("LoadPart", "JobPart"),
    "checkpoint.running": ("CoordinatorSettings",),
    "spark": (
        "register",
        "spark",
    ),
    "batch.spark_write": ("sink",),
}

__all__ = [
    "open",
    "restore_catalog",
    "RestoreReport",
    "Store",
    "Transaction",
    "Job",
    "Table",
    "TableInfo",
    "TableWriter",
    "TableOptions",
    "ConsumerInfo",
    "Segment",
    "VacuumReport",
    "VacuumedFile",
    "JobInfo",
    "Output",
    "RunnerInfo",
    "LocalRefreshContext",
    "SparkRefreshContext",
    "PartRefreshContext",
    "Pipeline",
    "JobStatus",
    "UpstreamLog",
    "Chunk",
    "Barrier",
    "EndOfData",
    "Snapshot",
    "HeldSnapshot",
    "CheckReport",
    "OutputCheck",
    "CheckContext",
    "Global",
    "Aligned",
    "Latest",
    "AsOf",
    "AtLeast",
    "Bounded",
    "Exact",
    "serve",
    "StoreServer",
    "connect",
    "Client",
    "ServedTable",
    "Subscription",
    "CoordinatorSettings",
    "Worker",
    "LoadPart",
    "JobPart",
    "register",
    "spark",
    "sink",
    "EpochlogError",
    "InvalidInput",
    "InvalidName",
    "SchemaMismatch",
    "InvalidSchema",
    "LimitExceeded",
    "DependencyMissing",
    "TableExists",
    "TableNotFound",
    "TableDropped",
    "TableFinished",
    "TableInUse",
    "NotWritable",
    "JobExists",
    "JobNotFound",
    "JobCycle",
    "OutputOwned",
    "JobRunning",
    "JobParked",
    "DrainPending",
    "JavaMissing",
    "SparkLost",
    "StoreNotFound",
    "ForeignRoot",
    "StoreClosed",
    "UnsupportedFormat",
    "CatalogLost",
    "CatalogRolledBack",
    "CatalogUnavailable",
    "CatalogInUse",
    "OutcomeUnknown",
    "CatalogFull",
    "Corrupt",
    "WriteFailed",
    "ReadFailed",
    "EpochRegressed",
    "ClockSkew",
    "EpochExpired",
    "EpochNotCommitted",
    "TxnMismatch",
    "TxnAborted",
    "TxnOutcomeForgotten",
    "SegmentUnknown",
    "Fenced",
    "BarrierChanged",
    "UpstreamIncomplete",
    "LogHeld",
    "LogTruncated",
    "ChannelUnknown",
    "ContentMismatch",
    "EndMarkMismatch",
    "QueryNotFound",
    "SequenceReleased",
    "BudgetExceeded",
    "NoConsistentEpoch",
    "StalenessExceeded",
    "TableNotReadable",
    "SnapshotExpired",
    "SnapshotNotFound",
    "CheckpointRejected",
    "RestoreRejected",
    "RefreshFailed",
    "InsecureServer",
    "AccessDenied",
    "ServerUnavailable",
    "ReaderTooSlow",
    "TicketRefused",
    "TicketExpired",
    "BadMessage",
    "CallTimedOut",
    "RolledBack",
    "Cancelled",
    "LoadNotFound",
    "ConsumerNotFound",
]


if not TYPE_CHECKING:  # else a type checker takes any name for one of them
    __getattr__, __dir__ = lazily(globals(), _HOMES)


class _Package(ModuleType):
    """The package itself: a public name stays what it is when a submodule of that name (`epochlog.spark`) is imported.

    The import system binds a submodule as an attribute of its package once it is loaded, over whatever was there.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and name in _HOMES.get(name, ()):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
