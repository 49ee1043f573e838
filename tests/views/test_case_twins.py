"""Views over tables with columns whose names differ by case alone: a name means one column, or is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.views import scope

SCHEMA = pa.schema([("k", pa.int64()), ("K", pa.int64()), ("v", pa.int64())])
TOLD = "'t' has the columns 'k' and 'K', which a query takes for one name: rename all but one of them"


def rows_of(store: el.Store, text: str, key: str) -> list[dict[str, object]]:
    view = store.create_view(f"view{len(store.tables())}", text, [key])
    store.checkpoint()
    view.step()
    return store.table(view.name).to_arrow().to_pylist()


@pytest.fixture
def store(tmp_path: Path) -> el.Store:
    made = el.open(tmp_path / "s", durability="os")
    made.create_table("t", SCHEMA, ["k"]).upsert([{"k": 1, "K": 100, "v": 5}])
    made.create_table("u", pa.schema([("k", pa.int64())]), ["k"]).upsert([{"k": 1}, {"k": 100}])
    made.create_table("w", pa.schema([(name, pa.int64()) for name in "abc"]), ["a"]).upsert([{"a": 1, "b": 2, "c": 3}])
    return made


def check_twins_are_refused(store: el.Store) -> None:
    for text in (
        "SELECT t.K AS x, t.v FROM t",
        "SELECT K AS x FROM t",
        "SELECT COUNT(t.K) AS c, v FROM t GROUP BY v",
        "SELECT v FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.K)",
        "SELECT t.v FROM t JOIN u ON t.K = u.k",
        "SELECT v, ROW_NUMBER() OVER (ORDER BY t.K) AS n FROM t",
        "SELECT * EXCEPT (K) FROM t",
        "SELECT a.v FROM t AS a(x, y, v) WHERE a.y = 100",
    ):
        with pytest.raises(el.InvalidInput) as error:
            rows_of(store, text, "v")
        assert str(error.value).startswith(TOLD), text


def test_a_column_is_never_read_for_its_twin(store: el.Store) -> None:
    """`t.K` gave the values of `k`, in silence."""
    with store:
        check_twins_are_refused(store)
        with pytest.raises(el.InvalidInput, match=r"two columns of one name: k, K; .*alter\(rename="):
            rows_of(store, "SELECT * FROM t", "v")
        with pytest.raises(el.InvalidInput, match="^'b' has the columns 'q' and 'Q'"):
            rows_of(store, "SELECT b.Q AS x FROM w AS b(q, Q, v)", "x")
        assert rows_of(store, "SELECT v FROM t", "v") == [{"v": 5}]
        store.table("t").alter(rename={"K": "other"})
        assert rows_of(store, "SELECT t.other AS x, t.K AS y FROM t", "y") == [{"x": 100, "y": 1}]


@pytest.mark.planted
def test_a_column_that_is_read_for_its_twin_is_found(store: el.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def first(source: scope.FromSource, name: str) -> object:
        matches = source.by_lower_case.get(name.casefold(), [])
        return scope.syntax.column(source.alias, matches[0]) if matches else None

    monkeypatch.setattr(scope.FromSource, "column", first)
    with store, pytest.raises((AssertionError, pytest.fail.Exception)):
        check_twins_are_refused(store)
