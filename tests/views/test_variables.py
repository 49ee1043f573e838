"""Texts of views with `${`, which Spark would replace: refused wherever a text comes in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el

TEXTS = (
    "SELECT id, '${env:HOME}' AS day FROM t",
    "SELECT id, day FROM t WHERE day = '${spark.app.name}'",
    "SELECT id, day AS `${system:user.home}` FROM t",
    "SELECT id, day FROM ${env:TABLE}",
    "SELECT id, day FROM t -- ${x}",
    "${env:QUERY}",
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "store") as opened:
        opened.create_table("t", pa.schema([("id", pa.int64()), ("day", pa.string())]), ["id"])
        yield opened


@pytest.mark.parametrize("text", TEXTS)
def test_a_variable_is_refused_at_create_and_replace(store: el.Store, text: str) -> None:
    good = "SELECT id, day FROM t"
    with pytest.raises(el.InvalidInput, match=r"view 'v': its query has \$\{, where Spark would put the value"):
        store.create_view("v", text, ["id"])
    view = store.create_view("v", good, ["id"])
    with pytest.raises(el.InvalidInput, match=r"view 'v': its query has \$\{"):
        store.replace_views({"v": text})
    assert view.sql == good


def test_the_advice_gives_the_text(store: el.Store) -> None:
    store.table("t").upsert([{"id": 1, "day": "${env:HOME}"}, {"id": 2, "day": "mon"}])
    view = store.create_view("v", "SELECT id, day FROM t WHERE day = '$' || '{env:HOME}'", ["id"])
    store.checkpoint()
    view.step()
    assert store.table("v").to_arrow()["id"].to_pylist() == [1]
