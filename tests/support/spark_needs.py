"""Marker `needs`: features of Spark without which a test has nothing to show; the versions that lack one deselect it.

A plugin of pytest. A feature is found by what is there, so a patch of Spark that has it runs the tests. On the newest
version all tests run. tests/spark/test_features.py shows how the library refuses a feature that is not there.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import pytest

MARKER = "needs"
T = TypeVar("T")


@cache
def _java_class(path: str) -> bytes:
    """Return a class of Spark's, by its path below its package `sql`; no bytes if there is none."""
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    for jar in Path(spec.origin).parent.glob("jars/spark-*_*.jar"):
        if jar.name.startswith(("spark-catalyst_", "spark-sql_")):
            with zipfile.ZipFile(jar) as classes, suppress(KeyError):
                return classes.read(f"org/apache/spark/sql/{path}.class")
    return b""


def _has_class(path: str) -> Callable[[], bool]:
    return lambda: bool(_java_class(path))


def _has_setting(name: str) -> Callable[[], bool]:
    return lambda: name.encode() in _java_class("internal/SQLConf$")


def _says(name: str) -> Callable[[], bool]:
    """Return a function that answers as the library: by a value of spark/versions.py."""

    def there() -> bool:
        from epochlog.spark import versions

        return bool(getattr(versions, name))

    return there


FEATURES: Mapping[str, Callable[[], bool]] = {
    "limits": _says("STREAM_LIMITS"),  # of a micro-batch, and an end that availableNow fixes: Spark 4.2
    "changes": _has_class("connector/catalog/Changelog"),  # CHANGES FROM in SQL, and `changes` of a reader: 4.2
    "time": _says("HAS_TIME"),  # columns of TIME: 4.1
    "geometry": _has_class("connector/catalog/Changelog"),  # GEOMETRY and GEOGRAPHY: 4.2; 4.1 has them turned off
    "refresh": _has_class("execution/datasources/v2/V2TableRefreshUtil"),  # tables of a frame are loaded again: 4.1
    "no columns": _says("ROWS_WITHOUT_COLUMNS"),  # batches without columns, whose rows are counted: 4.1
    "constraints": _has_class("connector/catalog/constraints/Constraint"),  # PRIMARY KEY in SQL: 4.1
    "stream moments": _has_class("catalyst/analysis/NamedStreamingRelation"),  # a moment that a stream names: 4.2
    "few columns": _has_class("connector/catalog/TableInfo"),  # an INSERT that does not name all columns: 4.1
    "doubled quotes": _has_setting("spark.sql.legacy.consecutiveStringLiterals.enabled"),  # 'a''b' has a quote: 4.1
    "pipelines": lambda: find_spec("pyspark.pipelines") is not None,  # Spark Declarative Pipelines: 4.1
}
"""Features by the names that the marker takes, each with a function that says if this Spark has it."""


def missing(names: Collection[object], where: str = "") -> list[str]:
    """Return those of a marker's features that this Spark lacks. Raises UsageError for a name that is none."""
    unknown = [name for name in names if name not in FEATURES]
    if unknown or not names:
        named = f"no feature {unknown[0]!r}" if unknown else "no feature named"
        raise pytest.UsageError(f"{where}: {MARKER}: {named}; there are {', '.join(FEATURES)}")
    return [str(name) for name in names if not FEATURES[str(name)]()]


@pytest.hookimpl(trylast=True)  # after the choice by markers: only a run of Spark's tests asks for what Spark has
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lacks = [item for item in items if any(missing(mark.args, item.nodeid) for mark in item.iter_markers(MARKER))]
    if lacks:
        config.hook.pytest_deselected(items=lacks)
        items[:] = [item for item in items if item not in lacks]


def has(name: str) -> bool:
    """Return True if this Spark has a feature."""
    return not missing([name])


def is_read_alike(text: str) -> bool:
    """Return True if this Spark reads a text in SQL as the newest does, and as views do on each Spark. One that has no
    doubled quotes reads 'a''b' as 'a' and 'b'.
    """
    return has("doubled quotes") or not re.search("''|\"\"", text[1:-1])


def cases(by_name: Mapping[str, T], *feature: str, of: Callable[[T], bool]) -> list[object]:
    """Return the names of cases as parameters of a test; those for which `of` is true of their value need features."""
    mark = pytest.mark.needs(*feature)
    return [pytest.param(name, marks=mark) if of(value) else name for name, value in by_name.items()]
