"""Views mean Spark's texts: their rows, types and columns are those that Spark has answered to the raw text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest

import confirmed
import epochlog as el
from confirmed import NotConfirmed, RawJudge, SparkAnswer, SparkRefusal, compare, kept
from corner_tables import KEYS, tables_of_set
from epochlog.errors import InvalidInput
from judged_texts import QUERIES, SUMS, random_texts, texts_of_sets
from reading_faults import FAULTS
from seeds import seeds
from view_texts import OTHERWISE, READING, REFUSED, TEXTS, Text
from views_of_texts import difference, rows_of_view


def answers_of_views(texts: Mapping[str, Text]) -> tuple[set[str], dict[str, str]]:
    """Return the texts that no view can have, and those whose views differ from Spark's answer."""
    refused, differing = set[str](), dict[str, str]()
    for name, text in texts.items():
        try:
            wrong = difference(text)
        except InvalidInput:
            refused.add(name)
            continue
        if wrong:
            differing[name] = wrong
    return refused, differing


@pytest.mark.medium
@pytest.mark.parametrize("group", READING)
def test_a_view_of_each_text_has_the_answer_of_spark(group: str) -> None:
    """Values, types, and columns in order, of the texts that are easily read wrongly."""
    texts = {f"{group}: {name}": text for name, text in READING[group].items()}
    assert answers_of_views(texts) == (REFUSED & texts.keys(), {})


@pytest.mark.medium
def test_a_view_of_each_other_text_has_the_answer_of_spark() -> None:
    read = {f"{group}: {name}" for group, texts in READING.items() for name in texts}
    texts = {name: text for name, text in TEXTS.items() if name not in read}
    refused, differing = answers_of_views(texts)
    assert refused == REFUSED - read and differing.keys() == OTHERWISE - REFUSED, differing


@pytest.mark.medium
@pytest.mark.parametrize("first", seeds(range(0, QUERIES + SUMS, 60)))
def test_a_random_text_has_the_answer_of_spark_or_needs_it(first: int) -> None:
    """A view of a text that DuckDB answers otherwise than Spark needs a Spark session."""
    answers, judge, refused = kept("integers"), RawJudge(), 0
    for sql in islice(random_texts(), first, first + 60):
        reply = answers.reply(sql)
        if isinstance(reply, SparkRefusal):
            refused += 1
            continue
        try:
            rows = rows_of_view(Text(sql, ()), reply)
        except InvalidInput:
            refused += 1
            continue
        assert compare(reply, rows, sql, with_types=True) == "", sql
        assert judge.difference(reply, sql, answers.tables) == "", sql
    assert refused < 30


@pytest.mark.parametrize("name", ["integers", "shop", "large shop", "nexmark"])
@pytest.mark.medium
def test_duckdb_answers_a_text_that_histories_are_judged_by_as_spark(name: str) -> None:
    """The tokens in DuckDB's spelling: without this comparison a history would be judged by an unknown text."""
    answers, judge = kept(name), RawJudge()
    left_out = {*random_texts(), *(text.asked for texts in READING.values() for text in texts.values())}
    texts = [sql for sql in texts_of_sets()[name] if sql not in left_out]
    differing = {sql: judge.difference(answers.reply(sql), sql, answers.tables) for sql in texts}
    others = {sql for sql, difference in differing.items() if difference}
    assert others == {TEXTS[case].sql for case in OTHERWISE if TEXTS[case].tables == name}, differing


# planted errors


@pytest.mark.planted
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_error_of_reading_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, group = FAULTS[fault]
    plant(monkeypatch)
    _, differing = answers_of_views(READING[group])
    assert differing


def test_a_text_without_an_answer_and_one_of_another_spark_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(NotConfirmed, match="spark_judge"):
        kept("shop").reply("SELECT 1 AS one")
    lines = confirmed.file_of("shop").read_text("utf-8").splitlines()
    tables = tables_of_set("shop")
    for heading in ({**json.loads(lines[0]), "spark": "0.1"}, {**json.loads(lines[0]), "tables": "others"}):
        monkeypatch.setattr(confirmed, "FOLDER", tmp_path)
        confirmed.file_of("shop").write_text("\n".join([json.dumps(heading), *lines[1:]]), "utf-8")
        with pytest.raises(NotConfirmed, match="spark_judge"):
            kept.__wrapped__("shop")
    confirmed.keep("shop", tables, kept("shop").replies)
    assert kept.__wrapped__("shop").replies == kept("shop").replies


@pytest.mark.parametrize("change", [
    lambda rows: rows.slice(1),
    lambda rows: rows.select(rows.column_names[::-1]),
    lambda rows: rows.set_column(0, "id", rows.column(0).cast(pa.int64())),
    lambda rows: rows.set_column(1, "v", pa.nulls(rows.num_rows, pa.int32())),
])  # fmt: skip
def test_rows_types_and_the_order_of_columns_are_compared(change: Callable[[pa.Table], pa.Table]) -> None:
    text = TEXTS["a semi join"]
    reply = kept(text.tables).reply(text.sql)
    assert isinstance(reply, SparkAnswer)
    rows = rows_of_view(text, reply)
    assert compare(reply, rows, text.sql, with_types=True) == ""
    assert compare(reply, change(rows), text.sql, with_types=True)


def has_null_key(text: Text) -> bool:
    reply = kept(text.tables).reply(text.asked)
    assert isinstance(reply, SparkAnswer)
    places = [[name for name, _ in reply.columns].index(column) for column in text.key]
    return any(json.loads(row)[place] is None for row in reply.rows for place in places)


@pytest.mark.medium
@pytest.mark.parametrize("group", READING)
def test_views_come_to_the_answers_of_spark_step_by_step(group: str, tmp_path: Path) -> None:
    """In a store: with the values of each table in another order and a row that goes, then with the table's rows."""
    tables, texts = tables_of_set("integers"), READING[group]
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=10) as store:
        for name, rows in tables.items():
            store.create_table(name, rows.schema, list(KEYS["integers"][name]))
            store.table(name).upsert(with_values_reversed(rows, KEYS["integers"][name]))
        store.table("p").upsert([{"id": 99, "name": "O'Brien", "g": 1, "v": 1}])
        views = {}
        for number, (name, text) in enumerate(texts.items()):
            if not has_null_key(text):
                with suppress(InvalidInput):
                    views[name] = store.create_view(f"view{number}", text.sql, list(text.key))
        store.checkpoint()
        for view in views.values():
            assert view.step()
        for name, rows in tables.items():
            store.table(name).upsert(rows)
        store.table("p").delete([{"id": 99}])
        store.checkpoint()
        for name, view in views.items():
            while view.step() is not None:
                pass
            reply = kept("integers").reply(texts[name].asked)
            assert isinstance(reply, SparkAnswer)
            assert compare(reply, store.table(view.name).to_arrow(), texts[name].asked, with_types=True) == "", name


def with_values_reversed(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    backwards = rows.take(list(range(rows.num_rows))[::-1])
    columns = [rows.column(name) if name in key else backwards.column(name) for name in rows.column_names]
    return pa.Table.from_arrays(columns, schema=rows.schema)
