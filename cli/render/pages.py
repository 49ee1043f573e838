"""Pages for people: tables and lines, made from the facts that --json prints (pure, made of rich's types)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from epochlog.facts.store import Facts
from epochlog.facts.text import (
    NONE,
    bytes_text,
    count_text,
    epoch_text,
    lag_text,
    listed,
    one_line,
    safe,
    settings_text,
    unchanged_text,
)
from epochlog.store.types.epoch import show_span

from .graph import graph
from .json_values import cell

STATE_STYLES = {
    "creating": "yellow",
    "parked": "yellow",
    "away": "yellow",
    "expired": "red",
    "lost": "bold red",
    "dropped": "red",
    "open": "green",
    "failed": "bold red",
    "running": "green",
    "finished": "dim",
    "delete": "red",
    "update_preimage": "dim",
    "insert": "green",
    "update_postimage": "green",
}


RIGHT = ">"
"""Prefix of the headers of right-aligned columns."""


def grid(headers: Sequence[str], rows: Iterable[Sequence[Text | str]]) -> Table:
    """Build a table with one line per row, folded on a narrow terminal."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for header in headers:
        side = "right" if header.startswith(RIGHT) else "left"
        table.add_column(Text(safe(header.removeprefix(RIGHT))), justify=side, overflow="fold")
    for row in rows:
        table.add_row(*(part if isinstance(part, Text) else Text(safe(part)) for part in row))
    return table


def state(word: str) -> Text:
    """Return a state with its colour."""
    return Text(word, STATE_STYLES.get(word, ""))


def tables_page(tables: Sequence[Facts]) -> Table:
    """Build the page of `ls`."""
    headers = ("table", "state", "job", "committed epoch", ">rows", ">bytes", ">segments", ">runs")
    rows = (
        (
            table["name"],
            state(table["state"]),
            table["job"] or NONE,
            epoch_text(table["max_committed_epoch"]),
            count_text(table["rows"]),
            bytes_text(table["bytes"]),
            count_text(table["log_segments"]),
            count_text(table["runs"]),
        )
        for table in tables
    )
    return grid(headers, rows)


def status_page(facts: Facts) -> list[Table | str]:
    """Build the page of `status`: the tables, then the jobs."""
    headers = ("table", "state", "committed epoch", ">lag", ">rows")
    rows = (
        (
            table["name"],
            state(table["state"]),
            epoch_text(table["max_committed_epoch"]),
            lag_text(table["lag_ms"]),
            count_text(table["rows"]),
        )
        for table in facts["tables"]
    )
    leads = f", which leads the clock by {show_span(facts['leads_ms'])}" if facts["leads_ms"] else ""
    head = f"{facts['root']} at {facts['at']}, last epoch {epoch_text(facts['last_epoch'])}{leads}"
    parts: list[Table | str] = [f"{head}\n{settings_text(facts)}", grid(headers, rows), *_maintenance(facts["tables"])]
    if facts["jobs"]:
        headers = ("job", "state", "committed epoch", ">lag", ">component", "waits for")
        parts.append(grid(headers, ((job["name"], *_progress_cells(job)) for job in facts["jobs"])))
        parts.extend(_outside_reasons(facts["jobs"]))
    return [*parts, *_views_table(facts["jobs"]), *loads_table(facts["loads"]), *tags_table(facts["tags"])]


def loads_table(loads: Sequence[Facts]) -> Iterable[Table]:
    """Yield a table of the loads, if there are any."""
    if loads:
        headers = ("load", "state", "writes", ">parts", ">finished", ">checkpoint", ">incarnation")
        yield grid(headers, (_load_row(load) for load in loads))


def _load_row(load: Facts) -> tuple[Text | str, ...]:
    counts = (load[name] for name in ("parts", "finished_parts", "checkpoint", "incarnation"))
    return load["name"], state(load["state"]), ", ".join(load["tables"]), *(f"{count:,}" for count in counts)


def tags_table(tags: Sequence[Facts]) -> Iterable[Table]:
    """Yield a table of the tags, if there are any."""
    if tags:
        yield grid(("tag", "tables", "epochs", "kept until", ">left"), (_tag_row(tag) for tag in tags))


def _tag_row(tag: Facts) -> tuple[str, ...]:
    epochs = sorted(set(tag["epochs"].values()))
    at = epoch_text(epochs[0]) if len(epochs) == 1 else f"{epochs[0]} to {epochs[-1]}"
    left = NONE if tag["left_ms"] is None else show_span(tag["left_ms"])
    return tag["name"], listed(list(tag["epochs"])), at, tag["until"] or "for good", left


