"""Metrics: every event is counted, names follow Prometheus' conventions, dashboard and alerts use what exists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.checkpoint.coordinator.metrics import ALL, OF_COORDINATOR
from epochlog.store.env.metrics import Metric, Recorder
from epochlog.store.maintenance import scheduler
from log_source_model import received

PAGES = Path(__file__).parents[2] / "docs" / "observability"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
LINE = re.compile(r'(\w+)(?:\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)')
BY_NAME = {metric.name: metric for metric in ALL}


def parsed(text: str) -> dict[str, float]:
    """Return the samples of a text, by name and labels, after checking its form."""
    samples: dict[str, float] = {}
    described: set[str] = set()
    current = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            current = line.split()[2]
            assert current not in described, f"{current} is described twice"
            described.add(current)
        elif line.startswith("# TYPE "):
            assert line.split()[2:] == [current, BY_NAME[current].kind]
        else:
            match = LINE.fullmatch(line)
            assert match, line
            assert match[1].removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") == current
            assert line.rpartition(" ")[0] not in samples, line
            samples[line.rpartition(" ")[0]] = float(match[3])
    return samples


def rows(*keys: int) -> pa.Table:
    return pa.table({"id": keys, "v": keys}, schema=SCHEMA)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "s", checkpoint_interval_ms=1000) as made:
        yield made


def test_commits_compactions_stalls_and_vacuums_are_counted(store: el.Store) -> None:
    options = el.TableOptions(compact_segments=2, max_segments=4)
    table = store.create_table("t", SCHEMA, ["id"], options=options)
    for number in range(4):
        table.upsert(rows(number, number + 1))
    table.delete([0])
    before = parsed(store.metrics())
    assert before['epochlog_commits_total{table="t"}'] == 5
    assert before['epochlog_committed_rows_total{table="t"}'] == 9
    assert before["epochlog_commit_seconds_count"] == 5
    assert before['epochlog_write_stall_seconds_count{table="t"}'] == 1
    assert (
        before['epochlog_compactions_total{table="t",outcome="done"}']
        == before["epochlog_compaction_seconds_count"]
        == 1
    )
    assert before['epochlog_table_l0_segments{table="t"}'] == 1
    table.upsert(rows(7))
    table.alter(options=el.TableOptions(log_retention=timedelta(milliseconds=1), history_retention=timedelta(0)))
    store.compact("t", full=True)
    reports = [store.vacuum(grace=0), store.vacuum(grace=0)]
    gone = [file for report in reports for file in report.deleted]
    after = parsed(store.metrics())
    assert gone
    assert after['epochlog_compactions_total{table="t",outcome="done"}'] == 2
    written = 'epochlog_compaction_written_bytes_total{table="t"}'
    assert after[written] > before[written] > 0
    assert after['epochlog_table_l0_segments{table="t"}'] == after['epochlog_table_l0_bytes{table="t"}'] == 0
    assert after['epochlog_table_run_bytes{table="t"}'] > 0
    assert after["epochlog_vacuum_seconds_count"] == 2
    assert after["epochlog_vacuumed_files_total"] == len(gone)
    assert after["epochlog_vacuumed_bytes_total"] == sum(file.bytes for file in gone)
    store.vacuum(grace=0, dry_run=True)
    assert parsed(store.metrics())["epochlog_vacuum_seconds_count"] == 2


def test_a_failed_commit_is_not_counted(store: el.Store) -> None:
    table = store.create_table("t", SCHEMA, ["id"])
    table.upsert(rows(1), txn=("app", 1))
    table.upsert(rows(1), txn=("app", 1))
    with pytest.raises(el.EpochRegressed):
        table.upsert(rows(2), epoch=1)
    assert parsed(store.metrics())['epochlog_commits_total{table="t"}'] == 1


def test_rows_that_a_commit_leaves_out_are_not_counted(store: el.Store) -> None:
    table = store.create_table("t", SCHEMA, ["id"], sequence_by="v")
    table.upsert(rows(1, 2, 3, 4, 5))
    late = pa.table({"id": [1, 2, 3, 4, 5], "v": [0, 0, 9, 9, 9]}, schema=SCHEMA)
    table.upsert(late)
    assert parsed(store.metrics())['epochlog_committed_rows_total{table="t"}'] == 5 + 3


def test_reads_are_counted_by_door(store: el.Store) -> None:
    table = store.create_table("t", SCHEMA, ["id"])
    epoch = table.upsert(rows(1, 2))
    doors = {
        "arrow": table.to_arrow,
        "pandas": table.to_pandas,
        "polars": table.to_polars,
        "scan": lambda: table.scan().read_all(),
        "dataset": lambda: table.dataset().to_table(),
        "get": lambda: table.get([1]),
        "count": table.count,
        "changes": lambda: table.changes(0).read_all(),
    }
    for door, read in doors.items():
        before = parsed(store.metrics())
        read()
        after = parsed(store.metrics())
        name = f'epochlog_reads_total{{door="{door}"}}'
        assert after.pop(name) == before.pop(name, 0) + 1, door
        assert {key: value for key, value in after.items() if "reads" in key} == {
            key: value for key, value in before.items() if "reads" in key
        }
    table.lazy().collect()
    with store.snapshot() as snapshot:
        assert snapshot.duckdb().execute("SELECT count(*) FROM t").fetchone() == (2,)
    with el.serve(store, token="t" * 32) as server, el.connect(server.location, token="t" * 32) as client:
        assert client.snapshot("t", epoch=epoch).read_all().num_rows == 2
    samples = parsed(store.metrics())
    assert samples['epochlog_reads_total{door="polars"}'] == 2
    assert samples['epochlog_reads_total{door="duckdb"}'] == 1
    assert samples['epochlog_reads_total{door="flight"}'] == 1


def test_the_lag_of_tables_and_consumers(tmp_path: Path) -> None:
    now_ms = 1_800_000_000_000

    def clock() -> int:
        return now_ms

    with el.open(tmp_path / "s", checkpoint_interval_ms=1000, clock=clock) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        store.create_view("v", "SELECT id, v FROM t", ["id"])
        table.upsert(rows(1))
        now_ms += 1000
        store.checkpoint()
        with el.UpstreamLog(store, ["t"], consumer="c") as log:
            assert received(log)
            log.ack()
        table.upsert(rows(3))
        now_ms += 5000
        samples = parsed(store.metrics())
        assert samples['epochlog_table_lag_seconds{table="v"}'] == 6
        assert samples['epochlog_table_lag_seconds{table="t"}'] == 0
        assert samples['epochlog_consumer_lag_seconds{consumer="c"}'] == 5
        assert samples['epochlog_consumer_lag_commits{consumer="c"}'] == 1


def test_a_job_that_fails_or_is_parked_is_seen_by_whoever_runs_it(tmp_path: Path) -> None:
    now_ms = 1_800_000_000_000

    def clock() -> int:
        return now_ms

    def fail(_: object) -> None:
        raise ZeroDivisionError

    short = el.TableOptions(log_retention=timedelta(milliseconds=1))
    with el.open(tmp_path / "s", checkpoint_interval_ms=1000, clock=clock) as store:
        table = store.create_table("t", SCHEMA, ["id"], options=short)
        job = store.create_job("j", ["t"], {"out": (SCHEMA, ["id"])})
        table.upsert(rows(1))
        now_ms += 1000
        store.checkpoint()
        assert parsed(store.metrics())['epochlog_job_failing_seconds{job_name="j"}'] == 0
        with pytest.raises(ZeroDivisionError):
            job.step_local(fail)
        now_ms += 7000
        samples = parsed(store.metrics())
        assert samples['epochlog_job_failing_seconds{job_name="j"}'] == 7
        assert samples['epochlog_job_parked{job_name="j"}'] == 0
        table.upsert(rows(2))
        now_ms += 1000
        store.compact("t")
        assert job.info.state == "parked"
        assert parsed(store.metrics())['epochlog_job_parked{job_name="j"}'] == 1


@pytest.mark.logs("maintenance_failed")
def test_a_failed_maintenance_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise OSError("the disk does not answer")

    with el.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, ["id"]).upsert(rows(1))
        monkeypatch.setattr(scheduler, "vacuum", broken)
        maintenance = scheduler.Maintenance(store._handle)
        maintenance.run_once()
        assert parsed(store.metrics())['epochlog_maintenance_failures_total{subject="vacuum"}'] == 1
        maintenance.run_once()  # the next vacuum is not due yet
        assert maintenance.errors == {"vacuum": "OSError: the disk does not answer"}


def test_the_alert_of_the_maintenance_tells_of_a_vacuum_that_always_fails() -> None:
    """A vacuum is tried rarely: the time that the alert looks back has more tries than the alert lets pass."""
    rules = (PAGES / "alerts.yml").read_text("utf-8")
    (rule,) = re.findall(r"increase\(epochlog_maintenance_failures_total\[(\d+)m]\) > (\d+)", rules)
    minutes, passed = map(int, rule)
    assert minutes * 60_000 // scheduler.VACUUM_EVERY_MS - 1 > passed, "the first failure begins the series"


def test_two_open_stores_of_one_id_share_their_counters(tmp_path: Path) -> None:
    with el.open(tmp_path / "s") as first, el.open(tmp_path / "s") as second, el.open(tmp_path / "other") as other:
        first.create_table("t", SCHEMA, ["id"]).upsert(rows(1))
        second.table("t").upsert(rows(2))
        other.create_table("t", SCHEMA, ["id"])
        for store, count in ((first, 2), (second, 2), (other, 0)):
            assert parsed(store.metrics()).get('epochlog_commits_total{table="t"}', 0) == count


def test_labels_are_escaped() -> None:
    metric = Metric("epochlog_x_total", "counter", "Events.", ("of",))
    recorder = Recorder()
    recorder.add(metric, 'a"b\\c\nd')
    assert list(recorder.lines([metric]))[-1] == 'epochlog_x_total{of="a\\"b\\\\c\\nd"} 1.0'


def test_names_follow_the_conventions_of_prometheus() -> None:
    assert len(BY_NAME) == len(ALL)
    for metric in ALL:
        assert re.fullmatch(r"epochlog_[a-z0-9_]+", metric.name)
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name
        assert metric.kind != "histogram" or metric.name.endswith("_seconds"), metric.name
        assert not metric.name.endswith(("_ms", "_count", "_sum", "_bucket")), metric.name
        assert metric.about.endswith(".") and metric.about[0].isupper()
        taken = {"job", "instance", "le", "quantile"} & {*metric.labels}  # Prometheus gives them to what it scrapes
        assert not taken, (metric.name, taken)


def test_a_served_store_has_every_metric_and_the_page_lists_them(store: el.Store) -> None:
    with el.serve(store) as server:
        served = re.findall(r"# HELP (\S+)", server.metrics())
    assert sorted(served) == sorted(BY_NAME)
    assert re.findall(r"# HELP (\S+)", store.metrics()) == served[len(OF_COORDINATOR) :]
    listed = (PAGES / "README.md").read_text("utf-8").partition("## Metrics\n\n")[2]
    assert listed == page(), (
        "docs/observability/README.md: write its table anew with `python tests/checkpoint/test_metrics.py`"
    )


def page() -> str:
    """Return the table of all metrics, as the page shows it."""
    lines = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels) or '-'} | {metric.about} |" for metric in ALL
    ]
    return "\n".join(["| metric | kind | labels | meaning |", "|---|---|---|---|", *lines]) + "\n"


def used_by(expression: str) -> set[str]:
    """Return the metrics of a PromQL expression, and check the labels that it names."""
    names = set(re.findall(r"epochlog_\w+", expression))
    metrics = {name if name in BY_NAME else re.sub(r"_(bucket|sum|count)$", "", name) for name in names}
    assert metrics <= BY_NAME.keys(), metrics - BY_NAME.keys()
    for name in names - BY_NAME.keys():
        assert BY_NAME[re.sub(r"_(bucket|sum|count)$", "", name)].kind == "histogram", name
    known = {label for metric in metrics for label in BY_NAME[metric].labels} | {"le"}
    grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
    matched = set(re.findall(r'(\w+)\s*[=!]~?"', expression))
    assert grouped | matched <= known, expression
    for name in re.findall(r"(?:rate|increase)\((\w+)", expression):
        assert name in names - BY_NAME.keys() or BY_NAME[name].kind == "counter", f"{name} is no counter"
    return metrics


def test_the_dashboard_and_the_alerts_use_metrics_that_are_there() -> None:
    board = json.loads((PAGES / "grafana-dashboard.json").read_text("utf-8"))
    for shown in board["panels"]:
        labels = set()
        for target in shown["targets"]:
            metrics = used_by(target["expr"])
            assert metrics, target
            labels = {label for metric in metrics for label in BY_NAME[metric].labels}
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels, target
    assert len({shown["id"] for shown in board["panels"]}) == len(board["panels"])
    rules = re.split(r"\n +- alert: ", (PAGES / "alerts.yml").read_text("utf-8"))[1:]
    assert len({rule.split()[0] for rule in rules}) == len(rules) > 5
    guide = (PAGES.parent / "guide" / "operating.md").read_text("utf-8")
    assert re.findall(r"\n\| `(Epochlog\w+)` \|", guide) == [rule.split()[0] for rule in rules], "what to do at each"
    for rule in rules:
        (expression,) = re.findall(r"\n +expr: (.+)", rule)
        labels = {label for metric in used_by(expression) for label in BY_NAME[metric].labels}
        assert set(re.findall(r"\$labels\.(\w+)", rule)) <= labels, rule
        assert re.search(r"\n +summary: .+\n +action: .+", rule), rule


@pytest.mark.planted
@pytest.mark.parametrize("wrong", [
    "rate(epochlog_commit_total[5m])",
    "rate(epochlog_table_lag_seconds[5m])",
    "sum by (door) (epochlog_commits_total)",
    'epochlog_commits_total{job_name="x"}',
    "epochlog_commits_total_count",
])  # fmt: skip
def test_a_wrong_expression_is_noticed(wrong: str) -> None:
    with pytest.raises(AssertionError):
        used_by(wrong)


if __name__ == "__main__":
    path = PAGES / "README.md"
    path.write_text(path.read_text("utf-8").partition("## Metrics\n\n")[0] + "## Metrics\n\n" + page(), "utf-8")
