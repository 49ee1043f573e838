"""Every public error of epochlog. Each names the thing that is wrong and says what to do next."""

from __future__ import annotations


class EpochlogError(Exception):
    """Base of all errors that epochlog raises on purpose."""


# ---- bad input ---------------------------------------------------------------------------------------------------


class InvalidInput(EpochlogError, ValueError):
    """An argument or its data cannot be used; nothing was written."""


class InvalidName(InvalidInput):
    """A table, job, column or consumer name breaks the naming rule."""


class SchemaMismatch(InvalidInput):
    """Data does not fit the table: unknown, missing, null or wrongly typed column."""


class InvalidSchema(InvalidInput):
    """A schema or primary key that no table can have."""


class LimitExceeded(InvalidInput):
    """A stated limit (name, key size, row size, columns, batch bytes) was passed."""


class DependencyMissing(EpochlogError, ImportError):
    """A package that is no part of epochlog's own installation is needed for this; the message names it."""


class TableExists(InvalidInput):
    """A table of that name is already there."""


class TableNotFound(EpochlogError, KeyError):
    """No table of that name."""

    __str__ = Exception.__str__


class TableDropped(TableNotFound):
    """The table was there when the handle was made and has been dropped since."""


class TableFinished(EpochlogError):
    """The table's data has ended (end-of-data); it takes no further writes."""


class TableInUse(EpochlogError):
    """The table cannot be dropped while a job reads or owns it."""


class NotWritable(InvalidInput):
    """A derived table is written by its job alone."""


class JobExists(InvalidInput):
    """A job of that name is already there."""


class JobNotFound(EpochlogError, KeyError):
    """No job of that name."""

    __str__ = Exception.__str__


class ConsumerNotFound(EpochlogError, KeyError):
    """No consumer of that name."""

    __str__ = Exception.__str__


class LoadNotFound(EpochlogError, KeyError):
    """No load of that name."""

    __str__ = Exception.__str__


class SnapshotNotFound(EpochlogError, KeyError):
    """No snapshot is held under that name."""

    __str__ = Exception.__str__


class JobCycle(InvalidInput):
    """A job would read, directly or through others, what it writes."""


class OutputOwned(InvalidInput):
    """An output table already belongs to another job, or was made as a root table."""


class JobRunning(EpochlogError):
    """The job already has a live runner in this process."""


class JobParked(EpochlogError):
    """The job let go of its logs after its retention; its old state is readable, `rebuild` makes it new."""


class DrainPending(EpochlogError):
    """A job was told to end its data and has not done so in time; the end stays recorded for whoever runs it."""


class JavaMissing(EpochlogError):
    """There is no Java that Spark can use: none was found, or one that is too old."""


class SparkLost(EpochlogError):
    """The Spark session ended, or its JVM died, while a job was refreshed; nothing of that barrier was committed."""


# ---- store and catalog -------------------------------------------------------------------------------------------


class StoreNotFound(EpochlogError):
    """No store at that root, and create=False."""


class ForeignRoot(EpochlogError):
    """The root folder holds files that are not an epochlog store's."""


class StoreClosed(EpochlogError):
    """The store handle was closed."""


class UnsupportedFormat(EpochlogError):
    """The store was written in a newer format than this library knows."""


class CatalogLost(EpochlogError):
    """The catalog that the root names is gone or is another store's."""


class CatalogRolledBack(CatalogLost):
    """The catalog is older than what this process has already seen of it."""


class CatalogFull(EpochlogError):
    """The catalog has no room left to write; nothing was committed."""


class CatalogUnavailable(EpochlogError):
    """The catalog's server did not answer in time or does not let this user in, or the system refused to read the
    catalog's file; this call wrote nothing.
    """


class CatalogInUse(EpochlogError):
    """A catalog cannot be restored over one that is alive for the same store."""


class OutcomeUnknown(EpochlogError):
    """The catalog went away while it was told to commit (its server, or its disk): the commit has landed or it has not.

    Retry it with the same txn=(application, id), or ask `store.resolve` for its fate, once the server is back.
    """


class Corrupt(EpochlogError):
    """Bytes on disk are not what was written: `path` names the file or record, `what` the damage."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path} is damaged: {what}. Run `epochlog verify` and restore the file from a copy")
        self.path = path
        self.what = what

    def __reduce__(self) -> tuple[type[Corrupt], tuple[str, str]]:
        return type(self), (self.path, self.what)


class WriteFailed(EpochlogError):
    """The file system refused a write or a sync; nothing of it is visible."""


class ReadFailed(EpochlogError):
    """The system refused a read (no open files or memory left, no right to it), or its file system did not answer;
    nothing is known to be damaged.
    """


# ---- epochs and commits ------------------------------------------------------------------------------------------


class EpochRegressed(InvalidInput):
    """An explicit epoch or label does not exceed the newest epoch issued or sealed."""


class ClockSkew(EpochlogError):
    """An epoch lies more than 10 s ahead of the clock."""


class EpochExpired(EpochlogError):
    """The epoch lies below the table's safe epoch: its history has been let go."""