def _maintenance(tables: Sequence[Facts]) -> Iterable[Table]:
    """Yield a table of the tables' maintenance, if there is any: backpressure, running compactions, failures."""
    rows: list[tuple[str, Text | str]] = []
    for table in tables:
        work, trouble = table["compaction"], table["trouble"]
        if table["pressure"]:
            rows.append((table["name"], Text(table["pressure"], "yellow")))
        if work:
            done = f"{work['done']:,} of {work['pieces']:,} subcompactions"
            rows.append((table["name"], f"compaction by {work['by']} since {work['since']}, {done}: {work['reason']}"))
        if trouble:
            rows.append(
                (table["name"], Text(safe(f"{trouble['by']} failed at {trouble['at']}: {trouble['error']}"), "red"))
            )
    if rows:
        yield grid(("table", "maintenance"), rows)


def jobs_page(jobs: Sequence[Facts]) -> list[Table | str]:
    """Build the page of `jobs`: the graph of tables and jobs, then details of each job."""
    by_name = {job["name"]: job for job in jobs}
    drawn = (
        (line.text, *_progress_cells(by_name[line.name])) if line.kind == "job" else (line.text, "", "", "", "", "")
        for line in graph(jobs)
    )
    headers = ("graph", "state", "committed epoch", ">lag", ">component", "waits for")
    each = ("job", "reads", "writes", ">every", ">incarnation", "barrier", "last error")
    running = [job for job in jobs if job["runner"]]
    runners = [grid(("job", "run by", "process", "on", "since"), map(_runner_row, running))] if running else []
    details = grid(each, (_job_row(job) for job in jobs))
    return [grid(headers, drawn), *_outside_reasons(jobs), details, *_views_table(jobs), *runners]


def _views_table(jobs: Sequence[Facts]) -> Iterable[Table]:
    """Yield a table of the queries of views, if there are any."""
    views = [job for job in jobs if job["sql"] is not None]
    if views:
        yield grid(("view", "query"), ((job["name"], one_line(job["sql"])) for job in views))


def _outside_reasons(jobs: Sequence[Facts]) -> Iterable[str]:
    """Yield the reasons why jobs are outside, for jobs whose state does not show it."""
    reasons = [job["outside"] for job in jobs if _is_outside(job)]
    if reasons:
        yield f"not counted under global: {safe('; '.join(reasons))}"


def _is_outside(job: Facts) -> bool:
    """Return True if the job is outside for another reason than a creating or parked job."""
    return bool(job["outside"]) and not job["outside"].rstrip(")").endswith(("it is creating", "it is parked"))


def _progress_cells(job: Facts) -> tuple[Text | str, ...]:
    """Return the cells of a job's state, position, lag and component, and the reason why it waits."""
    job_state = state(job["state"])
    if job["snapshot"]:
        job_state.append(
            f", {job['snapshot']['rows']:,} of at most {job['snapshot']['of_at_most']:,} rows in", "yellow"
        )
    if job["rebuilding"]:
        job_state.append(", rebuilding", "yellow")
    if job["draining"]:
        job_state.append(", draining", "yellow")
    if _is_outside(job):
        job_state.append(", outside", "yellow")
    failed = job["waits_for"]["kind"] == "failed"
    waits = Text(safe(job["waits_for"]["text"]), "red" if failed else "")
    return job_state, epoch_text(job["committed_epoch"]), lag_text(job["lag_ms"]), str(job["component"]), waits


def _job_row(job: Facts) -> tuple[Text | str, ...]:
    barrier = job["barrier"]
    barrier_text = (
        f"{barrier['kind']} {barrier['prev']} → {barrier['curr']}, {show_span(barrier['age_ms'])}" if barrier else NONE
    )
    every, incarnation = show_span(job["interval_ms"]), count_text(job["incarnation"])
    every += f" = {job['interval']:,} boundaries" * (job["interval"] > 1)
    return (
        job["name"],
        ", ".join(job["upstreams"]),
        ", ".join(job["outputs"]),
        every,
        incarnation,
        barrier_text,
        _error_cell(job),
    )


def _runner_row(job: Facts) -> tuple[str, ...]:
    """Return the cells of a job's runner and its start time."""
    runner = job["runner"]
    return job["name"], runner["kind"], str(runner["pid"]), one_line(runner["host"]), runner["since"]


