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
    CheckpointMismatch,
    CheckViolated,
    ClockSkew,
    ConsumerNotFound,
    ContentMismatch,
    Corrupt,
    DeleteConflict,
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
    ReadBackFailed,
    ReaderTooSlow,
    ReadFailed,
    RefreshFailed,
    RestoreRejected,
    RolledBack,
    SchemaChanged,
    SchemaInUse,
    SchemaMismatch,
    SegmentUnknown,
    SequenceReleased,
    ServerUnavailable,
    SnapshotExpired,
    SparkLost,
    StalenessExceeded,
    StoreClosed,
    StoreNotFound,
    StoreReadOnly,
    TableDropped,
    TableExists,
    TableFinished,
    TableInUse,
    TableNotFound,
    TableNotReadable,
    TagNotFound,
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
from .version import __version__

if TYPE_CHECKING:  # the same names as in _HOMES, for readers and type checkers
    from .api import Store, open
    from .batch.check import CheckContext
    from .batch.differences import CheckReport, OutputCheck
    from .batch.policy import Aligned, AsOf, AtLeast, Bounded, Exact, Global, Latest
    from .batch.tags import Tag
    from .checkpoint.coordinator.state import CoordinatorSettings
    from .checkpoint.job.job_ddl import JobInfo, Output, RunnerInfo
    from .checkpoint.job.local_context import LocalRefreshContext
    from .checkpoint.job.next_barrier import Barrier
    from .checkpoint.log_source.log_barriers import EndOfData
    from .checkpoint.log_source.log_source import Chunk, UpstreamLog
    from .checkpoint.pipeline.member import JobStatus
    from .checkpoint.worker.actor import LoadPart
    from .checkpoint.worker.job_part import JobPart
    from .checkpoint.worker.row_partitioning import PartRefreshContext
    from .checkpoint.worker.worker import Worker
    from .exchange.client import Client, ServedTable, connect
    from .exchange.subscription.client import Subscription
    from .job import Job
    from .pipeline import Pipeline
    from .serving import StoreServer, serve
    from .snapshot import Snapshot
    from .spark.catalog.install import catalog
    from .spark.foreach_sink import Sink, sink
    from .spark.local_session import spark
    from .spark.refresh_context import SparkRefreshContext
    from .spark.session import register
    from .store.backup.catalog_restore import RestoreReport, restore_catalog
    from .store.changelog.consumer_info import ConsumerInfo
    from .store.maintenance.vacuum import VacuumedFile, VacuumReport
    from .store.metadata.table_options import TableOptions
    from .store.scan.result_cache import set_result_cache_bytes
    from .store.sst.segment import Segment
    from .table import Table, TableInfo, TableWriter
    from .transaction import Transaction
    from .view import View
    from .views.view_stats import ViewStats

# Where each lazy name lives. A module's names are all bound at its first use.
_HOMES: dict[str, tuple[str, ...]] = {
    "api": ("open", "Store"),
    "job": ("Job",),
    "view": ("View",),
    "views.view_stats": ("ViewStats",),
    "transaction": ("Transaction",),
    "table": (
        "Table",
        "TableInfo",
        "TableWriter",
    ),
    "store.metadata.table_options": ("TableOptions",),
    "store.changelog.consumer_info": ("ConsumerInfo",),
    "store.sst.segment": ("Segment",),
    "store.maintenance.vacuum": (
        "VacuumReport",
        "VacuumedFile",
    ),
    "store.backup.catalog_restore": (
        "restore_catalog",
        "RestoreReport",
    ),
    "store.scan.result_cache": ("set_result_cache_bytes",),
    "checkpoint.job.job_ddl": (
        "JobInfo",
        "Output",
        "RunnerInfo",
    ),
    "checkpoint.job.local_context": ("LocalRefreshContext",),
    "checkpoint.worker.row_partitioning": ("PartRefreshContext",),
    "spark.refresh_context": ("SparkRefreshContext",),
    "checkpoint.pipeline.member": ("JobStatus",),
    "pipeline": ("Pipeline",),
    "checkpoint.log_source.log_source": (
        "UpstreamLog",
        "Chunk",
    ),
    "checkpoint.log_source.log_barriers": ("EndOfData",),
    "checkpoint.job.next_barrier": ("Barrier",),
    "snapshot": ("Snapshot",),
    "batch.tags": ("Tag",),
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
    "exchange.subscription.client": ("Subscription",),
    "checkpoint.worker.worker": ("Worker",),
    "checkpoint.worker.actor": ("LoadPart",),
    "checkpoint.worker.job_part": ("JobPart",),
    "checkpoint.coordinator.state": ("CoordinatorSettings",),
    "spark.session": ("register",),
    "spark.local_session": ("spark",),
    "spark.foreach_sink": ("Sink", "sink"),
    "spark.catalog.install": ("catalog",),
}

__all__ = [
    "open",
    "restore_catalog",
    "RestoreReport",
    "set_result_cache_bytes",
    "Store",
    "Transaction",
    "Job",
    "View",
    "ViewStats",
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
    "Tag",
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
    "Sink",
    "sink",
    "catalog",
    "EpochlogError",
    "InvalidInput",
    "InvalidName",
    "CheckViolated",
    "CheckpointMismatch",
    "SchemaMismatch",
    "InvalidSchema",
    "SchemaChanged",
    "SchemaInUse",
    "LimitExceeded",
    "DeleteConflict",
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
    "StoreReadOnly",
    "UnsupportedFormat",
    "CatalogLost",
    "CatalogRolledBack",
    "CatalogUnavailable",
    "CatalogInUse",
    "OutcomeUnknown",
    "CatalogFull",
    "Corrupt",
    "WriteFailed",
    "ReadBackFailed",
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
    "TagNotFound",
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
    """Package module: a public name stays what it is when a submodule of that name (`epochlog.spark`) is imported.

    The import system binds a submodule as an attribute of its package once it is loaded, over whatever was there.
    `from epochlog.spark import sink` finds the submodule all the same.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in __all__):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
