"""Events of the log: everything that epochlog logs, with level and fields. docs/observability/README.md lists them.

DEBUG: each commit and barrier. INFO: rarer changes of state. WARNING: work that failed and is tried again, is slow or
is fenced. ERROR: damage or a defect, which needs a person.
"""

from __future__ import annotations

from logging import DEBUG, ERROR, INFO, WARNING

from .log_line import LogEvent

COMMIT = LogEvent(
    "commit",
    "commit",
    DEBUG,
    "store table epoch operation rows took_ms",
    "A commit of a table has landed. took_ms: of the whole commit, which may have several tables.",
)
TABLE_CREATED = LogEvent("table_created", "table", INFO, "store table", "A root table was created.")
TABLE_ALTERED = LogEvent("table_altered", "table", INFO, "store table", "A table's columns or settings were altered.")
TABLE_DROPPED = LogEvent("table_dropped", "table", INFO, "store table", "A root table was dropped.")
TABLE_ADOPTED = LogEvent(
    "table_adopted", "table", INFO, "store table", "An output of a finished job is a root table now."
)
TABLE_CLONED = LogEvent("table_cloned", "table", INFO, "store table source", "A table was created as a clone.")
TABLE_RESTORED = LogEvent(
    "table_restored",
    "table",
    INFO,
    "store table to_epoch epoch",
    "A commit at `epoch` gave a table its rows at `to_epoch` again.",
)
LOG_TRUNCATED = LogEvent(
    "log_truncated", "table", INFO, "store table before", "A table's log was truncated by `truncate_log`."
)
ROWS_EXPIRED = LogEvent("rows_expired", "table", INFO, "store table rows", "Rows whose ttl had passed were deleted.")
COMPACTION = LogEvent(
    "compaction",
    "compaction",
    INFO,
    "store table outcome by took_ms",
    "A compaction, or a part of it, has ended. outcome: done, progress (more is left) or lost. by: its caller.",
)
LOG_PACKED = LogEvent(
    "log_packed",
    "compaction",
    INFO,
    "store table packs took_ms",
    "One file has replaced those of many small commits in the table's log, so many times.",
)
LOG_NOT_PACKED = LogEvent(
    "log_not_packed",
    "compaction",
    WARNING,
    "store table first last error",
    "The commits between two epochs stay single in the table's log, since a file of them is damaged.",
)
WRITE_STALL = LogEvent(
    "write_stall",
    "compaction",
    WARNING,
    "store table segments limit took_ms",
    "A commit compacted its table, because its log was too long. Open the store with maintenance=True in one process, "
    "or call store.compact() now and then, and no commit has to.",
)
COMPACTION_AWAITED = LogEvent(
    "compaction_awaited",
    "compaction",
    WARNING,
    "store table limit_s",
    "A commit waits, at most for `limit_s`, because its table is being compacted elsewhere.",
)
VACUUM = LogEvent(
    "vacuum",
    "vacuum",
    INFO,
    "store deleted_files deleted_bytes kept_files dead_writers took_ms",
    "A vacuum has ended. kept_files: unreachable ones that are kept for now.",
)
FILE_CONTRADICTION = LogEvent(
    "file_contradiction",
    "vacuum",
    ERROR,
    "store path reason",
    "Vacuum keeps a file about which the catalog contradicts itself. Report it, with the output of `epochlog verify`.",
)
FILES_RELEASED = LogEvent(
    "files_released",
    "retention",
    INFO,
    "store table files bytes log_start",
    "Retention has released files; vacuum deletes them. log_start: the truncation mark.",
)
JOB_PARKED = LogEvent(
    "job_parked",
    "retention",
    WARNING,
    "store job epoch table change",
    "A job made no progress, and retention has released the changes of its upstream from `change` on. Rebuild it.",
)
MAINTENANCE_FAILED = LogEvent(
    "maintenance_failed",
    "maintenance",
    WARNING,
    "store subject error",
    "The maintenance of a table, vacuum or shipping failed, and is tried again. Logged once for each error in a row.",
)
BACKUP_DAMAGED = LogEvent(
    "backup_damaged",
    "backup",
    WARNING,
    "store error",
    "An incremental backup of the catalog is damaged; a full one replaces it.",
)
JOB_CREATED = LogEvent("job_created", "job", INFO, "store job upstreams outputs", "A job or a view was created.")
JOB_ALTERED = LogEvent("job_altered", "job", INFO, "store job", "A job's interval, lag or options were altered.")
JOB_DROPPED = LogEvent(
    "job_dropped",
    "job",
    INFO,
    "store job action",
    "A job was dropped. action: dropped, cancelled, or kept (its tables).",
)
JOB_REBUILD = LogEvent("job_rebuild", "job", INFO, "store job", "A rebuild of a job was requested.")
JOB_FINISHED = LogEvent("job_finished", "job", INFO, "store job epoch", "A job has ended its data with a commit.")
VIEWS_REPLACED = LogEvent("views_replaced", "job", INFO, "store views", "Views got new queries.")
JOB_OUTSIDE = LogEvent(
    "job_outside",
    "job",
    WARNING,
    "store tables reason",
    "Reads under `global` leave out the tables of a job, because of its interval.",
)
RUNNER_CLAIMED = LogEvent(
    "runner_claimed",
    "job",
    INFO,
    "store job runner incarnation epoch predecessor",
    "A runner has claimed a job. predecessor: the live runner that it has fenced, if any.",
)
RUNNER_FENCED = LogEvent(
    "runner_fenced",
    "job",
    WARNING,
    "store job error",
    "A runner's step was refused, because another one has taken over.",
)
RUNNER_WAITS = LogEvent(
    "runner_waits", "job", INFO, "store job reason", "A query or a pipeline waits for another runner of the job to end."
)
BARRIER = LogEvent(
    "barrier",
    "job",
    DEBUG,
    "store job epoch rows unchanged took_ms",
    "A job has committed a barrier. unchanged: rows that were left out, because they were equal.",
)
REFRESH_FAILED = LogEvent(
    "refresh_failed",
    "job",
    WARNING,
    "store job epoch error",
    "A refresh, or its commit, failed. epoch: 0 if not known.",
)
JOB_RETRIED = LogEvent(
    "job_retried",
    "job",
    WARNING,
    "store job failures retry_ms error",
    "A query or a pipeline tries a failed job again. failures: in a row.",
)
JOB_ENDED = LogEvent(
    "job_ended",
    "job",
    WARNING,
    "store job error",
    "A query or a pipeline has ended its part in a job: another runner has it, it is parked or dropped, or it failed "
    "too often.",
)
REFRESH_RESTARTED = LogEvent(
    "refresh_restarted",
    "job",
    INFO,
    "store job reason",
    "A view was replaced, or is to be rebuilt, during its step, which begins again.",
)
STEP_NOT_SHOWN = LogEvent(
    "step_not_shown", "job", INFO, "store job epoch error", "Spark's UI does not show a step, which has committed."
)
VIEW_KEY = LogEvent(
    "view_key",
    "view",
    WARNING,
    "store view reason",
    "A view was made whose steps may fail: its query does not imply its key.",
)
VIEW_KEY_NULLABLE = LogEvent(
    "view_key_nullable",
    "view",
    WARNING,
    "store view reason",
    "A view was made whose steps fail once its key is NULL, which a column of it can be.",
)
VIEW_RECOMPUTED = LogEvent(
    "view_recomputed",
    "view",
    WARNING,
    "view error",
    "All rows of a view are recomputed, because its touched values cannot be computed.",
)
VIEW_STATE_DISAGREES = LogEvent(
    "view_state_disagrees",
    "view",
    ERROR,
    "view reason",
    "The changes of a step do not fit the view's state: all its rows are recomputed, and its state is made anew.",
)
VIEW_STATE_LOST = LogEvent(
    "view_state_lost",
    "view",
    WARNING,
    "view error",
    "A file of a view's state is missing or damaged, and the state is made anew; or a state cannot be made, or takes "
    "no changes, and the view goes on without one until it is rebuilt.",
)
STEP_LEFT_DRIVER = LogEvent(
    "step_left_driver",
    "view",
    INFO,
    "view error",
    "A step of a view runs on Spark: the driver cannot compute it, or not within its budget. The next 20 begin there.",
)
ENGINE_RESET = LogEvent(
    "engine_reset", "view", WARNING, "error", "An internal error of DuckDB has ended its database, which is made again."
)
ATTEMPT_ABORTED = LogEvent(
    "attempt_aborted", "coordinator", WARNING, "job barrier_id reason", "An attempt of a load or job was aborted."
)
REPORT_REFUSED = LogEvent(
    "report_refused", "coordinator", WARNING, "job part error", "The report of a part for a barrier was not accepted."
)
OUTCOME_UNKNOWN = LogEvent(
    "outcome_unknown", "coordinator", WARNING, "job error", "The outcome of a commit is unknown, and is resolved next."
)
WORKER_SILENT = LogEvent(
    "worker_silent", "coordinator", WARNING, "worker silent_s", "A silent worker was disconnected."
)
COORDINATOR_SILENT = LogEvent(
    "coordinator_silent",
    "worker",
    WARNING,
    "location silent_s",
    "The coordinator was silent; its stream is made again.",
)
COORDINATOR_REFUSED = LogEvent(
    "coordinator_refused", "worker", WARNING, "location error", "A message of the coordinator was not understood."
)
COORDINATOR_LOST = LogEvent(
    "coordinator_lost",
    "worker",
    WARNING,
    "store job location",
    "No coordinator answers, so the driver runs its job alone until one does.",
)
COORDINATOR_BACK = LogEvent(
    "coordinator_back", "worker", INFO, "store job location", "The coordinator answers again, and runs the job."
)
STEP_ABANDONED = LogEvent(
    "step_abandoned",
    "worker",
    INFO,
    "store job reason",
    "A step under the coordinator was given up; the next step goes on from the catalog.",
)
CONSUMER_CREATED = LogEvent("consumer_created", "consumer", INFO, "store consumer tables", "A consumer was created.")
CONSUMER_RESET = LogEvent("consumer_reset", "consumer", INFO, "store consumer to", "A consumer was moved, and fenced.")
CONSUMER_DROPPED = LogEvent("consumer_dropped", "consumer", INFO, "store consumer", "A consumer was dropped.")
CHANGES_LOST = LogEvent(
    "changes_lost",
    "consumer",
    WARNING,
    "store table commits after",
    "At least `commits` commits after an epoch were truncated before a stream without a consumer had read them.",
)
TAG_CREATED = LogEvent("tag_created", "tag", INFO, "store tag tables", "A tag keeps the epochs of these tables.")
TAG_DROPPED = LogEvent("tag_dropped", "tag", INFO, "store tag", "A tag was dropped.")
RUNNER_LEFT = LogEvent(
    "runner_left",
    "session",
    WARNING,
    "error",
    "A runner was not taken out of a damaged record; others wait for its lease to expire.",
)
LEASES_LEFT = LogEvent(
    "leases_left", "session", WARNING, "error", "Leases could not be ended when the store was closed; they expire."
)
INTENT_LEFT = LogEvent(
    "intent_left",
    "session",
    WARNING,
    "store table error",
    "The files of an aborted write are kept until its write intent expires.",
)
LINEAGE_FAILED = LogEvent(
    "lineage_failed",
    "lineage",
    WARNING,
    "store error",
    "An event of OpenLineage could not be made or sent, and is lost. A failing backend is logged once in a row.",
)
LINEAGE_DROPPED = LogEvent(
    "lineage_dropped",
    "lineage",
    WARNING,
    "store waiting",
    "Events of OpenLineage are dropped: too many wait for the backend, or the store was closed before it took them.",
)
LINEAGE_RECOVERED = LogEvent(
    "lineage_recovered", "lineage", INFO, "store", "The backend of OpenLineage takes events again."
)
SERVER_STARTED = LogEvent("server_started", "server", INFO, "store location", "A store is served.")
SERVER_STOPPED = LogEvent("server_stopped", "server", INFO, "store location", "A store is not served any more.")
SERVER_OPEN = LogEvent(
    "server_open",
    "server",
    WARNING,
    "store location",
    "A server has no token: every user of this machine can read and write the store. Give token=.",
)
CALL_FAILED = LogEvent(
    "call_failed",
    "server",
    ERROR,
    "error",
    "A call failed by damage, or by a file system; the client got a message without the paths.",
)
CALL_REFUSED = LogEvent(
    "call_refused",
    "server",
    WARNING,
    "store door reason host calls",
    "A call was refused. reason: token (none, or an unknown one), session (a browser has not signed in), role or "
    "limit. calls: of the host since its last line; there is one a minute.",
)
EXCHANGE_FILE_MISSING = LogEvent(
    "exchange_file_missing", "exchange", ERROR, "query channel seq path", "The file of a pushed batch is missing."
)
RETRY = LogEvent(
    "retry", "retry", WARNING, "what error", "Work in the background failed, and is tried again: `what` names it."
)
DEFECT = LogEvent(
    "defect",
    "defect",
    ERROR,
    "what error",
    "An unexpected error; its traceback follows the line. Report it.",
    traceback=True,
)

EVENTS = tuple(value for value in globals().values() if isinstance(value, LogEvent))
"""Every event, in the order of the page."""