def _error_cell(job: Facts) -> Text:
    error = job["lost"] or job["last_error"]
    return Text(one_line(error), "red") if error else Text(NONE)


def description_page(facts: Facts) -> list[Table | str]:
    """Build the page of `describe`."""
    log = facts["log"]
    named = [
        ("state", state(facts["state"])),
        ("job", f"{facts['job']}, reads {', '.join(facts['upstreams'])}" if facts["job"] else NONE),
        *([("query", one_line(facts["sql"]))] if facts["sql"] is not None else []),
        ("run by", _runner_text(facts["runner"])),
        ("read by", ", ".join(facts["read_by"]) or NONE),
        ("committed epoch", epoch_text(facts["max_committed_epoch"])),
        ("readable from", epoch_text(facts["safe_epoch"]) if facts["safe_epoch"] else "the beginning"),
        ("states kept by", facts["held_back"]["safe_epoch"]["reason"]),
        ("log kept by", facts["held_back"]["log_start"]["reason"]),
        ("lag", lag_text(facts["lag_ms"])),
        ("rows", count_text(facts["rows"])),
        ("bytes", bytes_text(facts["bytes"])),
        ("log", _log_text(log)),
        ("retention", _retention_text(facts["retention"])),
        *([("sequence", _sequence_text(facts))] if facts["sequence_by"] is not None else []),
        *(("check", f"{name}: {text}") for name, text in facts["checks"].items()),
        *([("rows expire", _ttl_text(facts))] if facts["ttl_column"] is not None else []),
        ("compaction", f"at {facts['compact_segments']:,} segments; write stall at {facts['max_segments']:,}"),
        ("changelog", _changelog_text(facts)),
    ]
    head = Table.grid(padding=(0, 2))
    for name, value in named:
        head.add_row(Text(name, "dim"), value if isinstance(value, Text) else Text(safe(value)))
    schema = grid(("column", "type", "null", ">key"), (_column_row(column) for column in facts["schema"]))
    parts: list[Table | str] = [head, schema]
    if facts["run_list"]:
        headers = ("run through epoch", ">rows", ">parts", ">replaced rows", ">bytes")
        parts.append(grid(headers, (_run_row(run) for run in facts["run_list"])))
    if facts["holds"]:
        headers = ("held by", "log after", "states from", ">age", "lease ends")
        parts.append(grid(headers, (_hold_row(hold) for hold in facts["holds"])))
    else:
        parts.append("no holds")
    if facts["writers"]:
        headers = ("write intent", "process", ">age", "lease ends")
        parts.append(grid(headers, (_writer_row(writer) for writer in facts["writers"])))
    return parts


def _runner_text(runner: Facts | None) -> str:
    if runner is None:
        return NONE
    return f"a {runner['kind']} of process {runner['pid']} on {one_line(runner['host'])} since {runner['since']}"


def _writer_row(writer: Facts) -> tuple[str, ...]:
    intent = f"{writer['kind']} {writer['intent'][:8]}"
    return intent, writer["by"] or NONE, show_span(writer["age_ms"]), writer["expires"]


def _log_text(log: Facts) -> str:
    entries = f"{log['entries']:,} entries, {log['segments']:,} segments, {bytes_text(log['bytes'])}"
    begins = f"; begins after {epoch_text(log['start_epoch'])}" if log["start_epoch"] else ""
    return f"{entries}{_packs_text(log)}{begins}; {log['unfolded_segments']:,} segments in L0"


def _packs_text(log: Facts) -> str:
    if not log["packs"]:
        return ""
    commits, files, size = log["packed_commits"], log["packed_files"], bytes_text(log["packed_bytes"])
    single = f"{log['entries'] - commits:,} commits, {log['files'] - files:,} files"
    return f"; packs: {log['packs']:,} of {commits:,} commits, {files:,} files, {size}; single: {single}"


def _sequence_text(facts: Facts) -> str:
    kept = show_span(round(facts["retention"]["tombstone_s"] * 1000))
    return f"by {facts['sequence_by']}; deletes win over older changes for {kept}"


def _retention_text(retention: Facts) -> str:
    history, log = (show_span(round(retention[name] * 1000)) for name in ("history_s", "log_s"))
    auto = retention["history_auto"]
    if auto is None:
        return f"history {history}, log {log}"
    sizes = f"in its runs replaced rows take {bytes_text(auto['bytes'])}, the others {bytes_text(auto['live_bytes'])}"
    direction = "up to 2 d" if auto["grows"] else "shrinks to 1 h"
    return f"history {history} (auto, {direction}: {sizes}), log {log}"


