"""Public errors of epochlog. Each message names the thing that is wrong and says what to do next."""

from __future__ import annotations

import re


class EpochlogError(Exception):
    """Base of all errors that epochlog raises on purpose."""


# ---- bad input ---------------------------------------------------------------------------------------------------


class InvalidInput(EpochlogError, ValueError):
    """An argument, or its data, is invalid; nothing was written."""


class InvalidName(InvalidInput):
    """A table, job, column or consumer name breaks the naming rule."""


class SchemaMismatch(InvalidInput):
    """Data does not fit the table: unknown, missing, null or wrongly typed column."""


class CheckViolated(InvalidInput):
    """A row that a commit would leave breaks a check of its table; or a row breaks a check that is to be added."""


class InvalidSchema(InvalidInput):
    """No table can have this schema or primary key."""


class SchemaChanged(EpochlogError):
    """The table was altered after this reader or writer had taken its columns; begin again, with its present columns.
    `epoch` is the epoch of the alter, as in the message; 0 if it is not known.
    """

    @property
    def epoch(self) -> int:
        match = re.search(r" altered at epoch (\d+)", str(self))  # the message alone comes from another process
        return int(match[1]) if match else 0


class SchemaInUse(InvalidInput):
    """A job reads the column that an alter would drop or widen; the message names the job."""


class LimitExceeded(InvalidInput):
    """A limit (name, key size, row size, columns, batch bytes) is exceeded; the message names it."""


class DependencyMissing(EpochlogError, ImportError):
    """An optional package, which the message names, is required and not installed."""


class TableExists(InvalidInput):
    """A table of that name already exists."""


class TableNotFound(EpochlogError, KeyError):
    """There is no table of that name."""

    __str__ = Exception.__str__


class TableDropped(TableNotFound):
    """The table was dropped after its handle was created."""


class TableFinished(EpochlogError):
    """The table's data has ended (end-of-data); it accepts no further writes."""


class DeleteConflict(EpochlogError):
    """Other commits of the table landed during each attempt of a DELETE … WHERE; nothing was deleted."""


class TableInUse(EpochlogError):
    """The table cannot be dropped while a job reads or owns it."""


class NotWritable(InvalidInput):
    """The table is derived; only its job writes it."""


class JobExists(InvalidInput):
    """A job of that name already exists."""


class JobNotFound(EpochlogError, KeyError):
    """There is no job of that name."""

    __str__ = Exception.__str__


class ConsumerNotFound(EpochlogError, KeyError):
    """There is no consumer of that name."""

    __str__ = Exception.__str__


class LoadNotFound(EpochlogError, KeyError):
    """There is no load of that name."""

    __str__ = Exception.__str__


class TagNotFound(EpochlogError, KeyError):
    """There is no tag of that name."""

    __str__ = Exception.__str__


class JobCycle(InvalidInput):
    """A job would read its own outputs, directly or through other jobs."""


class OutputOwned(InvalidInput):
    """An output table belongs to another job, or was created as a root table."""


class JobRunning(EpochlogError):
    """The job already has a live runner, which the message names."""


class JobParked(EpochlogError):
    """The job is parked: retention has removed changes that it needs. Its old state is readable; rebuild it."""


class DrainPending(EpochlogError):
    """A job did not end its data in time; the end stays recorded, and the next runner of the job completes it."""


class JavaMissing(EpochlogError):
    """Spark has no usable Java: none was found, or it is too old."""


class SparkLost(EpochlogError):
    """The Spark session has ended, or its JVM died. A job's barrier or a compaction on it was not committed."""


# ---- store and catalog -------------------------------------------------------------------------------------------


class StoreNotFound(EpochlogError):
    """There is no store at the root, and create=False."""


class ForeignRoot(EpochlogError):
    """The root has files that are not of an epochlog store."""


class StoreClosed(EpochlogError):
    """The store handle was closed."""


class StoreReadOnly(EpochlogError):
    """The call writes, and the store was opened read-only; or the store was opened for writing where only reads are
    permitted. Nothing was written.
    """


class UnsupportedFormat(EpochlogError):
    """The store has a newer format than this version of epochlog supports."""


class CatalogLost(EpochlogError):
    """The catalog of the root is missing, or is the catalog of another store."""


class CatalogRolledBack(CatalogLost):
    """The catalog is older than the version that this process, or its backup in the root, has seen."""


class CatalogFull(EpochlogError):
    """The catalog is full; nothing was committed."""


class CatalogUnavailable(EpochlogError):
    """The catalog's server did not answer in time or refused this user, or the system refused a read of the catalog's
    file; this call wrote nothing.
    """


class CatalogInUse(EpochlogError):
    """A restore would replace a live catalog of the store."""


class OutcomeUnknown(EpochlogError):
    """The catalog's server, or its disk, failed during a commit, so its outcome is unknown.

    Once the catalog is back, retry with the same txn=(application, id), or get the outcome with `store.resolve`.
    """


