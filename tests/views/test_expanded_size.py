"""Small texts with large work: the expanded tree of a new view is bounded, and DuckDB's memory is."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from sqlglot import exp

import epochlog as el
from epochlog.store.types.schema import TableSchema
from epochlog.views import derivation, duckdb_engine, expanded_size, value_kinds
from epochlog.views.duckdb_functions import require_local
from epochlog.views.normal_form import normal_form
from epochlog.views.parsing import parse
from epochlog.views.value_kinds import ValueKinds
from lab import Lab
from width_work import Meter, superlinear

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("s", pa.string())])


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "store")
    with lab.store:
        lab.store.create_table("t", SCHEMA, ["k"])
        yield lab


def chained(levels: int) -> str:
    """Return a query of CTEs, each of which joins the one before with itself."""
    ctes = [f"a{at} AS (SELECT x.k, y.v FROM a{at - 1} x JOIN a{at - 1} y ON x.k = y.k)" for at in range(1, levels + 1)]
    return f"WITH a0 AS (SELECT k, v FROM t), {', '.join(ctes)} SELECT k, v FROM a{levels}"


@pytest.mark.parametrize("levels", [12, 60])
def test_a_chain_of_self_joins_is_refused_before_it_is_expanded(
    levels: int, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 levels took 7 s, and 9 did not end."""
    view = lab.store.create_view("v", "SELECT k, v FROM t", ["k"])
    monkeypatch.setattr(derivation, "normal_form", None)
    message = rf"more than 20,000; the CTE 'a{levels - 1}' is written 2 times and has [\d,]+ parts each time; make it a"
    with pytest.raises(el.LimitExceeded, match=message):
        lab.store.create_view("w", chained(levels), ["k"])
    with pytest.raises(el.LimitExceeded, match=rf"^view 'v': .*{message}"):
        lab.store.replace_views({"v": chained(levels)})
    assert view.sql == "SELECT k, v FROM t"


def test_a_subquery_is_named_where_there_is_no_cte(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expanded_size, "MOST_NODES", 100)
    sides = " UNION ALL ".join([f"SELECT k, {' + '.join(['v'] * 5)} AS v FROM t"] * 10)
    with pytest.raises(el.LimitExceeded, match=r"its largest subquery 'q' has [\d,]+; make it a view"):
        lab.store.create_view("w", f"SELECT k, v FROM ({sides}) q", ["k"])


@pytest.mark.medium
def test_columns_that_stars_stand_for_count(lab: Lab) -> None:
    lab.store.create_table(
        "wide", pa.schema([("k", pa.int64()), *((f"c{at}", pa.int64()) for at in range(1999))]), ["k"]
    )
    lab.store.create_view("one", "SELECT * FROM (SELECT * FROM wide) a", ["k"])
    text = "SELECT * FROM wide"
    for at in range(51):
        text = f"SELECT * FROM ({text}) q{at}"
    with pytest.raises(el.LimitExceeded):
        lab.store.create_view("many", text, ["k"])


