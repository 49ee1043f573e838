"""Filters of thousands of terms, at every door: those that are taken are answered, the others are refused with the
limit, and the process lives. Arrow goes down into an expression by recursion, so a long chain would end it.
"""

from __future__ import annotations

import subprocess
import sys
from operator import or_
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el
from epochlog.store.scan.pruning import MOST_CALLS, MOST_DEPTH, check_filter
from epochlog.store.types.predicate import MOST_TERMS, _join_pairwise, parse_predicate

pytestmark = pytest.mark.local_only
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
ROWS = pa.table({"id": range(5_000), "v": range(5_000)})


def chain(terms: int) -> pc.Expression:
    """As a loop makes it: each term around all before it."""
    expression = pc.field("id") == 0
    for number in range(1, terms):
        expression = expression | (pc.field("id") == number)
    return expression


def text(terms: int, join: str = "OR") -> str:
    sign = "=" if join == "OR" else "<>"
    return f" {join} ".join(f"id {sign} {number}" for number in range(terms))


@pytest.mark.parametrize("join", ["OR", "AND"])
@pytest.mark.medium
def test_a_long_text_is_no_deep_expression(join: str) -> None:
    expression = parse_predicate(text(MOST_TERMS, join), SCHEMA)
    row_count = ROWS.filter(expression).num_rows
    assert row_count == (MOST_TERMS if join == "OR" else ROWS.num_rows - MOST_TERMS)
    depth = max(len(line) - len(line.lstrip("(")) for line in str(expression).split(" "))
    assert depth < 20


@pytest.mark.medium
def test_many_values_are_one_term() -> None:
    values = ", ".join(map(str, range(20_000)))
    assert ROWS.filter(parse_predicate(f"id IN ({values}) AND v < 10", SCHEMA)).num_rows == 10


@pytest.mark.medium
def test_the_measure_of_an_expression() -> None:
    check_filter(chain(1_000))
    check_filter(pc.field("v") == "(" * 100_000)  # what is quoted is no call
    check_filter(pc.field("v") == '\\"' + "(" * 100_000)
    check_filter(pc.field("id").isin(list(range(100_000))))
    with pytest.raises(el.InvalidInput, match=f"at most {MOST_DEPTH} and {MOST_CALLS}"):
        check_filter(chain(MOST_DEPTH + 10))
    wide = [pc.field("id") == number for number in range(MOST_CALLS)]
    with pytest.raises(el.InvalidInput, match="calls"):
        check_filter(_join_pairwise(wide, or_))


DOORS = """
import sys
sys.path.insert(0, {folder!r})
import epochlog as el
from epochlog.__main__ import main
from test_long_filters import SCHEMA, ROWS, chain, text

with el.open({root!r}, durability="os") as store:
    table = store.create_table("t", SCHEMA, ["id"])
    table.upsert(ROWS)
    snapshot = store.snapshot(["t"])
    doors = {{
        "to_arrow": lambda e: table.to_arrow(filter=e),
        "scan": lambda e: table.scan(filter=e).read_all(),
        "changes": lambda e: table.changes(0, filter=e).read_all(),
        "snapshot": lambda e: snapshot["t"].to_arrow(filter=e),
        "dataset": lambda e: snapshot["t"].dataset().to_table(filter=e),
        "count": lambda e: snapshot["t"].dataset().count_rows(filter=e),
    }}
    for terms in (10_000, 50_000):
        deep = chain(terms)
        for name, door in doors.items():
            try:
                print(name, terms, door(deep))
            except el.InvalidInput as error:
                assert "levels deep" in str(error) and len(str(error)) < 500, error
                print("refused", name)
    assert table.to_arrow(filter=chain(1_000)).num_rows == 1_000
    assert snapshot["t"].dataset().to_table(filter=chain(1_000)).num_rows == 1_000
    snapshot.close()
code = main(["read", {root!r}, "t", "--json", "--filter", text(9_000)])
print("command", code)
"""


@pytest.mark.slow
def test_every_door_refuses_and_the_process_lives(tmp_path: Path) -> None:
    script = DOORS.format(root=str(tmp_path / "s"), folder=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stdout[-500:], done.stderr[-3000:])
    assert done.stdout.split().count("refused") == 12, done.stdout
    assert "command 1" in done.stdout and "more than 2000 comparisons" in done.stderr and len(done.stderr) < 500
