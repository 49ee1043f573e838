"""Names of a view's query: outputs in HAVING and ORDER BY, as Spark reads them, and outputs without a name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el

SALES = pa.schema([("id", pa.int64()), ("day", pa.string()), ("cents", pa.int64())])
ROWS = [[1, 2, 3, 4, 5], ["a", "a", "b", "c", "b"], [5, -3, 1, 2, -9]]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    made = el.open(tmp_path / "store", durability="os")
    made.create_table("sales", SALES, ["id"]).upsert(pa.table(ROWS, schema=SALES))
    yield made
    made.close()


def rows_of(store: el.Store, sql: str, key: str) -> list[tuple[object, ...]]:
    view = store.create_view("v", sql, [key])
    store.checkpoint()
    while view.step() is not None:
        pass
    rows = [tuple(row.values()) for row in store.table("v").to_arrow().sort_by(key).to_pylist()]
    store.drop_view("v")
    return rows


@pytest.mark.parametrize("sql, key, rows", [
    (
        "SELECT day, SUM(cents) AS cents FROM sales GROUP BY day HAVING cents > 0",
        "day", [("a", 2), ("c", 2)],
    ),
    (
        "SELECT day, SUM(cents) AS cents FROM sales GROUP BY day HAVING cents + MAX(cents) > 4",
        "day", [("a", 2)],
    ),
    (
        "SELECT 1 AS k, SUM(cents) AS cents FROM sales HAVING cents < 0",
        "k", [(1, -4)],
    ),
    (  # a column of GROUP BY comes before an output
        "SELECT day, MAX(-id) AS id FROM sales GROUP BY day, id HAVING id = 1",
        "day", [("a", -1)],
    ),
    (  # and so does an expression of GROUP BY
        "SELECT cents + 1 AS c, -100 AS cents FROM sales GROUP BY cents + 1 HAVING cents + 1 > 3",
        "c", [(6, -100)],
    ),
    (
        "SELECT id, -cents AS cents FROM sales ORDER BY cents + 0, id LIMIT 3",
        "id", [(1, -5), (3, -1), (4, -2)],
    ),
    (
        "SELECT id, -cents AS cents FROM sales ORDER BY sales.cents + 0, id LIMIT 2",
        "id", [(2, 3), (5, 9)],
    ),
    (
        "SELECT day, -SUM(cents) AS cents FROM sales GROUP BY day ORDER BY cents + 0, day LIMIT 1",
        "day", [("a", -2)],
    ),
])  # fmt: skip
def test_outputs_are_read_by_having_and_order_by(
    store: el.Store, sql: str, key: str, rows: list[tuple[object, ...]]
) -> None:
    """Compare with the rows of Spark 4 for the same text."""
    assert rows_of(store, sql, key) == rows


@pytest.mark.parametrize("output", ["COUNT(*)", "COUNT(1)", "SUM(cents)", "SUM(cents) + 1"])
def test_an_output_without_a_name_is_refused(store: el.Store, output: str) -> None:
    with pytest.raises(el.InvalidInput, match=r"column 2 of the query has no name: write .* AS name"):
        store.create_view("v", f"SELECT day, {output} FROM sales GROUP BY day", ["day"])


def test_a_cast_keeps_the_name_of_its_column(store: el.Store) -> None:
    assert rows_of(store, "SELECT CAST(id AS INT), CAST(cents AS STRING) FROM sales WHERE id = 1", "id") == [(1, "5")]


def test_a_membership_of_other_width_is_refused(store: el.Store) -> None:
    narrow = "(id, cents) NOT IN (SELECT id FROM sales)"
    wide = "sales.id IN (SELECT id, cents FROM sales UNION SELECT id, cents FROM sales)"
    for sql in (
        f"SELECT id FROM sales WHERE {narrow}",
        f"SELECT id FROM sales WHERE {wide}",
        f"SELECT sales.id FROM sales LEFT SEMI JOIN sales s ON s.id = sales.id AND {wide}",
        f"SELECT id, COUNT(*) AS n FROM sales GROUP BY id HAVING COUNT(*) > 0 OR {wide}",
        f"SELECT id FROM sales ORDER BY {wide}, id LIMIT 1",
        f"WITH q AS (SELECT id, {wide} AS b FROM sales) SELECT id FROM q",
        f"SELECT id, (SELECT COUNT(*) FROM sales WHERE {wide}) AS n FROM sales",
    ):
        with pytest.raises(el.InvalidInput, match="IN compares . value"):
            store.create_view("v", sql, ["id"])


def test_a_comment_may_follow_the_query(store: el.Store) -> None:
    assert rows_of(store, "SELECT id FROM sales WHERE id < 2; -- the first", "id") == [(1,)]


def test_a_table_in_use_by_a_view_names_the_view(store: el.Store) -> None:
    store.create_table("base", pa.schema([pa.field("id", pa.int64(), nullable=False), ("c", pa.int64())]), ["id"])
    store.create_view("shown", "SELECT id, c FROM base", primary_key=["id"])
    with pytest.raises(el.TableInUse, match=r"store\.drop_view\('shown'\)"):
        store.drop_table("shown")
    with pytest.raises(el.TableInUse, match="read by view 'shown'; drop that view first"):
        store.drop_table("base")
    with pytest.raises(el.InvalidSchema, match=r"CAST\(NULL AS STRING\)"):
        store.create_view("empty", "SELECT id, NULL AS y FROM base", primary_key=["id"])
