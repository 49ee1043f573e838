"""Flink SQL and pathway, each given the same events: what the steps of a course cost them, and their answers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import duckdb
import nexmark
import pyarrow as pa
from changing_events import Batch, ChangingEvents, plain, write_arrow, write_texts
from nexmark_data import KEYS, SCHEMAS
from peers import FLINK, PATHWAY, PEERS
from spent import Spent, settled, spent_by

HERE = Path(__file__).parent
DRIVERS = {FLINK: "flink_driver.py", PATHWAY: "pathway_driver.py"}
DAY_US, MINUTE_US = 86_400_000_000, 60_000_000
ALL, SOURCES = "all eight", "sources alone"
"""What a peer may be given to do, beside a view."""


class Driver:
    """Process of a peer's driver. pid: of the process that does the work."""

    def __init__(self, peer: str, log: Path, *arguments: str) -> None:
        self._log = log
        command = [os.environ[PEERS[peer].variable], str(HERE / DRIVERS[peer]), *arguments]
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self.pid = int(self.answer()["pid"])

    def ask(self, **command: Any) -> None:
        self.send(json.dumps(command))
        self.answer()

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the driver has ended:\n{self._log.read_text()[-4000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End it, and wait until it has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        status = self._process.wait()
        self._process.stdout.close()
        if status:
            raise RuntimeError(f"the driver ended with {status}:\n{self._log.read_text()[-4000:]}")


@dataclass(frozen=True, slots=True)
class Course:
    """Files with a base and the steps after it, for the peers. batch: the number of events in a step."""

    folder: Path
    batch: int
    steps: int
    mixed: bool

    def write(self, size: int) -> None:
        """Write a base of so many events, and the steps after it."""
        base, *steps = self.batches(size)
        for part, batches in (("base", [base]), ("steps", steps)):
            write_arrow(self.folder / part, batches)
            write_texts(self.folder / part, self.folder / "texts" / part, mixed=self.mixed)

    def batches(self, size: int) -> Iterator[Batch]:
        """Generate the base and the steps."""
        events = ChangingEvents()
        yield events.batch(size)
        for _ in range(self.steps):
            yield events.batch(self.batch, mixed=self.mixed)


class StreamPeer(Protocol):
    """Peer that is given courses one after the other."""

    def measured(self, course: Course, works: Sequence[str]) -> Mapping[str, Spent]:
        """Return for each of these works, a view, ALL or SOURCES, the mean of the steps of a course."""
        ...

    def close(self) -> None: ...


class PathwayPeer:
    """A process for each work, which is fed with one commit for each step."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        scratch.mkdir()

    def measured(self, course: Course, works: Sequence[str]) -> Mapping[str, Spent]:
        return {work: self._measured(course, work).by(course.steps) for work in works}

    def _measured(self, course: Course, work: str) -> Spent:
        driver = Driver(PATHWAY, self._scratch / "driver.log", str(course.folder), *views_of(work))
        settled(driver.pid)
        before = spent_by(driver.pid)
        driver.send("steps")
        after = settled(driver.pid)
        driver.close()
        return after - before

    def close(self) -> None: ...


class FlinkPeer:
    """One process of Java, with a job for each work, whose sources find the files of a course when these are there."""

    def __init__(self, scratch: Path) -> None:
        self._scratch, self._jobs = scratch, 0
        scratch.mkdir()
        self._driver = Driver(FLINK, scratch / "driver.log")

    def measured(self, course: Course, works: Sequence[str]) -> Mapping[str, Spent]:
        self._driver.ask(set=flink_settings(course.batch))
        for work in () if self._jobs else (SOURCES, ALL):  # Java compiles at first what all works need
            self._measured(course, work)
        return {work: self._measured(course, work).by(course.steps) for work in works}

    def _measured(self, course: Course, work: str) -> Spent:
        self._jobs += 1
        sources = self._scratch / f"sources-{self._jobs}"
        for name in SCHEMAS:
            (sources / name).mkdir(parents=True)
        self._driver.ask(sql=[*flink_tables(sources, mixed=course.mixed, watched=True), *blackholes()])
        self._driver.ask(start=flink_inserts(work))
        before = after = Spent()
        for part in ("base", "steps"):
            settled(self._driver.pid)
            before = spent_by(self._driver.pid)
            for name in SCHEMAS:
                (sources / name / part).hardlink_to(course.folder / "texts" / part / name)
            after = settled(self._driver.pid)
        self._driver.ask(stop=None)
        shutil.rmtree(sources)
        return after - before

    def close(self) -> None:
        self._driver.close()


STREAM_PEERS: Mapping[str, Callable[[Path], StreamPeer]] = {FLINK: FlinkPeer, PATHWAY: PathwayPeer}


def views_of(work: str) -> list[str]:
    return {ALL: list(nexmark.VIEWS), SOURCES: []}.get(work, [work])


# ---- Flink ----------------------------------------------------------------------------------------------------------


def flink_settings(batch: int) -> dict[str, str]:
    """Return the settings that its documentation recommends, with mini-batches of this size."""
    return {
        "parallelism.default": "1",
        "pipeline.object-reuse": "true",
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "500 ms",
        "table.exec.mini-batch.size": str(batch),
    }


def flink_columns(name: str) -> str:
    fields = plain(SCHEMAS[name].empty_table()).schema
    return ", ".join(f"{each.name} {'BIGINT' if pa.types.is_integer(each.type) else 'STRING'}" for each in fields)


def flink_tables(folder: Path, *, mixed: bool, watched: bool) -> list[str]:
    """Return statements that make the tables of files in a folder for each. watched: more files may come."""
    options = f"'format' = '{'debezium-json' if mixed else 'csv'}'"
    options += ", 'source.monitor-interval' = '200 ms'" if watched else ""
    statements = list[str]()
    for name in SCHEMAS:
        columns = f"{flink_columns(name)}, PRIMARY KEY ({', '.join(KEYS[name])}) NOT ENFORCED"
        files = f"'connector' = 'filesystem', 'path' = 'file://{folder / name}'"
        statements += [f"DROP TABLE IF EXISTS {name}", f"CREATE TABLE {name} ({columns}) WITH ({files}, {options})"]
    return statements


def flink_query(view: str) -> str:
    """Return a view's query in Flink's SQL, with instants as microseconds, and averages of BIGINT that are not cut."""
    text, _ = nexmark.VIEWS[view]
    for old, new in {
        "DATE_TRUNC('DAY', date_time)": f"date_time - MOD(date_time, {DAY_US})",
        "DATE_TRUNC('MINUTE', date_time)": f"date_time - MOD(date_time, {MINUTE_US})",
        "AS day": "AS `day`",
        "AS minute": "AS `minute`",
        "AVG(price)": "AVG(CAST(price AS DOUBLE))",
        "AVG(q.final)": "AVG(CAST(q.final AS DOUBLE))",
    }.items():
        text = text.replace(old, new)
    return text


def answer_columns(view: str) -> dict[str, str]:
    """Return the columns of a view, each with its type in Flink's SQL."""
    with duckdb.connect() as connection:
        for name, schema in SCHEMAS.items():
            connection.register(name, plain(schema.empty_table()))
        answer = connection.sql(duckdb_query(view)).to_arrow_table().schema
    kinds = {pa.float64(): "DOUBLE", pa.string(): "STRING"}
    return {field.name: kinds.get(field.type, "BIGINT") for field in answer}


def duckdb_query(view: str) -> str:
    """Return a view's query on tables whose instants are microseconds."""
    text, _ = nexmark.VIEWS[view]
    text = text.replace("DATE_TRUNC('DAY', date_time)", f"date_time - date_time % {DAY_US}")
    return text.replace("DATE_TRUNC('MINUTE', date_time)", f"date_time - date_time % {MINUTE_US}")


def blackholes() -> list[str]:
    """Return statements that make the sinks, which drop what they get."""
    columns = {f"of_{view}": answer_columns(view) for view in nexmark.VIEWS}
    sinks = {name: ", ".join(f"`{column}` {kind}" for column, kind in own.items()) for name, own in columns.items()}
    sinks |= {f"of_{name}": flink_columns(name) for name in SCHEMAS}
    return [
        f"CREATE TABLE IF NOT EXISTS {name} ({own}) WITH ('connector' = 'blackhole')" for name, own in sinks.items()
    ]


def flink_inserts(work: str) -> list[str]:
    if work == SOURCES:
        return [f"INSERT INTO of_{name} SELECT * FROM {name}" for name in SCHEMAS]
    return [f"INSERT INTO of_{view} {flink_query(view)}" for view in views_of(work)]


# ---- their answers --------------------------------------------------------------------------------------------------


def answers_of_flink(scratch: Path, course: Course) -> dict[str, Counter[tuple[Any, ...]]]:
    """Return the rows of each view after a whole course, which one file has for each table."""
    for name in SCHEMAS:
        (scratch / name).mkdir(parents=True)
        with (scratch / name / "rows").open("wb") as file:
            for part in ("base", "steps"):
                file.write((course.folder / "texts" / part / name).read_bytes())
    sinks = [
        f"CREATE TABLE of_{view} ({', '.join(f'`{name}` {kind}' for name, kind in answer_columns(view).items())}) WITH "
        f"('connector' = 'filesystem', 'path' = 'file://{scratch / f'of_{view}'}', 'format' = 'debezium-json')"
        for view in nexmark.VIEWS
    ]
    driver = Driver(FLINK, scratch / "flink.log")
    driver.ask(set=flink_settings(course.batch))
    driver.ask(sql=[*flink_tables(scratch, mixed=course.mixed, watched=False), *sinks])
    driver.ask(run=flink_inserts(ALL))
    driver.close()
    answers: dict[str, Counter[tuple[Any, ...]]] = {}
    for view in nexmark.VIEWS:
        changes = [json.loads(line) for path in (scratch / f"of_{view}").glob("*") for line in path.open()]
        came = [(change["after"], 1) for change in changes if change["after"]]
        answers[view] = sums([*came, *((change["before"], -1) for change in changes if change["before"])], view)
    return answers


def answers_of_pathway(scratch: Path, course: Course) -> dict[str, Counter[tuple[Any, ...]]]:
    """Return the rows of each view after a whole course."""
    scratch.mkdir()
    arguments = [str(course.folder), *nexmark.VIEWS, "--output", str(scratch)]
    Driver(PATHWAY, scratch / "pathway.log", *arguments).close()
    answers: dict[str, Counter[tuple[Any, ...]]] = {}
    for view in nexmark.VIEWS:
        changes = [json.loads(line) for line in (scratch / view).open()]
        answers[view] = sums([({"id": change.get("key"), **change}, change["diff"]) for change in changes], view)
    return answers


def answers_of_duckdb(batches: Iterable[Batch]) -> dict[str, Counter[tuple[Any, ...]]]:
    """Return the rows of each query over the rows that are there after all batches."""
    held: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {name: {} for name in SCHEMAS}
    for batch in batches:
        for name, own in held.items():
            own |= {tuple(row[key] for key in KEYS[name]): row for row in plain(batch.upserts(name)).to_pylist()}
        for row in batch.deleted.select(KEYS["bid"]).to_pylist():
            del held["bid"][tuple(row.values())]
    answers: dict[str, Counter[tuple[Any, ...]]] = {}
    with duckdb.connect() as connection:
        for name, own in held.items():
            rows = pa.Table.from_pylist(list(own.values()), plain(SCHEMAS[name].empty_table()).schema)
            connection.register(name, rows)
        for view in nexmark.VIEWS:
            rows = connection.sql(duckdb_query(view)).to_arrow_table().to_pylist()
            answers[view] = sums([(row, 1) for row in rows], view)
    return answers


ANSWERS = {FLINK: answers_of_flink, PATHWAY: answers_of_pathway}


def sums(changes: Iterable[tuple[Mapping[str, Any], int]], view: str) -> Counter[tuple[Any, ...]]:
    """Add up rows that come and go; averages are rounded, as each system adds in an order of its own."""
    columns, count = list(answer_columns(view)), Counter[tuple[Any, ...]]()
    for row, sign in changes:
        values = (row[name] for name in columns)
        count[tuple(float(f"{value:.9g}") if isinstance(value, float) else value for value in values)] += sign
    return Counter({row: number for row, number in count.items() if number})
