"""Makes the golden store of tables of format 3: `python tests/formats/golden_evolved.py` writes it.

Only who raises that format runs it. Its files are those of `golden_altered.py`.
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

import epochlog as el
from formats.golden import LONG, Clock, write
from formats.golden_altered import readings

FOLDER = Path(__file__).parent / "golden_evolved"
STRUCT = pa.struct([("x", pa.int8()), ("l", pa.list_(pa.struct([("y", pa.string())])))])
MORE = pa.struct(
    [("new", pa.int8()), ("x", pa.int32()), ("l", pa.list_(pa.struct([("y", pa.string()), ("z", pa.date32())])))]
)
COLUMNS = pa.schema(
    [("id", pa.int64()), ("a", pa.int32()), ("d", pa.decimal128(5, 2)), ("on", pa.date32()), ("s", STRUCT)]
)


def fill(store: el.Store, clock: Clock) -> None:
    """Each kind of alter of format 3, among commits and compactions, with files of each version."""
    for name, changelog in (("plain", "upsert"), ("full", "full")):
        table = store.create_table(name, COLUMNS, ["id"], changelog=changelog, options=LONG)
        row = {"d": Decimal("1.25"), "on": date(2024, 2, 29), "s": {"x": 1, "l": [{"y": "y"}, None]}}
        table.upsert([{"id": key, "a": key, **row} for key in range(6)])
        clock.tick()
        store.compact(name, full=True)
        table.upsert([{"id": 6, "a": None, "d": None, "on": None, "s": None}])
        table.delete([5])
        clock.tick()
        table.alter(
            add=[pa.field("c", pa.string()), pa.field("n", pa.list_(pa.int8()))],
            defaults={"c": "new", "n": [1, None]},
            widen={"a": pa.float64(), "d": pa.decimal128(9, 4), "on": pa.timestamp("us"), "s": MORE},
        )
        clock.tick()
        wide = {"d": Decimal("1.0001"), "on": datetime(2024, 2, 29, 1), "s": {"new": 1, "x": 70_000, "l": []}}
        table.upsert([{"id": 1, "a": 0.5, **wide, "c": None, "n": []}])
        clock.tick()
        if name == "plain":
            store.compact(name, full=True)
        table.alter(drop=["c"], add=[pa.field("e", pa.decimal128(5, 2))], defaults={"e": Decimal("9.99")})
        clock.tick()
        table.update([{"id": 7, "a": 2.5}])
        clock.tick()


if __name__ == "__main__":
    write(FOLDER, fill, readings)
