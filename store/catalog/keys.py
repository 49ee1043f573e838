"""Key space of the catalog: the ordered keys of all records (docs/formats/catalog.md).

    meta/store, meta/head                   one store record; the counters that every commit advances
    meta/exchange                           of earlier versions, without a meaning
    meta/reads                              the policy of reads that name none, if the store has its own
    meta/clocks                             clocks of the machines that committed last
    name/<table>, jobname/<job>             names to ids
    table/<id>, head/<id>, runs/<id>        a table's definition; its TableVersion; its sorted runs
    schema/<id>/<epoch>                     a version of an altered table's schema, by the epoch of the alter
    log/<id>/<epoch>, hist/<id>/<epoch>     log entries with segments; permanent record of a commit
    job/<id>                                a job: lineage, position, incarnation, recorded barrier
    pace/<id>                               times of a view's newest steps
    past/<id>                               direction of a table's history, where it chooses its own length
    load/<load>, load/<load>/<n>            a load: its tables, incarnation and checkpoint; the state of its n-th part
    kept/<id>/<epoch>                       the deletes that are kept from this commit on, of a table with a sequence
    made/<id>/<n>                           staged segments of an output from the n-th chunk of a backfill
    state/<id>, state/<id>/<n>              the state of the view with this output; the n-th of its state tables
    bound/<epoch>                           forced boundaries
    hold/<id>/<holder>                      a hold: the epochs of a table that are kept for a holder
    lease/<lease>                           the expiry of one open store's lease, by which its holds live
    consumer/<name>                         a consumer: its tables, position, incarnation and policies
    used/<id>/<file>                        committed segments of `seal`: each is committed at most once
    intent/<intent>                         a write intent: the writer of the files with its name
    share/<id>/<file>                       files of a table that other tables reach, or did
    gone/<id>/<file>                        unreachable files that vacuum has not deleted yet
    compact/<id>, compact/<id>/<n>          a compaction under way; each of its finished subcompactions
    trace/<id>/<n>                          past compactions, and their reasons
    trouble/<id>                            the failure of a table's newest maintenance
    txn/<app>\\0<id>, txnapp/<app>           outcomes of idempotent transactions

Ids are 8 and epochs 16 hex digits wide, so byte order is numeric order.
"""

from __future__ import annotations

from epochlog.store.env.paths import name_of

STORE = b"meta/store"
HEAD = b"meta/head"
READS = b"meta/reads"
CLOCKS = b"meta/clocks"
COMPACT_PREFIX = b"compact/"
CONSUMER_PREFIX = b"consumer/"
UNREACHABLE_PREFIX = b"gone/"
HIST_PREFIX = b"hist/"
HOLD_PREFIX = b"hold/"
INTENT_PREFIX = b"intent/"
JOB_PREFIX = b"job/"
KEPT_PREFIX = b"kept/"
LEASE_PREFIX = b"lease/"
LOAD_PREFIX = b"load/"
LOG_PREFIX = b"log/"
STAGED_PREFIX = b"made/"
RUNS_PREFIX = b"runs/"
SCHEMA_PREFIX = b"schema/"
SHARE_PREFIX = b"share/"
STATE_PREFIX = b"state/"
TABLE_PREFIX = b"table/"
TRACE_PREFIX = b"trace/"
TROUBLE_PREFIX = b"trouble/"
TXN_PREFIX = b"txn/"
TXN_APP_PREFIX = b"txnapp/"
USED_PREFIX = b"used/"


def table_prefix(prefix: bytes, table_id: int) -> bytes:
    """Return the prefix of one table's keys under a prefix such as LOG_PREFIX."""
    return prefix + b"%08x/" % table_id


def name_key(table: str) -> bytes:
    return b"name/" + table.encode()


def job_name_key(job: str) -> bytes:
    return b"jobname/" + job.encode()


def table_key(table_id: int) -> bytes:
    return b"table/%08x" % table_id


def head_key(table_id: int) -> bytes:
    return b"head/%08x" % table_id


def schema_key(table_id: int, epoch: int) -> bytes:
    return b"schema/%08x/%016x" % (table_id, epoch)


def log_key(table_id: int, epoch: int) -> bytes:
    return b"log/%08x/%016x" % (table_id, epoch)


def hist_key(table_id: int, epoch: int) -> bytes:
    return b"hist/%08x/%016x" % (table_id, epoch)


def job_key(job_id: int) -> bytes:
    return b"job/%08x" % job_id


def step_times_key(job_id: int) -> bytes:
    return b"pace/%08x" % job_id


def kept_history_key(table_id: int) -> bytes:
    return b"past/%08x" % table_id


def load_key(load: str) -> bytes:
    return b"load/" + load.encode()


def load_part_key(load: str, index: int) -> bytes:
    return b"load/" + load.encode() + b"/%08x" % index


def kept_key(table_id: int, epoch: int) -> bytes:
    return b"kept/%08x/%016x" % (table_id, epoch)


def staged_key(table_id: int, number: int) -> bytes:
    return b"made/%08x/%08x" % (table_id, number)


def state_key(table_id: int) -> bytes:
    return b"state/%08x" % table_id


def state_table_key(table_id: int, number: int) -> bytes:
    return b"state/%08x/%08x" % (table_id, number)


def bound_key(epoch: int) -> bytes:
    return b"bound/%016x" % epoch


def hold_key(table_id: int, holder: str) -> bytes:
    return b"hold/%08x/" % table_id + holder.encode()


def lease_key(lease: str) -> bytes:
    return b"lease/" + lease.encode()


def consumer_key(name: str) -> bytes:
    return b"consumer/" + name.encode()


def used_key(table_id: int, path: str) -> bytes:
    """Return the `used/` key of a segment. The last part of its path is a unique name."""
    return b"used/%08x/" % table_id + name_of(path).encode()


def unreachable_key(table_id: int, path: str) -> bytes:
    return b"gone/%08x/" % table_id + name_of(path).encode()


def share_key(table_id: int, path: str) -> bytes:
    return b"share/%08x/" % table_id + name_of(path).encode()


def intent_key(intent: str) -> bytes:
    return b"intent/" + intent.encode()


def runs_key(table_id: int) -> bytes:
    return b"runs/%08x" % table_id


def compact_key(table_id: int) -> bytes:
    return b"compact/%08x" % table_id


def subcompaction_key(table_id: int, number: int) -> bytes:
    return b"compact/%08x/%08x" % (table_id, number)


def trace_key(table_id: int, number: int) -> bytes:
    return b"trace/%08x/%016x" % (table_id, number)


def trouble_key(table_id: int) -> bytes:
    return b"trouble/%08x" % table_id


def txn_prefix(app: str) -> bytes:
    """Return the prefix of the keys of an application's outcomes."""
    return TXN_PREFIX + app.encode() + b"\0"


def txn_key(app: str, txn_id: int) -> bytes:
    return txn_prefix(app) + b"%016x" % txn_id


def txn_app_key(app: str) -> bytes:
    return b"txnapp/" + app.encode()


def key_epoch(key: bytes) -> int:
    """Return the epoch, or the transaction id, at the end of a log, hist, kept, bound or txn key."""
    return int(key[-16:], 16)


def after_prefix(prefix: bytes) -> bytes:
    """Return the first key after all keys with the prefix."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