def test_stored_views_beyond_the_limit_go_on(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    view = lab.store.create_view("v", chained(3), ["k"])
    monkeypatch.setattr(expanded_size, "MOST_NODES", 10)
    lab.store.table("t").upsert(pa.table([[1, 2], [3, 4], ["a", "b"]], schema=SCHEMA))
    lab.store.checkpoint()
    assert view.step() is not None
    lab.reopen()
    assert lab.store.table("v").to_arrow().num_rows == 2
    with pytest.raises(el.LimitExceeded):
        lab.store.replace_views({"v": chained(3)})


# ---- the measure is that of the tree -------------------------------------------------------------------------------


def random_query(chance: random.Random) -> str:
    """Return a query of CTEs that read earlier ones and the table, several times, also in subqueries."""
    names, ctes = ["t"], list[str]()
    for at in range(chance.randrange(1, 6)):
        reads = [chance.choice(names) for _ in range(chance.randrange(1, 4))]
        joins = "".join(f" JOIN {name} x{n} ON x{n}.k = x0.k" for n, name in enumerate(reads) if n)
        columns = chance.choice(["x0.k, x0.v", "x0.*", "x0.k, x0.v + 1 AS v"])
        where = f" WHERE EXISTS (SELECT 1 FROM {chance.choice(names)} z WHERE z.k = x0.k)" * chance.randrange(2)
        body = f"SELECT {columns} FROM {reads[0]} x0{joins}{where}"
        body = f"SELECT * FROM ({body}) i" if chance.random() < 0.3 else body
        ctes.append(f"c{at} AS ({body})")
        names.append(f"c{at}")
    return f"WITH {', '.join(ctes)} SELECT k, v FROM {names[-1]}"


def disagreements(seeds: range) -> list[str]:
    """Return the random queries whose measure is not that of their expanded trees, by a factor of two."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    tables = {"t": TableSchema("t", schema, ("k",))}
    wrong = list[str]()
    for seed in seeds:
        query = random_query(random.Random(seed))
        measured = expanded_size._Measure({"t": 2}).of(parse(query), {}).nodes
        nodes = [
            node for node in normal_form(parse(query), tables).query.walk() if not isinstance(node, exp.Identifier)
        ]
        if not len(nodes) / 2 <= measured <= 2 * len(nodes):
            wrong.append(f"{measured} for {len(nodes)}: {query}")
    return wrong


@pytest.mark.medium
def test_the_measure_is_that_of_the_expanded_tree() -> None:
    assert disagreements(range(60)) == []


@pytest.mark.planted
def test_a_measure_that_counts_each_cte_once_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Once(expanded_size._Measure):
        def of(self, query: exp.Expr, ctes: Mapping[str, expanded_size._Size]) -> expanded_size._Size:
            return super().of(query, {name: expanded_size._Size(0, size.columns) for name, size in ctes.items()})

    monkeypatch.setattr(expanded_size, "_Measure", Once)
    assert disagreements(range(20))


# ---- work ----------------------------------------------------------------------------------------------------------


def kinds_found(levels: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how often a kind is found for a query of that many levels of v + v."""
    asked, real = list[object](), ValueKinds._kind
    text = "SELECT k, v FROM t"
    for _ in range(levels):
        text = f"SELECT k, v + v AS v FROM ({text}) q"
    tables = {"t": TableSchema("t", SCHEMA, ("k",))}
    form = normal_form(parse(text), tables)
    with monkeypatch.context() as counting:
        counting.setattr(ValueKinds, "_kind", lambda kinds, node: (asked.append(node), real(kinds, node))[1])
        require_local(form.query, form.occurrences, tables)
    return len(asked)


def test_the_kind_of_each_expression_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each level found those of the level below several times: 14 levels took 3 s, and each further one doubled it."""
    few, more, most = (kinds_found(levels, monkeypatch) for levels in (5, 10, 15))
    assert most - more == more - few


@pytest.mark.planted
def test_kinds_that_are_found_anew_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_kinds, "_remembered", lambda known, find, node: find(node))
    few, more = (kinds_found(levels, monkeypatch) for levels in (3, 6))
    assert more > 4 * few


def nested(root: Path, count: int, meter: Meter) -> None:
    """Create views whose texts are proportional to a number."""
    with Lab(root / f"{count}-{len(list(root.iterdir()))}").store as store:
        store.create_table("t", SCHEMA, ["k"])
        cases = ", ".join(f"CASE WHEN v > {at} THEN v ELSE 0 END AS c{at}" for at in range(count))
        names = ", ".join(f"c{at}" for at in range(count))
        both = f"(SELECT k, {cases} FROM t) a FULL JOIN (SELECT k, {cases} FROM t) b USING (k, {names})"
        summed = f"SELECT k, {' + '.join(['v'] * count)} AS v FROM t"
        meter("sum", lambda: store.create_view("summed", summed, ["k"]))
        meter("using", lambda: store.create_view("merged", f"SELECT * FROM {both}", ["k"]))


@pytest.mark.slow
def test_no_work_grows_faster_than_the_text(tmp_path: Path) -> None:
    assert superlinear(lambda count, meter: nested(tmp_path, count, meter), 4, kinds=["instructions"]) == []


# ---- memory --------------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh_engine() -> Iterator[None]:
    duckdb_engine._database.cache_clear()
    yield
    duckdb_engine._database.cache_clear()


@pytest.mark.medium
def test_views_take_no_more_memory_than_they_may(lab: Lab, fresh_engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """34 levels of s || s took 17 GiB."""
    monkeypatch.setenv(duckdb_engine.MEMORY, "100MB")
    text = "SELECT k, s FROM t"
    for _ in range(27):
        text = f"SELECT k, s || s AS s FROM ({text}) q"
    view = lab.store.create_view("v", text, ["k"])
    lab.store.table("t").upsert(pa.table([[1], [1], ["a"]], schema=SCHEMA))
    lab.store.checkpoint()
    with pytest.raises(el.LimitExceeded, match="more memory .* 100MB; set EPOCHLOG_VIEWS_MEMORY to more"):
        view.step()
    lab.store.replace_views({"v": "SELECT k, s FROM t"})
    assert view.step() is not None


def test_a_size_that_is_none_is_named(lab: Lab, fresh_engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(duckdb_engine.MEMORY, "much")
    with pytest.raises(el.InvalidInput, match="EPOCHLOG_VIEWS_MEMORY is a size such as 8GB, not 'much'"):
        lab.store.create_view("v", "SELECT k, s FROM t", ["k"])


def test_the_default_is_a_quarter_and_what_spills_is_of_this_user_alone(fresh_engine: None) -> None:
    size = int(duckdb_engine._memory_limit().removesuffix(" bytes"))
    with duckdb_engine._connected() as connection:
        ((folder,),) = connection.execute("SELECT current_setting('temp_directory')").fetchall()
    assert 1 << 27 <= size <= machine_bytes() // 4
    assert Path(folder).stat().st_mode & 0o77 == 0


def machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
