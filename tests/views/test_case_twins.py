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
        matches = source.by_lower_case.get(name.lower(), [])
        return scope.syntax.column(source.alias, matches[0]) if matches else None

    monkeypatch.setattr(scope.FromSource, "column", first)
    with store, pytest.raises((AssertionError, pytest.fail.Exception)):
        check_twins_are_refused(store)


@pytest.mark.parametrize("ss", ["ss", "SS"])
def test_letters_that_only_a_fold_of_case_joins_are_two_names(tmp_path: Path, ss: str) -> None:
    """A column `ß` was read for an outer `ss`, and an output `ß` for a column `ss`: `casefold` makes both one."""
    with el.open(tmp_path / "s", durability="os") as store:
        named = pa.schema([("id", pa.int64()), ("ss", pa.int64())])
        store.create_table("t", named, ["id"]).upsert([{"id": 1, "ss": 100}, {"id": 2, "ss": 7}])
        store.create_table("u", pa.schema([("id", pa.int64()), ("ß", pa.int64())]), ["id"]).upsert([{"id": 1, "ß": 7}])
        exists = f"SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE {ss} = 7)"
        assert rows_of(store, exists, "id") == [{"id": 2}]
        first = f"SELECT -ss AS `ß`, id FROM t ORDER BY {ss}, id LIMIT 1"
        assert rows_of(store, first, "id") == [{"ß": -7, "id": 2}]
        both = f"SELECT t.id, t.{ss} AS ss, u.ẞ AS `ß` FROM t JOIN u USING (id)"
        assert rows_of(store, both, "id") == [{"id": 1, "ss": 100, "ß": 7}]
        with pytest.raises(el.InvalidInput, match="unknown"):
            rows_of(store, "SELECT id, u.ss AS x FROM u", "id")