def _ttl_text(facts: Facts) -> str:
    return f"{show_span(round(facts['ttl_s'] * 1000))} after {facts['ttl_column']}"


def _changelog_text(facts: Facts) -> str:
    """Describe the changelog setting, and for an output the treatment of unchanged rows."""
    stored = "upsert: old rows are looked up"
    if facts["full_since"] is not None:
        since = f", after {epoch_text(facts['full_since'])}" if facts["full_since"] else ""
        stored = f"full: old rows are stored{since}"
    return stored + unchanged_text(facts["drop_unchanged"])


def _column_row(column: Facts) -> tuple[str, ...]:
    key = str(column["key"]) if column["key"] else ""
    return column["name"], column["type"], "yes" if column["nullable"] else "no", key


def _run_row(run: Facts) -> tuple[str, ...]:
    counts = (count_text(run[name]) for name in ("rows", "parts", "history_rows"))
    return epoch_text(run["until"]), *counts, bytes_text(run["bytes"])


def _hold_row(hold: Facts) -> tuple[str, ...]:
    at = (NONE if hold[name] is None else epoch_text(hold[name]) for name in ("log_epoch", "read_epoch"))
    return hold["holder"], *at, show_span(hold["age_ms"]), hold["expires"] or NONE


def commits_page(commits: Iterable[Facts]) -> Table:
    """Build the page of `history`."""
    headers = ("epoch", "operation", "job or transaction", ">upserted", ">deleted", ">segments", ">bytes")
    return grid(headers, (_commit_row(commit) for commit in commits))


def _commit_row(commit: Facts) -> tuple[str, ...]:
    job = f"{commit['job']} ({commit['engine']})" if commit["engine"] else commit["job"]
    by = job or (f"{txn['application']} {txn['id']}" if (txn := commit["txn"]) else NONE)
    counts = (count_text(commit[name]) for name in ("rows_upserted", "rows_deleted", "segments"))
    return epoch_text(commit["epoch"]), commit["operation"], by, *counts, bytes_text(commit["bytes"])


def rows_page(names: Sequence[str], numeric: Sequence[bool], rows: Iterable[Facts]) -> Table:
    """Build a grid of rows or changes. numeric: True for each right-aligned column."""
    headers = [f"{RIGHT}{name}" if right else name for name, right in zip(names, numeric, strict=True)]
    return grid(headers, ([_cell(name, row[name]) for name in names] for row in rows))


def _cell(name: str, value: Any) -> Text:
    if value is None:
        return Text("null", "dim")
    return state(value) if name == "_change_type" else Text(safe(cell(value)))


def consumers_page(consumers: Sequence[Facts]) -> Table:
    """Build the page of `consumers`."""
    headers = ("consumer", "reads", "state", "position", ">lag", ">commits", "held until", "too old", ">incarnation")
    return grid(headers, (_consumer_row(consumer) for consumer in consumers))


def _consumer_row(consumer: Facts) -> tuple[Text | str, ...]:
    at = epoch_text(consumer["position"]) if consumer["position"] is not None else "the rows first"
    lag = NONE if consumer["lag_ms"] is None else lag_text(consumer["lag_ms"])
    commits = NONE if consumer["lag_commits"] is None else f"{consumer['lag_commits']:,}"
    held = consumer["until"] or (NONE if consumer["state"] in ("expired", "lost", "dropped") else "it is dropped")
    if consumer["state"] == "open" or consumer["position"] is None:
        held = NONE if consumer["position"] is None else "closed"
    return (
        consumer["name"],
        ", ".join(consumer["tables"]),
        state(consumer["state"]),
        at,
        lag,
        commits,
        held,
        consumer["too_old"],
        str(consumer["incarnation"]),
    )


def epochs_page(facts: Facts) -> list[Table | str]:
    """Build the page of `read --epochs`."""
    rows = ((table["table"], epoch_text(table["epoch"]), lag_text(table["lag_ms"])) for table in facts["tables"])
    return [grid(("table", "epoch", ">lag"), rows), f"token {facts['token']}"]


OUTCOMES = {
    "done": "compacted",
    "nothing": "not due",
    "busy": "another process compacts it",
    "progress": "begun",
    "lost": "another process has compacted it",
}


