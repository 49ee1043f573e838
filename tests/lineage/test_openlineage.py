"""OpenLineage: each run of a job has its events in the form of the schema, and no backend holds up a commit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from openlineage.client import OpenLineageClient

import epochlog as el
from control_fixture import TOKEN, settings
from epochlog.lineage import events, sender
from epochlog.store.types.epoch import to_unix_ms
from logged_events import logged
from openlineage_schema import check_event
from raw_check import raw_check
from wait_until import wait_until

pytestmark = pytest.mark.local_only

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("cents", pa.int64())])
QUERY = "SELECT cents, COUNT(*) AS n FROM orders GROUP BY cents"


def rows(*keys: int) -> pa.Table:
    return pa.table({"id": keys, "cents": [key % 3 for key in keys]}, schema=SCHEMA)


def copy(ctx: Any) -> None:
    ctx.upsert("copied", ctx.table("orders"))


def to_file(path: Path) -> OpenLineageClient:
    return OpenLineageClient(config={"transport": {"type": "file", "log_file_path": str(path), "append": True}})


def to_server(port: int) -> OpenLineageClient:
    transport = {"type": "http", "url": f"http://127.0.0.1:{port}", "retry": {"total": 0}, "timeout": 30}
    return OpenLineageClient(config={"transport": transport})


def read(path: Path) -> list[dict[str, Any]]:
    """Return the events of a file, each after a check by the schema."""
    parsed = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for event in parsed:
        check_event(event)
    return parsed


def kinds_of(sent: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(event["job"]["name"], event["eventType"]) for event in sent]


@contextmanager
def lake(tmp_path: Path, client: OpenLineageClient) -> Iterator[el.Store]:
    """A store with the table `orders`, the view `by_cents` and the job `copying`."""
    with el.open(tmp_path / "lake", durability="os", checkpoint_interval_ms=100, lineage=client) as store:
        store.create_table("orders", SCHEMA, ["id"], exist_ok=True)
        store.create_view("by_cents", QUERY, ["cents"], exist_ok=True)
        store.create_job("copying", ["orders"], {"copied": el.Output(SCHEMA, ["id"])}, exist_ok=True)
        yield store


def put(store: el.Store, *keys: int) -> None:
    store.table("orders").upsert(rows(*keys))
    store.checkpoint()


def test_a_view_and_a_job_tell_their_runs_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with lake(tmp_path, to_file(path)) as store:
        put(store, 1, 2, 4)
        first, copied = store.view("by_cents").step(), store.job("copying").step_local(copy)
        put(store, 3)
        second = store.view("by_cents").step()
        assert first and copied and second and store.view("by_cents").step() is None  # an idle step is no run
        namespace = f"epochlog+file://{store.root}"
    sent = read(path)
    assert kinds_of(sent) == [
        (job, kind) for job in ("by_cents", "copying", "by_cents") for kind in ("START", "COMPLETE")
    ]
    assert [event["run"]["runId"] for event in sent[::2]] == [event["run"]["runId"] for event in sent[1::2]]
    assert len({UUID(event["run"]["runId"]) for event in sent}) == 3
    start, end = sent[4:]
    for event in (start, end):
        assert event["job"]["namespace"] == namespace and event["producer"] == events.PRODUCER
        assert event["job"]["facets"]["sql"]["query"] == QUERY
        assert event["job"]["facets"]["jobType"]["jobType"] == "VIEW"
        (read_table,) = event["inputs"]
        assert (read_table["namespace"], read_table["name"]) == (namespace, "orders")
        assert read_table["facets"]["version"]["datasetVersion"] == str(second)
        assert [(field["name"], field["type"]) for field in read_table["facets"]["schema"]["fields"]] == [
            ("id", "int64"),
            ("cents", "int64"),
        ]
        nominal = event["run"]["facets"]["nominalTime"]
        assert nominal["nominalStartTime"] == events._iso(to_unix_ms(first))
        assert nominal["nominalEndTime"] == events._iso(to_unix_ms(second))
    assert [set(event["outputs"][0]["facets"]) for event in (start, end)] == [{"schema"}, {"schema", "version"}]
    assert end["outputs"][0]["name"] == "by_cents"
    assert end["outputs"][0]["facets"]["version"]["datasetVersion"] == str(second)
    statistics = end["outputs"][0]["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["fileCount"]) == (1, 1) and statistics["size"] > 0
    assert "sql" not in sent[2]["job"]["facets"] and sent[2]["job"]["facets"]["jobType"]["jobType"] == "JOB"
    assert "nominalTime" not in sent[2]["run"]["facets"]  # a backfill has no begin


@pytest.mark.medium
def test_a_refresh_that_fails_and_one_that_is_overtaken(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with lake(tmp_path, to_file(path)) as store:
        put(store, 1)
        job = store.job("copying")
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                job.step_local(lambda ctx: 1 // 0)
        assert job.step_local(copy)

        def overtaken(ctx: Any) -> None:
            store.job("copying").step_local(copy, take_over=True)

        put(store, 2)
        with pytest.raises(el.Fenced):
            job.step_local(overtaken)
    sent = read(path)
    kinds = ["START", "FAIL", "START", "FAIL", "START", "COMPLETE", "START", "START", "COMPLETE", "ABORT"]
    assert [kind for _, kind in kinds_of(sent)] == kinds
    runs = [event["run"]["runId"] for event in sent]
    assert runs[0] == runs[1] and runs[6] == runs[9] and runs[7] == runs[8] and len(set(runs)) == 5
    failed = sent[1]["run"]["facets"]["errorMessage"]
    assert failed["message"].startswith("ZeroDivisionError: ") and failed["programmingLanguage"] == "PYTHON"
    assert "errorMessage" not in sent[9]["run"]["facets"] and "version" not in sent[1]["outputs"][0]["facets"]


KILLED = """
import os, signal, sys
import epochlog as el
from openlineage.client import OpenLineageClient