class EpochNotCommitted(EpochlogError):
    """The epoch is not complete for the table yet: something may still land at or below it."""


class TxnMismatch(EpochlogError):
    """An earlier commit with this (application, id) wrote other tables."""


class TxnAborted(EpochlogError):
    """`resolve` decided earlier that this (application, id) must not land."""


class TxnOutcomeForgotten(EpochlogError):
    """The (application, id) is older than the outcomes that are kept."""


class SegmentUnknown(EpochlogError):
    """A segment to commit is unknown, gone, already committed or of another store or table."""


class Fenced(EpochlogError):
    """A newer incarnation has taken over; this writer, job or consumer has no effect any more."""


class BarrierChanged(EpochlogError):
    """The barrier to commit is not the one that was recorded for the job."""


class UpstreamIncomplete(EpochlogError):
    """An upstream is not complete through the barrier yet."""


class LogHeld(EpochlogError):
    """The log cannot be truncated there: a snapshot, consumer or job still needs it."""


class LogTruncated(EpochlogError):
    """The log no longer reaches back to that epoch."""


# ---- staged exchange ---------------------------------------------------------------------------------------------


class ChannelUnknown(InvalidInput):
    """The query, or the consumer, has no channel of that name."""


class ContentMismatch(InvalidInput):
    """A sequence came again with other content than before."""


class QueryNotFound(ChannelUnknown):
    """No query of that name: none was declared, or it was dropped, or its lease has ended."""


class EndMarkMismatch(InvalidInput):
    """A second, different end mark of a channel, or a sequence past its end mark."""


class SequenceReleased(EpochlogError):
    """Every consumer has acknowledged that batch of the exchange, and it was let go of."""


class BudgetExceeded(EpochlogError):
    """The query's batches fill its disk budget, and its consumers have not acknowledged enough of them in time."""


# ---- server ------------------------------------------------------------------------------------------------------


class InsecureServer(InvalidInput):
    """A server that others can reach needs TLS and a token; a token must be hard to guess, in a file that nobody else
    may read, and is sent in clear to no other host.
    """


class AccessDenied(EpochlogError):
    """The server does not know this token, or the token may only read."""


class ServerUnavailable(EpochlogError):
    """The server cannot be reached, or did not answer in time; what was asked of it may be asked again."""


class ReaderTooSlow(EpochlogError):
    """A reader took nothing for too long while something waited for it, and was cut off."""


class CallTimedOut(EpochlogError):
    """A call of the server took longer than one may; nothing of a write is left."""


class TicketRefused(EpochlogError):
    """These bytes are no ticket of this server, or of a flight that it has ended; ask for the flight again."""


class TicketExpired(TicketRefused):
    """The ticket's time is over; ask for the flight again."""


class BadMessage(EpochlogError):
    """A peer sent what is no message of the protocol, or too much of it; nothing of it was taken."""


class RolledBack(EpochlogError):
    """A part of a load or job goes back to its last commit; what it wrote since is dropped. Go on from `part.state`."""


class Cancelled(EpochlogError):
    """The load or job was stopped, or failed for good, at its coordinator; nothing uncommitted of it is left."""


# ---- reading -----------------------------------------------------------------------------------------------------


class NoConsistentEpoch(EpochlogError):
    """No epoch satisfies the policy for these tables; the message names who holds it back, why, and by how much."""


class StalenessExceeded(NoConsistentEpoch):
    """The newest consistent epoch lags more than the bound allows."""


class TableNotReadable(NoConsistentEpoch):
    """`global` refuses a table that takes no part: it is creating, parked or too late, or descends from such a one."""


class SnapshotExpired(EpochlogError):
    """The snapshot's lease has ended and its files or epochs may be gone."""


# ---- checkpoints -------------------------------------------------------------------------------------------------


class CheckpointRejected(EpochlogError):
    """No checkpoint can be planned for these tasks now; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RestoreRejected(EpochlogError):
    """The recorded states cannot be restored together."""


class RefreshFailed(EpochlogError):
    """A job's refresh function raised inside Spark, where the original error survives only as text."""


def by_name(name: str, text: str) -> EpochlogError | None:
    """Return an error of this module by the name and text that another process sent; None when no text alone can make
    it.
    """
    found = globals().get(name)
    if isinstance(found, type) and issubclass(found, EpochlogError) and "__init__" not in vars(found):
        return found(text)
    return None