def compactions_page(compactions: Sequence[Facts]) -> Table:
    """Build the page of `compact`."""
    headers = ("table", "", ">segments to merge", ">bytes before", ">bytes after")
    rows = (
        (
            compaction["table"],
            OUTCOMES[compaction["outcome"]],
            f"{compaction['unfolded_segments_before']:,} → {compaction['unfolded_segments_after']:,}",
            bytes_text(compaction["bytes_before"]),
            bytes_text(compaction["bytes_after"]),
        )
        for compaction in compactions
    )
    return grid(headers, rows)


def traces_page(compactions: Sequence[Facts]) -> Table:
    """Build the page of `history --compactions`: compactions and passes of packing."""
    headers = ("at", "why", "by", ">runs", ">segments", ">rows", ">bytes read", ">bytes written", ">took")
    rows = (
        (
            *(compaction[name] for name in ("at", "reason", "by")),
            *_input_cells(compaction),
            *(bytes_text(compaction[name]) for name in ("bytes_in", "bytes_out")),
            show_span(compaction["took_ms"]),
        )
        for compaction in compactions
    )
    return grid(headers, rows)


def _input_cells(compaction: Facts) -> tuple[str, ...]:
    if "packs" in compaction:
        return NONE, f"{compaction['files_in']:,} → {compaction['files_out']:,}", NONE
    runs, segments = (count_text(compaction[name]) for name in ("runs_in", "segments_in"))
    return runs, segments, f"{compaction['rows_in']:,} → {compaction['rows_out']:,}"


def vacuuming_page(facts: Facts) -> list[Table | str]:
    """Build the page of `vacuum`."""
    verb = "would be deleted" if facts["dry_run"] else "deleted"
    parts: list[Table | str] = []
    for name, head in (("deleted", verb), ("kept", "kept, unreachable"), ("foreign", "foreign file")):
        if facts[name]:
            headers = (head, ">bytes") if name == "foreign" else (head, ">bytes", "why", "at the earliest")
            parts.append(grid(headers, (_file_row(file) for file in facts[name])))
    if facts["revoked"]:
        dead = (
            (f"{intent['kind']} {intent['intent'][:8]}", intent["by"] or NONE, intent["expired"])
            for intent in facts["revoked"]
        )
        parts.append(grid(("dead writer", "process", "lease ended"), dead))
    count, kept_count = len(facts["deleted"]), len(facts["kept"])
    files = f"{count:,} file" + "s" * (count != 1)
    end = f"{files} {verb}, {bytes_text(facts['bytes_freed'])}; {kept_count:,} kept; {facts['data_files']:,} in use"
    return [*parts, end]


def _file_row(file: Facts) -> tuple[str, ...]:
    if "reason" not in file:
        return file["path"], bytes_text(file["bytes"])
    return file["path"], bytes_text(file["bytes"]), file["reason"], file["until"] or NONE


def verification_page(facts: Facts) -> list[Table | str]:
    """Build the page of `verify`."""
    checked = f"{facts['tables']:,} tables, {facts['files']:,} files, {bytes_text(facts['bytes'])} checked"
    parts: list[Table | str] = []
    if facts["unreachable"]:
        parts.append(grid(("unreachable file (no damage)",), ((path,) for path in facts["unreachable"])))
    if facts["problems"]:
        problems = ((problem["where"], Text(safe(problem["what"]), "red")) for problem in facts["problems"])
        parts.append(grid(("where", "problem"), problems))
    if facts["unread"]:
        refused = ((refused_file["where"], Text(safe(refused_file["what"]), "red")) for refused_file in facts["unread"])
        parts.append(grid(("could not be read (no damage is known)", "why"), refused))
    count, unread = len(facts["problems"]), len(facts["unread"])
    counts = [f"{count:,} problem" + "s" * (count != 1)] * bool(count) + [f"{unread:,} not read"] * bool(unread)
    return [*parts, f"{checked}: {', '.join(counts) or 'ok'}"]


def diagnosis_page(facts: Facts) -> list[Table | str]:
    """Build the page of `doctor`."""
    clocks = ((clock["host"], clock["noted_at"], lag_text(clock["ahead_ms"])) for clock in facts["clocks"])
    parts: list[Table | str] = [f"the clock shows {facts['at']}, the newest epoch is {epoch_text(facts['last_epoch'])}"]
    if facts["clocks"]:
        parts.append(grid(("clock of", "noted at", ">leads the slowest by"), clocks))
    for symptom in facts["symptoms"]:
        parts += [safe(symptom["what"]), f"  what to do: {safe(symptom['advice'])}"]
    return parts if facts["symptoms"] else [*parts, "nothing to do: ok"]
