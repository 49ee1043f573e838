"""Columns of jobs: a job reads its upstreams by field id, in the columns of the time when it was made."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from altered_table import AlteredTable, random_alter, random_rows
from epochlog.store.commit import table_ddl
from lab import KEY, SCHEMA, Lab, mirror, table_of
from log_source_model import received
from seeds import seeds


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path / "s")
    yield made
    made.store.close()


def stepped(lab: Lab, job: el.Job, refresh: Any) -> None:
    lab.tick()
    while job.step_local(refresh) is not None:
        pass


def swap(table: el.Table) -> None:
    table.alter(rename={"v": "g", "g": "v"})


def put_swapped(table: el.Table, key: int, g: int, v: int, **more: Any) -> int:
    """Put a row, given by the names that the job knows, into the table whose names are swapped."""
    return table.upsert([{"k": key, "g": v, "v": g, **more}])


@pytest.mark.rule("7.7")
def test_a_job_keeps_its_columns_through_adds_and_renames(lab: Lab) -> None:
    table = lab.root_table()
    job = lab.job("j", ["r"])
    lab.put({1: (1, 10), 2: (2, 20)})
    stepped(lab, job, mirror("r", "j_out"))
    swap(table)
    table.alter(add=[pa.field("c", pa.int8())])
    put_swapped(table, 2, 2, 21, c=5)
    put_swapped(table, 3, 3, 30, c=5)
    table.delete([1])
    stepped(lab, job, mirror("r", "j_out"))
    assert lab.rows("j_out") == {2: (2, 21), 3: (3, 30)}
    lab.store.compact("r", full=True)
    job.rebuild()
    stepped(lab, job, mirror("r", "j_out"))
    assert lab.rows("j_out") == {2: (2, 21), 3: (3, 30)}
    assert lab.store.verify().ok


@pytest.mark.rule("7.7")
def test_every_read_of_a_refresh_has_the_columns_of_the_job(lab: Lab) -> None:
    table = lab.root_table(changelog="full")
    table.alter(add=[pa.field("c", pa.int8())])
    job = lab.job("j", ["r"])
    seen: list[Any] = []
    table.upsert([{"k": 1, "g": 1, "v": 10, "c": 1}])

    def refresh(ctx: Any) -> None:
        names = ["k", "g", "v", "c"]
        changes = ctx.changes("r", mode="net", pre_images=True)
        assert changes.schema.names[:4] == ctx.table("r").schema.names == ctx.previous("r").schema.names == names
        seen.append(
            (
                [(row["k"], row["g"], row["v"], row["c"]) for row in ctx.previous("r").to_pylist()],
                [(row["_change_type"], row["v"], row["c"]) for row in changes.to_pylist()],
                [(row["k"], row["g"], row["v"], row["c"]) for row in ctx.table("r").to_pylist()],
                ctx.touched("r", ["g"]).to_pylist() if ctx.barrier.prev else None,
            )
        )
        ctx.upsert("j_out", table_of({1: (0, len(seen))}))

    stepped(lab, job, refresh)
    swap(table)
    table.alter(rename={"c": "x"}, add=[pa.field("c", pa.string())])
    table.upsert([{"k": 1, "v": 1, "g": 11, "x": 2, "c": "no"}])
    stepped(lab, job, refresh)
    assert seen[1] == (
        [(1, 1, 10, 1)],
        [("update_preimage", 10, 1), ("update_postimage", 11, 2)],
        [(1, 1, 11, 2)],
        [{"g": 1}],
    )


@pytest.mark.rule("7.7")
def test_a_backfill_from_the_log_sees_null_before_an_add(lab: Lab) -> None:
    table = lab.root_table()
    lab.put({1: (1, 10)})
    swap(table)
    table.alter(add=[pa.field("c", pa.int8())])
    put_swapped(table, 2, 2, 20, c=2)
    job = lab.job("j", ["r"], backfill="log")
    seen: list[Any] = []

    def refresh(ctx: Any) -> None:
        seen.extend((row["k"], row["g"], row["v"], row["c"]) for row in ctx.changes("r", mode="epochs").to_pylist())
        ctx.upsert("j_out", table_of({1: (0, len(seen))}))

    stepped(lab, job, refresh)
    assert seen == [(1, 10, 1, None), (2, 20, 2, 2)]  # by the names of the time when the job was made


@pytest.mark.rule("7.7")
def test_a_bound_column_is_neither_dropped_nor_widened(lab: Lab) -> None:
    schema = pa.schema([("k", pa.int64()), ("a", pa.float32()), ("b", pa.int8()), ("c", pa.int8())])
    table = lab.store.create_table("r", schema, ["k"])
    lab.store.create_job("j", ["r"], {"j_out": (SCHEMA, KEY)}, columns={"r": ["a", "b"]})
    for change in ({"drop": ["a"]}, {"widen": {"a": pa.float64()}}, {"drop": ["c", "b"]}):
        with pytest.raises(el.SchemaInUse, match="job 'j' reads it"):
            table.alter(**change)  # pyright: ignore[reportArgumentType]
    table.alter(rename={"a": "b", "b": "a"})
    with pytest.raises(el.SchemaInUse, match="'a' cannot be widened"):  # the job's b is the table's a
        table.alter(widen={"a": pa.int16()})
    table.alter(drop=["c"])  # not read by the job
    seen: list[list[str]] = []

    def refresh(ctx: Any) -> None:
        seen.append(ctx.table("r").schema.names)
        ctx.upsert("j_out", table_of({1: (0, 1)}))

    table.upsert([{"k": 1, "b": 0.5, "a": 1}])
    stepped(lab, lab.store.job("j"), refresh)
    assert seen == [["k", "a", "b"]]
    lab.store.drop_job("j")
    table.alter(drop=["a"])
    assert table.schema.names == ["k", "b"]


@pytest.mark.rule("7.7")
def test_a_job_that_does_not_read_the_sequence_of_its_upstream(lab: Lab) -> None:
    schema = SCHEMA.append(pa.field("at", pa.int64(), nullable=False))
    table = lab.store.create_table("r", schema, KEY, sequence_by="at", changelog="full")
    job = lab.store.create_job("j", ["r"], {"j_out": (SCHEMA, KEY)}, columns={"r": ["g", "v"]})
    view = lab.store.create_view("total", "SELECT k, SUM(v) AS v FROM r GROUP BY k", KEY)
    table.upsert([{"k": key, "g": 0, "v": key, "at": 5} for key in range(4)])
    for name, late, early in (("at", 7, 3), ("moment", 9, 4)):
        stepped(lab, job, mirror("r", "j_out"))
        assert view.step() is not None
        if name == "moment":
            table.alter(rename={"at": name})
        table.upsert([{"k": 1, "g": 0, "v": late, name: late}, {"k": 2, "g": 0, "v": -1, name: early}])
        table.delete(pa.table({"k": [3, 0], name: [late, early]}))
    stepped(lab, job, mirror("r", "j_out"))
    assert view.step() is not None
    for output in ("r", "j_out", "total"):
        rows = lab.store.table(output).to_arrow().to_pylist()
        assert {row["k"]: row["v"] for row in rows} == {0: 0, 1: 9, 2: 2}
    assert view.check().ok
    assert lab.store.verify().ok


def test_declared_columns_are_checked(lab: Lab) -> None:
    lab.root_table()

    def make(columns: Any, **options: Any) -> el.Job:
        return lab.store.create_job("j", ["r"], {"j_out": (SCHEMA, KEY)}, columns=columns, **options)

    for columns, words in (
        ({"r": ["nope"]}, "no column 'nope'"),
        ({"q": ["v"]}, "no upstream"),
        ({"r": "v"}, "list of names"),
        (["v"], "dict"),
    ):
        with pytest.raises(el.InvalidInput, match=words):
            make(columns)
    make({"r": ["v"]})
    make({"r": ["v"]}, exist_ok=True)
    with pytest.raises(el.JobExists, match="reads the columns"):
        make({"r": ["g"]}, exist_ok=True)
    with pytest.raises(el.JobExists, match="reads the columns"):
        make(None, exist_ok=True)


@pytest.mark.rule("7.7")
def test_a_log_source_of_a_job_has_the_columns_of_the_job(lab: Lab) -> None:
    table = lab.root_table()
    job = lab.job("j", ["r"])
    lab.put({1: (1, 10)})
    stepped(lab, job, mirror("r", "j_out"))
    swap(table)
    put_swapped(table, 2, 2, 20)
    stepped(lab, job, mirror("r", "j_out"))
    with el.UpstreamLog(lab.store, ["r"], job="j") as log:
        rows = [row for item in received(log) if isinstance(item, el.Chunk) for row in item.data.to_pylist()]
    assert [(row["k"], row["g"], row["v"]) for row in rows] == [(1, 1, 10), (2, 2, 20)]


@pytest.mark.rule("7.7")
def test_a_snapshot_in_chunks_has_the_columns_of_the_job(lab: Lab) -> None:
    table = lab.root_table()
    lab.put({key: (key, 10 * key) for key in range(50)})
    job = lab.job("j", ["r"], snapshot_rows=10)
    swap(table)
    stepped(lab, job, mirror("r", "j_out"))
    assert lab.rows("j_out") == {key: (key, 10 * key) for key in range(50)}


# ---- planted bugs --------------------------------------------------------------------------------------------------


@pytest.mark.planted
def test_a_job_that_reads_todays_columns_is_found(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from epochlog.checkpoint.job import refresh_plan

    monkeypatch.setattr(refresh_plan, "read_by", lambda job, table: table)
    with pytest.raises((AssertionError, KeyError)):
        test_a_job_keeps_its_columns_through_adds_and_renames(lab)


@pytest.mark.planted
def test_an_alter_that_asks_no_job_is_found(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_ddl, "refuse_bound", lambda *_: None)
    with pytest.raises(pytest.fail.Exception):
        test_a_bound_column_is_neither_dropped_nor_widened(lab)


# ---- views ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def view(lab: Lab) -> el.View:
    pytest.importorskip("duckdb")
    lab.root_table()
    return lab.store.create_view("totals", "SELECT g, SUM(v) AS v, COUNT(*) AS n FROM r GROUP BY g", ["g"])


def totals(lab: Lab) -> dict[int, tuple[int, int]]:
    return {row["g"]: (row["v"], row["n"]) for row in lab.store.table("totals").to_arrow().to_pylist()}


@pytest.mark.rule("7.7")
def test_a_view_keeps_its_columns(lab: Lab, view: el.View) -> None:
    table = lab.store.table("r")
    lab.put({1: (1, 10), 2: (1, 20), 3: (2, 5)})
    lab.tick()
    view.step()
    swap(table)
    table.alter(add=[pa.field("c", pa.int8())])
    put_swapped(table, 3, 1, 7, c=None)
    put_swapped(table, 4, 2, 1, c=None)
    lab.tick()
    view.step()
    assert totals(lab) == {1: (37, 3), 2: (1, 1)}
    assert view.check().ok
    with pytest.raises(el.SchemaInUse, match="'totals'"):
        table.alter(drop=["v"])


@pytest.mark.rule("7.7")
def test_a_star_is_the_columns_of_the_time_when_the_view_was_made(lab: Lab) -> None:
    pytest.importorskip("duckdb")
    table = lab.root_table()
    view = lab.store.create_view("copy", "SELECT * FROM r", ["k"])
    lab.put({1: (1, 10)})
    lab.tick()
    view.step()
    table.alter(add=[pa.field("c", pa.int8())])
    swap(table)
    put_swapped(table, 2, 2, 20, c=1)
    lab.tick()
    view.step()
    assert lab.rows("copy") == {1: (1, 10), 2: (2, 20)}
    assert lab.store.table("copy").schema.names == ["k", "g", "v"]


@pytest.mark.rule("7.7")
def test_a_replaced_view_takes_the_present_columns(lab: Lab, view: el.View) -> None:
    table = lab.store.table("r")
    lab.put({1: (1, 10), 2: (1, 20)})
    lab.tick()
    view.step()
    table.alter(rename={"v": "amount", "g": "grp"})
    with pytest.raises(el.InvalidInput):
        lab.store.replace_views({"totals": "SELECT g, SUM(v) AS v, COUNT(*) AS n FROM r GROUP BY g"})
    lab.store.replace_views({"totals": "SELECT grp AS g, SUM(amount) AS v, COUNT(*) AS n FROM r GROUP BY grp"})
    table.upsert([{"k": 3, "grp": 2, "amount": 4}])
    lab.tick()
    while view.step() is not None:
        lab.tick()
    assert totals(lab) == {1: (30, 2), 2: (4, 1)}
    assert view.check().ok


@pytest.mark.rule("7.7")
def test_a_replaced_view_leaves_the_columns_of_the_tables_that_it_no_longer_reads(lab: Lab, view: el.View) -> None:
    table, other = lab.store.table("r"), lab.root_table("s")
    lab.put({1: (1, 10), 2: (1, 20)})
    lab.put({7: (3, 5)}, "s")
    lab.tick()
    view.step()
    swap(other)
    with pytest.raises(el.SchemaInUse):
        table.alter(drop=["v"])
    lab.store.replace_views({"totals": "SELECT v AS g, SUM(g) AS v, COUNT(*) AS n FROM s GROUP BY v"})
    table.alter(drop=["v"])  # also before the commit of the new query: earlier epochs keep their rows
    with pytest.raises(el.SchemaInUse):
        other.alter(drop=["g"])
    with lab.store.snapshot(["r", "totals"], consistency="aligned") as old:
        assert old["r"].to_arrow()["v"].to_pylist() == [10, 20]
        assert old["totals"].to_arrow().to_pylist() == [{"g": 1, "v": 30, "n": 2}]
    lab.tick()
    while view.step() is not None:
        lab.tick()
    assert totals(lab) == {3: (5, 1)}
    assert view.check().ok
    assert lab.store.verify().ok


def test_a_view_that_was_planned_before_an_alter_is_not_made(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("duckdb")
    from epochlog.views import definition

    table = lab.root_table()
    real = definition.derive

    def derive(*args: Any, **parsed: Any) -> Any:
        plan = real(*args, **parsed)
        swap(table)
        return plan

    monkeypatch.setattr(definition, "derive", derive)
    with pytest.raises(el.SchemaChanged, match="repeat the call"):
        lab.store.create_view("totals", "SELECT g, SUM(v) AS v FROM r GROUP BY g", ["g"])
    assert not lab.store.jobs()


@pytest.mark.rule("7.7")
@pytest.mark.parametrize("refresh", ["auto", "full"])
def test_a_view_binds_the_columns_that_its_query_reads(lab: Lab, refresh: str) -> None:
    pytest.importorskip("duckdb")
    schema = pa.schema([("k", pa.int64()), ("g", pa.int64()), ("v", pa.int64()), ("a", pa.int8()), ("b", pa.string())])
    table = lab.store.create_table("r", schema, ["k"])
    table.upsert([{"k": 1, "g": 1, "v": 10, "a": 1, "b": "x"}, {"k": 2, "g": 1, "v": 20, "a": 2, "b": "y"}])
    sql = (
        "WITH q AS (SELECT r.* EXCEPT (a, b) FROM r) SELECT g, SUM(v) AS v, COUNT(*) AS n FROM q WHERE k < 9 GROUP BY g"
    )
    view = lab.store.create_view("totals", sql, ["g"], refresh=refresh)

    def check(expected: dict[int, tuple[int, int]]) -> int:
        lab.tick()
        while view.step() is not None:
            lab.tick()
        assert totals(lab) == expected
        assert view.check().ok
        assert view.explain().startswith("full" if refresh == "full" else "incremental")
        return view.info.committed_epoch

    first = check({1: (30, 2)})
    table.alter(widen={"a": pa.int64()})
    table.upsert([{"k": 3, "g": 2, "v": 5, "a": 1 << 40, "b": "z"}])
    second = check({1: (30, 2), 2: (5, 1)})
    table.alter(drop=["b"], rename={"a": "b"})
    table.upsert([{"k": 3, "g": 1, "v": 6, "b": 3}])
    table.delete([1])
    check({1: (26, 2)})
    table.alter(drop=["b"])
    table.alter(add=[pa.field("b", pa.int32())])
    lab.store.compact(full=True)
    table.upsert([{"k": 4, "g": 3, "v": 1, "b": 5}])
    check({1: (26, 2), 3: (1, 1)})
    for change in ({"drop": ["v"]}, {"drop": ["g"]}, {"widen": {"v": pa.float64()}}):
        with pytest.raises(el.InvalidInput, match="cannot be|widened"):
            table.alter(**change)  # pyright: ignore[reportArgumentType]
    view.rebuild()
    check({1: (26, 2), 3: (1, 1)})
    for epoch, expected in ((first, {1: 30}), (second, {1: 30, 2: 5})):
        rows = lab.store.table("totals").to_arrow(epoch=epoch).to_pylist()
        assert {row["g"]: row["v"] for row in rows} == expected
    lab.store.replace_views({"totals": sql.replace("(a, b)", "(v)").replace("SUM(v)", "SUM(b)")})
    table.alter(drop=["v"])  # no query reads it any more
    with pytest.raises(el.SchemaInUse, match="replace_views"):
        table.alter(drop=["b"])
    lab.reopen()
    view = lab.store.view("totals")
    lab.tick()
    while view.step() is not None:
        lab.tick()
    assert {row["g"]: row["n"] for row in lab.store.table("totals").to_arrow().to_pylist()} == {1: 2, 3: 1}
    assert lab.store.verify().ok


@pytest.mark.rule("7.7")
def test_a_view_made_again_need_not_name_its_columns(lab: Lab) -> None:
    pytest.importorskip("duckdb")
    table = lab.root_table()
    lab.store.create_view("copy", "SELECT k FROM r", ["k"])
    table.alter(drop=["v"])
    lab.store.create_view("copy", "SELECT k FROM r", ["k"], exist_ok=True)
    with pytest.raises(el.JobExists, match="its query is"):
        lab.store.create_view("copy", "SELECT k FROM r WHERE k > 1", ["k"], exist_ok=True)


# ---- random histories ------------------------------------------------------------------------------------------------


def sums(altered: AlteredTable) -> dict[str, tuple[int, int | None]]:
    """Return the groups of column 4, with the number of their rows and the sum of column 3, by the model."""
    groups: dict[str, list[int | None]] = {}
    for row in altered.rows.values():
        if row.get(4) is not None:
            groups.setdefault(row[4], []).append(row.get(3))
    known = {group: [value for value in values if value is not None] for group, values in groups.items()}
    return {group: (len(values), sum(known[group]) if known[group] else None) for group, values in groups.items()}


def sums_in_sql(altered: AlteredTable) -> str:
    names = {id_: name for id_, name, _ in altered.columns}
    group, value = names[4], names[3]
    return f"SELECT {group} AS g, COUNT(*) AS n, SUM({value}) AS s FROM t WHERE {group} IS NOT NULL GROUP BY {group}"


@pytest.mark.rule("7.7")
@pytest.mark.medium
@pytest.mark.parametrize("seed", seeds(range(6), 2))
def test_a_view_equals_its_query_through_random_alters_of_its_table(lab: Lab, seed: int) -> None:
    pytest.importorskip("duckdb")
    rng, refused = random.Random(seed), 0
    altered = AlteredTable(lab.store, changelog=rng.choice(["upsert", "full"]))
    view = lab.store.create_view("totals", sums_in_sql(altered), ["g"])
    bound = {id_ for id_, _, _ in altered.columns}
    for turn in range(40):
        altered.upsert(random_rows(rng, altered.columns, 4, 5))
        action = rng.random()
        if action < 0.6:
            change, last = random_alter(rng, altered), altered.last_change
            try:
                altered.alter(**(change or {"rename": {altered.columns[0][1]: f"k{turn}"}}))
            except el.SchemaInUse:
                refused, altered.last_change = refused + 1, last
                assert bound & {id_ for id_, name, _ in altered.columns if change and name in str(change)}
        elif action < 0.8 and altered.rows:
            altered.delete(rng.sample(sorted(altered.rows), 1))
        elif action < 0.9:
            lab.store.replace_views({"totals": sums_in_sql(altered)})
            bound = {id_ for id_, _, _ in altered.columns}
        else:
            lab.store.compact("t", full=True)
        if rng.random() < 0.5:
            lab.tick()
            while view.step() is not None:
                lab.tick()
            with lab.store.snapshot(["t", "totals"], consistency="aligned") as snapshot:
                rows = snapshot["totals"].to_arrow().to_pylist()
                assert snapshot["t"].to_arrow().to_pylist() == altered.moments[max(altered.moments)].read()
            assert {row["g"]: (row["n"], row["s"]) for row in rows} == sums(altered)
            assert view.check().ok
    assert refused
    assert lab.store.verify().ok