class Corrupt(EpochlogError):
    """Stored bytes are damaged or missing: `path` names the file or record, `what` the damage."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path} is damaged: {what}. Run `epochlog verify` and restore the file from a copy")
        self.path = path
        self.what = what

    def __reduce__(self) -> tuple[type[Corrupt], tuple[str, str]]:
        return type(self), (self.path, self.what)


class ReadBackFailed(EpochlogError):
    """A compaction could not read back the rows that it had just written. It deleted the new file; its inputs stay."""


class WriteFailed(EpochlogError):
    """The file system refused a write or a sync; no reader sees any of the data."""


class ReadFailed(EpochlogError):
    """The system refused a read (limit of open files, memory, permissions), or the file system did not answer; this is
    no sign of damage.
    """


# ---- epochs and commits ------------------------------------------------------------------------------------------


class EpochRegressed(InvalidInput):
    """An explicit epoch or label does not exceed the newest epoch issued or sealed."""


class ClockSkew(EpochlogError):
    """The clock has jumped ahead, or an explicit epoch lies more than 10 s ahead of it."""


class EpochExpired(EpochlogError):
    """The epoch is below the table's safe epoch: retention has removed its history."""


class EpochNotCommitted(EpochlogError):
    """The epoch is not complete for the table yet: a commit may still land at or below it."""


class TxnMismatch(EpochlogError):
    """An earlier commit with this (application, id) wrote other tables, or an alter had other changes."""


class CheckpointMismatch(EpochlogError):
    """A stream numbers its micro-batch as one that has landed with other rows: its checkpoint is new, or older than the
    table.
    """


class TxnAborted(EpochlogError):
    """An earlier call of `resolve` has decided that this (application, id) never lands."""


class TxnOutcomeForgotten(EpochlogError):
    """The (application, id) is older than the remembered outcomes."""


class SegmentUnknown(EpochlogError):
    """A segment to commit is unknown, deleted, already committed, or of another store or table."""


class Fenced(EpochlogError):
    """A newer incarnation has taken over; calls of this writer, job or consumer have no effect."""


class BarrierChanged(EpochlogError):
    """The barrier to commit differs from the one that is recorded for the job."""


class UpstreamIncomplete(EpochlogError):
    """An upstream is not complete through the barrier yet."""


class LogHeld(EpochlogError):
    """The log cannot be truncated at that epoch: a snapshot, consumer or job still needs it."""


class LogTruncated(EpochlogError):
    """The log was truncated after that epoch."""


# ---- staged exchange ---------------------------------------------------------------------------------------------


class ChannelUnknown(InvalidInput):
    """The query or the consumer has no channel of that name."""


class ContentMismatch(InvalidInput):
    """A sequence was pushed again with different content."""


class QueryNotFound(ChannelUnknown):
    """There is no query of that name: it was not declared, was dropped, or its lease has expired."""


class EndMarkMismatch(InvalidInput):
    """A channel got a second, different end mark, or a sequence after its end mark."""


class SequenceReleased(EpochlogError):
    """Every consumer has acknowledged the batch, and it was released."""


class BudgetExceeded(EpochlogError):
    """The query's batches fill its disk budget, and its consumers have not acknowledged enough of them in time."""


# ---- server ------------------------------------------------------------------------------------------------------


class InsecureServer(InvalidInput):
    """The server's settings are insecure: a server on a public address needs TLS and a token. A token must be hard to
    guess, lie in a private file, and is never sent unencrypted to another host.
    """


class AccessDenied(EpochlogError):
    """The server does not accept this token, or the token permits only reads."""


class ServerUnavailable(EpochlogError):
    """The server cannot be reached, or did not answer in time; the call can be repeated."""


class ReaderTooSlow(EpochlogError):
    """A reader took no data for too long while data was ready, and was disconnected."""


class CallTimedOut(EpochlogError):
    """A call of the server exceeded its time limit; a write has left no data."""


class TicketRefused(EpochlogError):
    """The ticket is invalid: it is not of this server, or its flight has ended. Plan the flight again."""


class TicketExpired(TicketRefused):
    """The ticket has expired; plan the flight again."""


class BadMessage(EpochlogError):
    """A peer sent an invalid or too large message; none of it was accepted."""


class RolledBack(EpochlogError):
    """A part of a load or job was rolled back to its last commit; later writes are dropped. Go on from `part.state`."""


class Cancelled(EpochlogError):
    """The load or job was stopped, or failed permanently, at its coordinator, or the query of a load of a stream was
    stopped; its uncommitted writes are dropped.
    """


# ---- reading -----------------------------------------------------------------------------------------------------


class NoConsistentEpoch(EpochlogError):
    """No epoch satisfies the policy for these tables; the message names the table to blame, the reason and the lag."""


class StalenessExceeded(NoConsistentEpoch):
    """The newest consistent epoch lags more than the bound allows."""


class TableNotReadable(NoConsistentEpoch):
    """`global` refuses a table that takes no part: it, or an ancestor of it, is creating, parked or too late."""


class SnapshotExpired(EpochlogError):
    """The snapshot's lease has expired, and its files or epochs may be deleted."""


# ---- checkpoints -------------------------------------------------------------------------------------------------


class RestoreRejected(EpochlogError):
    """The recorded states cannot be restored together."""


class RefreshFailed(EpochlogError):
    """A job's refresh function raised an error inside Spark; only its text is available."""


def by_name(name: str, text: str) -> EpochlogError | None:
    """Return the error of this module with the name and text that another process sent; None if its constructor needs
    more than a text.
    """
    error_class = globals().get(name)
    if isinstance(error_class, type) and issubclass(error_class, EpochlogError) and "__init__" not in vars(error_class):
        return error_class(text)
    return None
