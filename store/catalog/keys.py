"""Key space of the catalog: the ordered keys that records lie under (docs/formats/catalog.md).

    meta/store, meta/head                   one store record; the counters that every commit moves
    meta/exchange                           the newest server that keeps end marks in a coordinator
    name/<table>, jobname/<job>             names to ids
    table/<id>, head/<id>, runs/<id>        a table's definition; its TableVersion; its sorted runs
    log/<id>/<epoch>, hist/<id>/<epoch>     log entries with segments; what is remembered of a commit for good
    job/<id>                                a job: lineage, position, incarnation, recorded barrier
    load/<load>, load/<load>/<n>            a load: its tables, incarnation and checkpoint; the state of its n-th part
    made/<id>/<n>                           what a job has made of an output in the n-th piece of a snapshot
    bound/<epoch>                           forced boundaries
    hold/<id>/<holder>                      what must be kept, and for whom
    lease/<lease>                           until when the holds live that one open store keeps
    consumer/<name>                         a consumer: its tables, position, incarnation and policies
    used/<id>/<file>                        sealed segments that have been committed: they land once
    intent/<intent>                         who may be writing files that are named for it
    gone/<id>/<file>                        files that nothing reaches any more, until vacuum deletes them
    compact/<id>, compact/<id>/<n>          a compaction under way; each of its pieces that is done
    trace/<id>/<n>                          compactions that have been, and why
    trouble/<id>                            what failed when maintenance looked after a table last
    txn/<app>\\0<id>, txnapp/<app>           outcomes for exactly-once commits

Ids are 8 and epochs 16 hex digits wide, so byte order is numeric order.
"""

from __future__ import annotations

from epochlog.store.env.paths import name_of

STORE = b"meta/store"
HEAD = b"meta/head"


def name_key(table: str) -> bytes:
    return b"name/" + table.encode()


def job_name_key(job: str) -> bytes:
    return b"jobname/" + job.encode()


def table_key(table_id: int) -> bytes:
    return b"table/%08x" % table_id


def head_key(table_id: int) -> bytes:
    return b"head/%08x" % table_id


def log_key(table_id: int, epoch: int) -> bytes:
    return b"log/%08x/%016x" % (table_id, epoch)


def hist_key(table_id: int, epoch: int) -> bytes:
    return b"hist/%08x/%016x" % (table_id, epoch)


def job_key(job_id: int) -> bytes:
    return b"job/%08x" % job_id


def load_key(load: str) -> bytes:
    return b"load/" + load.encode()


def load_part_key(load: str, index: int) -> bytes:
    return b"load/" + load.encode() + b"/%08x" % index


def made_key(table_id: int, number: int) -> bytes:
    return b"made/%08x/%08x" % (table_id, number)


def bound_key(epoch: int) -> bytes:
    return b"bound/%016x" % epoch


def hold_key(table_id: int, holder: str) -> bytes:
    return b"hold/%08x/" % table_id + holder.encode()


def lease_key(lease: str) -> bytes:
    return b"lease/" + lease.encode()


def consumer_key(name: str) -> bytes:
    return b"consumer/" + name.encode()


def used_key(table_id: int, path: str) -> bytes:
    """Return the `used/` key of a segment's path, the last part of which is a unique name."""
    return b"used/%08x/" % table_id + name_of(path).encode()


def gone_key(table_id: int, path: str) -> bytes:
    return b"gone/%08x/" % table_id + name_of(path).encode()


def intent_key(intent: str) -> bytes:
    return b"intent/" + intent.encode()


def runs_key(table_id: int) -> bytes:
    return b"runs/%08x" % table_id


def compact_key(table_id: int) -> bytes:
    return b"compact/%08x" % table_id


def piece_key(table_id: int, number: int) -> bytes:
    return b"compact/%08x/%08x" % (table_id, number)


def trace_key(table_id: int, number: int) -> bytes:
    return b"trace/%08x/%016x" % (table_id, number)


def trouble_key(table_id: int) -> bytes:
    return b"trouble/%08x" % table_id


def txn_key(app: str, txn_id: int) -> bytes:
    return b"txn/" + app.encode() + b"\0%016x" % txn_id


def txn_app_key(app: str) -> bytes:
    return b"txnapp/" + app.encode()


def key_epoch(key: bytes) -> int:
    """Return the epoch (or transaction id) at the end of a log, hist, bound or txn key."""
    return int(key[-16:], 16)


def after_prefix(prefix: bytes) -> bytes:
    """Return the first key past all keys with the prefix."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
