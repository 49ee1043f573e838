"""Each place of the library at which Spark parses a text, with the reason for which nobody's text puts the value of a
variable there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import epochlog

ROOT = Path(epochlog.__file__).parent
PARSING = frozenset(
    (
        *(
            "sql",
            "expr",
            "selectExpr",
            "parsePlan",
            "parseQuery",
            "parseExpression",
            "parseTableSchema",
            "parseDataType",
        ),
        *("createTempView", "createOrReplaceTempView", "createGlobalTempView", "createOrReplaceGlobalTempView"),
        *("where", "filter", "from_ddl", "fromDDL", "mapInArrow", "mapInPandas", "applyInArrow", "applyInPandas"),
    )
)
"""Methods of Spark whose texts its SQL parser reads, and which replaces `${…}` in them by default."""
PLACES = {
    ("spark/view_engine.py", "ViewSession._planned", "sql"): "a view's text, in a session that replaces nothing",
    ("spark/view_engine.py", "ViewSession.named", "createOrReplaceTempView"): "names of tables: a to z, 0 to 9 and _",
    ("spark/frames.py", "read_frame", "where"): "numbers",
    ("spark/frames.py", "read_frame", "mapInArrow"): "a schema that is no text",
    ("spark/frames.py", "FrameWriter.write", "mapInArrow"): "a constant",
    ("spark/compaction.py", "_run_tasks", "mapInArrow"): "a constant",
    ("spark/state_sql.py", "SparkStateSQL.make_block", "mapInArrow"): "a constant",
    ("spark/parquet_files.py", "parquet_relation", "parseDataType"): "JSON, which Spark's SQL parser does not read",
}
"""Where a text goes to Spark's parser, and what the text is made of."""


def places(path: Path, name: str) -> Iterator[tuple[str, str, str]]:
    """Yield the file, the function and the method of each call that passes a text to Spark's parser."""

    def walk(node: ast.AST, within: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            within = (*within, node.name)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PARSING:
            on_columns = node.func.attr in ("where", "filter") and not any(map(is_text, node.args))
            if not on_columns:
                yield name, ".".join(within), node.func.attr
        for child in ast.iter_child_nodes(node):
            yield from walk(child, within)

    yield from walk(ast.parse(path.read_text()), ())


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def test_every_text_that_spark_parses_is_known() -> None:
    calls = {place for path in (ROOT / "spark").rglob("*.py") for place in places(path, str(path.relative_to(ROOT)))}
    assert calls == set(PLACES)


def test_no_other_package_gives_texts_to_spark() -> None:
    """The library's modules outside of spark/ have no session, so a call of that name is of another library."""
    outside = [path for path in ROOT.glob("*.py") if "pyspark" in path.read_text()]
    assert {path.name for path in outside if [*places(path, path.name)]} == set()


@pytest.mark.parametrize(
    "text",
    [
        "class A:\n    def b(self, s, t):\n        return s.sql(t)\n",
        "def b(frame, name):\n    return frame.where(f'{name} > 1')\n",
        "def b(F, t):\n    return [F.expr(t)]\n",
    ],
)
def test_a_planted_place_is_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "planted.py").write_text(text)
    ((name, function, method),) = places(tmp_path / "planted.py", "planted.py")
    assert (name, function, method) not in PLACES
