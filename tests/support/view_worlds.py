"""Random views over tables of random types, for histories in a store, in a list whose texts Spark has answered.

    PYTHONPATH=tests/support:examples .venv/bin/python -m view_worlds

makes the list anew; `spark_judge` then asks Spark for its texts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from corner_tables import typed
from epochlog.errors import EpochlogError
from epochlog.store.types.schema import TableSchema
from epochlog.views import duckdb_engine
from epochlog.views.derivation import derive
from view_queries import TABLES, Queries
from view_types import FAMILIES, TypedTexts, sql_type

FILE = Path(__file__).parents[1] / "views" / "confirmed" / "worlds.json"
WORLDS, NAMES = 6, ("v0", "v1", "v2", "v3")
COLUMNS = sorted({column for columns, _ in TABLES.values() for column in columns})
KEYS = sorted({column for _, key in TABLES.values() for column in key})
Types = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class ViewText:
    """Text of a view with its key, and texts that can replace it."""

    sql: str
    key: tuple[str, ...]
    replacements: tuple[str, ...]


@dataclass(frozen=True)
class WorldOfViews:
    """Types of the columns of tables, and the texts that each view can have. A text reads views before it."""

    types: Types
    views: Mapping[str, tuple[ViewText, ...]]

    @property
    def texts(self) -> list[str]:
        """Return all texts."""
        views = [view for views in self.views.values() for view in views]
        return [sql for view in views for sql in (view.sql, *view.replacements)]


@cache
def worlds() -> tuple[WorldOfViews, ...]:
    """Return the worlds of the list."""
    return tuple(
        WorldOfViews(
            world["types"],
            {
                name: tuple(ViewText(v["sql"], tuple(v["key"]), tuple(v["replacements"])) for v in views)
                for name, views in world["views"].items()
            },
        )
        for world in json.loads(FILE.read_text("utf-8"))
    )


def tables_of_world(number: int) -> dict[str, pa.Table]:
    """Return small tables of a world, and the rows that the first text of each view has over them."""
    from confirmed import RawJudge

    world, judge = worlds()[number], RawJudge()
    tables = typed(number, world.types)
    for name, views in world.views.items():
        tables[name] = _rows_of_view(judge, tables, views[0], schemas_of(tables, world.views))
    return tables


def schemas_of(tables: Mapping[str, pa.Table], views: Mapping[str, Any]) -> dict[str, TableSchema]:
    """Return tables and views as epochlog describes them."""
    keys = {**{name: key for name, (_, key) in TABLES.items()}, **{name: of[0].key for name, of in views.items()}}
    return {name: TableSchema(name, rows.schema, keys[name]) for name, rows in tables.items()}


def _rows_of_view(
    judge: Any, tables: Mapping[str, pa.Table], view: ViewText, schemas: Mapping[str, TableSchema]
) -> pa.Table:
    """Return the rows of a text that a view on DuckDB can have. Raises EpochlogError, duckdb.Error."""
    schema = duckdb_engine.output_schema(derive(view.sql, schemas, view.key), schemas)
    return judge.rows(view.sql, tables).cast(schema)


def random_types(chance: random.Random) -> dict[str, dict[str, str]]:
    """Choose the family of types of each column name, and a type of it for each table."""
    some = chance.sample(sorted(FAMILIES), 3)
    of_values = ["integer", "float", "STRING", *some]
    of_keys = ["integer", *(name for name in some if name not in ("BOOLEAN", "float"))]
    families = {column: chance.choice(of_keys if column in KEYS else of_values) for column in COLUMNS}
    if "integer" not in (families["a"], families["v"]):
        families[chance.choice(["a", "a", "v"])] = "integer"
    return {
        name: {column: chance.choice(FAMILIES[families[column]]) for column in columns}
        for name, (columns, _) in TABLES.items()
    }


def random_view(
    chance: random.Random, types: Types, schemas: Mapping[str, TableSchema]
) -> tuple[str, tuple[str, ...] | None]:
    """Return a random query over tables and views, and columns that are unique in it. schemas: of the views."""
    tables = {**TABLES, **{name: (tuple(s.schema.names), tuple(s.primary_key)) for name, s in schemas.items()}}
    kinds = {**types, **{name: {f.name: sql_type(f.type) for f in s.schema} for name, s in schemas.items()}}
    queries = Queries(chance, tables=tables, column_types=kinds)
    query = queries.sums() if chance.random() < 0.25 else queries.query(chance.choice([1, 1, 2]))
    if not query.unique:
        return query.sql, None
    sql, key = query.sql, tuple(chance.sample(query.unique, len(query.unique)))
    if chance.random() < 0.5:
        texts = TypedTexts(chance, dict(zip((f"q.{c}" for c in query.columns), query.types, strict=True)))
        outputs = [f"{texts.filled(f'q.{c}') if c in key else f'q.{c}'} AS {c}" for c in query.columns]
        sql = f"SELECT {', '.join(outputs)} FROM ({sql}) q"
    return sql, key


def replacement(chance: random.Random, sql: str, schema: pa.Schema) -> str:
    """Return a query of some rows of another one."""
    texts = Queries(chance)
    columns = tuple(texts.typed(f"q.{field.name}", sql_type(field.type)) for field in schema)
    return f"SELECT {', '.join(columns)} FROM ({sql}) q WHERE {texts.predicate(columns, 0)}"


def has_key(rows: pa.Table, key: tuple[str, ...] | list[str]) -> bool:
    """Return True if rows have a key each that no other has."""
    keys = rows.select(list(key))
    return not any(column.null_count for column in keys.columns) and (
        len(set(map(repr, keys.to_pylist()))) == keys.num_rows
    )


def _views(number: int, chance: random.Random, types: Types) -> dict[str, list[ViewText]]:
    from confirmed import RawJudge

    judge, tables = RawJudge(), typed(number, types)
    views: dict[str, list[ViewText]] = {}
    for name in NAMES:
        candidates = _some_views(chance, types, judge, tables, views)
        views[name] = [next(candidates), next(candidates)]
        tables[name] = _rows_of_view(judge, tables, views[name][0], schemas_of(tables, views))
    return views


def _some_views(
    chance: random.Random, types: Types, judge: Any, tables: Mapping[str, pa.Table], views: Mapping[str, Any]
) -> Iterator[ViewText]:
    """Yield random views that DuckDB can have, whose rows have keys."""
    schemas = schemas_of(tables, views)
    while True:
        sql, key = random_view(chance, types, {name: schemas[name] for name in views})
        if key is None:
            continue
        try:
            rows = _rows_of_view(judge, tables, ViewText(sql, key, ()), schemas)
            if not rows.num_rows or not has_key(rows, key):
                continue
            others = [replacement(chance, sql, rows.schema) for _ in range(2)]
            for other in others:
                _rows_of_view(judge, tables, ViewText(other, key, ()), schemas)
        except (EpochlogError, duckdb.Error, pa.ArrowInvalid):
            continue
        yield ViewText(sql, key, tuple(others))


def main() -> None:
    """Make the list."""
    made = []
    for number in range(WORLDS):
        chance = random.Random(f"world {number}")
        types = random_types(chance)
        views = _views(number, chance, types)
        made.append({"types": types, "views": {name: [asdict(view) for view in of] for name, of in views.items()}})
    FILE.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