client = OpenLineageClient(config={"transport": {"type": "file", "log_file_path": sys.argv[2], "append": True}})
store = el.open(sys.argv[1], create=False, lineage=client)

def refresh(ctx):
    ctx.upsert("copied", ctx.table("orders"))
    while not (os.path.exists(sys.argv[2]) and open(sys.argv[2]).read().endswith("\\n")):  # another thread writes it
        pass
    os.kill(os.getpid(), signal.SIGKILL)

store.job("copying").step_local(refresh)
"""


@pytest.mark.medium
def test_the_next_runner_tells_that_a_process_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with lake(tmp_path, to_file(tmp_path / "other")) as store:
        put(store, 1)
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "lake"), str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert kinds_of(read(path)) == [("copying", "START")]
    with lake(tmp_path, to_file(path)) as store:
        assert store.job("copying").step_local(copy)
    killed, failed, start, complete = read(path)
    assert kinds_of([failed, start, complete]) == [("copying", kind) for kind in ("FAIL", "START", "COMPLETE")]
    assert failed["run"]["runId"] == killed["run"]["runId"] != start["run"]["runId"] == complete["run"]["runId"]
    assert "its process has died" in failed["run"]["facets"]["errorMessage"]["message"]
    assert failed["inputs"] == killed["inputs"] and failed["outputs"] == killed["outputs"]


class Backend:
    """HTTP server that keeps the events that it gets. answer: called before each answer."""

    def __init__(self, port: int = 0, answer: Callable[[], object] = lambda: None) -> None:
        self.events: list[dict[str, Any]] = []
        backend = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                answer()
                backend.events.append({"path": self.path, **json.loads(body)})
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def test_a_pipeline_tells_its_runs_to_an_http_server(tmp_path: Path) -> None:
    with closing(Backend()) as backend:
        with lake(tmp_path, to_server(backend.port)) as store:
            put(store, 1, 2)
            pipeline = el.Pipeline(store)
            pipeline.add(store.view("by_cents"))
            pipeline.add(store.job("copying"), copy)
            pipeline.run(until="idle")
        for event in backend.events:
            assert event.pop("path") == "/api/v1/lineage"
            check_event(event)
        for name in ("by_cents", "copying"):
            kinds = [kind for job, kind in kinds_of(backend.events) if job == name]
            assert kinds and kinds == ["START", "COMPLETE"] * (len(kinds) // 2)


@pytest.mark.medium
def test_a_coordinator_tells_the_runs_of_attached_jobs(tmp_path: Path) -> None:
    path, failures = tmp_path / "events", [1]

    def refresh(ctx: Any) -> None:
        if failures:
            raise ValueError(f"failure {failures.pop()}")
        copy(ctx)

    with (
        lake(tmp_path, to_file(path)) as store,
        el.open(store.root, durability="os") as driver,
        el.serve(store, token=TOKEN, control=settings()) as server,
        el.Worker(server.location, driver, token=TOKEN) as worker,
    ):
        pipeline = el.Pipeline(driver, coordinator=worker)
        pipeline.add(driver.job("copying"), refresh)
        store.table("orders").upsert(rows(1, 2))
        thread = threading.Thread(target=pipeline.run)
        thread.start()
        wait_until(lambda: driver.job("copying").info.committed_epoch > 0 and driver.table("copied").count() == 2)
        pipeline.stop()
        thread.join()
    sent = read(path)
    kinds = [kind for _, kind in kinds_of(sent)]
    assert kinds[:4] == ["START", "FAIL", "START", "COMPLETE"] and kinds[4::2] == ["START"] * (len(kinds) // 2 - 2)
    assert "failure 1" in sent[1]["run"]["facets"]["errorMessage"]["message"]
    ends = [event["outputs"][0] for event in sent if event["eventType"] == "COMPLETE"]
    assert sum(output["outputFacets"]["outputStatistics"]["rowCount"] for output in ends) == 2


def commits_go_on(store: el.Store, count: int) -> None:
    """Commit barriers of the view, each with one more row, and check them."""
    before = store.table("orders").count()
    for number in range(count):
        put(store, 100 + before + number)
        assert store.view("by_cents").step()
    assert raw_check(store.view("by_cents")).ok and store.table("orders").count() == before + count


def counted(store: el.Store) -> dict[str, float]:
    lines = [line for line in store.metrics().splitlines() if line.startswith("epochlog_lineage_events_total{")]
    return {line.split('"')[1]: float(line.split()[-1]) for line in lines}


@pytest.mark.medium
@pytest.mark.logs("lineage_failed", "lineage_recovered")
def test_a_backend_that_is_down_fails_no_commit_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Backend()) as unused:
        port = unused.port
    with lake(tmp_path, to_server(port)) as store:
        commits_go_on(store, 3)
        wait_until(lambda: counted(store) == {"failed": 6})
        (failed,) = logged(caplog, "lineage_failed", "lineage_dropped")
        assert "ConnectionError" in failed["error"]
        with closing(Backend(port)) as backend:
            commits_go_on(store, 1)
            wait_until(lambda: counted(store) == {"failed": 6, "sent": 2})
            assert kinds_of(backend.events) == [("by_cents", "START"), ("by_cents", "COMPLETE")]
    assert len(logged(caplog, "lineage_failed", "lineage_recovered")) == 2


@pytest.mark.medium
@pytest.mark.logs("lineage_dropped")
def test_a_backend_that_hangs_holds_up_no_commit_and_no_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sender, "MOST_EVENTS", 3)
    monkeypatch.setattr(sender, "CLOSE_S", 0.05)
    released = threading.Event()
    with closing(Backend(answer=released.wait)) as backend:
        try:
            with lake(tmp_path, to_server(backend.port)) as store:
                commits_go_on(store, 5)
                assert counted(store) in ({"dropped": 6}, {"dropped": 7})  # one is being sent, if the thread was quick
                assert len(logged(caplog, "lineage_dropped")) == 1
            assert not backend.events and len(logged(caplog, "lineage_dropped")) == 2
        finally:
            released.set()


@pytest.mark.planted
@pytest.mark.parametrize("planted", ["emits within the step", "keeps no bound", "ends at an error"])
def test_a_sender_that_a_backend_breaks_is_noticed(
    planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Backend()) as unused:
        port = unused.port
    if planted == "emits within the step":
        monkeypatch.setattr(sender.Sender, "send", lambda self, make: self._client.emit(make()))
        with lake(tmp_path, to_server(port)) as store, pytest.raises(Exception, match="Connection"):
            commits_go_on(store, 1)
        return
    if planted == "keeps no bound":
        monkeypatch.setattr(sender, "MOST_EVENTS", 1 << 60)
        monkeypatch.setattr(sender, "CLOSE_S", 0.05)
        released = threading.Event()
        with closing(Backend(answer=released.wait)) as backend:
            with lake(tmp_path, to_server(backend.port)) as store:
                commits_go_on(store, 5)
                assert "dropped" not in counted(store)
            released.set()
        return
    monkeypatch.setattr(sender.Sender, "_send", lambda self, make: self._client.emit(make()))
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with lake(tmp_path, to_server(port)) as store:
        commits_go_on(store, 1)
        wait_until(lambda: not store._handle.run_listener._sender._thread.is_alive())  # type: ignore[union-attr]
        assert counted(store) == {}


def test_what_is_no_client_and_a_missing_package_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(el.InvalidInput, match="OpenLineageClient, not 'http"):
        el.open(tmp_path / "a", lineage="http://127.0.0.1")  # pyright: ignore[reportArgumentType]
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    with pytest.raises(el.DependencyMissing, match=r"epochlog\[openlineage\]"):
        el.open(tmp_path / "b", lineage=object())  # pyright: ignore[reportArgumentType]
    assert not list(tmp_path.iterdir())


def test_facts_that_cannot_be_read_fail_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> Any:
        raise el.CatalogUnavailable("gone; try again")

    path = tmp_path / "events"
    with lake(tmp_path, to_file(path)) as store:
        monkeypatch.setattr("epochlog.lineage.listener.present_text", broken)
        monkeypatch.setattr("epochlog.lineage.listener.LineageRun._written", broken)
        commits_go_on(store, 1)
    assert kinds_of(read(path)) == [("by_cents", "START"), ("by_cents", "COMPLETE")]
    assert len(logged(caplog, "lineage_failed")) == 1 and "outputFacets" in read(path)[1]["outputs"][0]


@pytest.mark.planted
def test_an_event_that_breaks_the_schema_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with lake(tmp_path, to_file(path)) as store:
        commits_go_on(store, 1)
    _, good = read(path)

    def broken(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        event = json.loads(json.dumps(good))
        change(event)
        return event

    for change in (
        lambda event: event.pop("run"),
        lambda event: event.update(eventType="DONE"),
        lambda event: event.update(eventTime="2026-11-25"),
        lambda event: event.update(epoch=1),
        lambda event: event["run"].update(runId="first"),
        lambda event: event["inputs"][0]["facets"]["version"].update(datasetVersion=7),
        lambda event: event["inputs"][0]["facets"]["version"].pop("datasetVersion"),
        lambda event: event["inputs"][0]["facets"]["schema"].update(_schemaURL="https://example.org"),
        lambda event: event["outputs"][0]["outputFacets"]["outputStatistics"].update(rowCount="1"),
        lambda event: event["outputs"][0]["outputFacets"].update(version=event["outputs"][0]["facets"]["version"]),
    ):
        with pytest.raises((TypeError, ValueError)):
            check_event(broken(change))


def test_the_version_of_the_engine_is_that_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    assert el.__version__ == events.__version__ == project["version"]


def test_namespaces_tell_stores_apart() -> None:
    assert events.namespace_of("/srv/a b") == "epochlog+file:///srv/a%20b"
    assert events.namespace_of("s3://bucket/lake") == "epochlog+s3://bucket/lake"
