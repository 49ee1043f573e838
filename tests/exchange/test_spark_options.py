"""Options of `format("epochlog")` that are none: slips, and what other formats have, are told, never passed over."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import epochlog as el
from epochlog.spark import options

pytestmark = pytest.mark.local_only

PLACE = {"path": "lake", "table": "orders"}
DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("option, message", [
    ("versionAsOff", "did you mean 'versionAsOf'"),
    ("startingTimestamp", "set startingVersion"),
    ("endingTimestamp", "set endingVersion"),
    ("maxFilesPerTrigger", "maxEpochsPerTrigger"),
    ("ignoreDeletes", "filter"),
    ("ignoreChanges", "filter"),
    ("skipChangeCommits", "filter"),
    ("replaceWhere", "replaces all rows"),
    ("PartitionOverwriteMode", "replaces all rows"),
    ("overwriteSchema", "mergeSchema"),
])  # fmt: skip
def test_what_would_silently_mean_other_rows_is_refused(option: str, message: str) -> None:
    with pytest.raises(el.InvalidInput, match=message):
        options.parse_store_location({**PLACE, option: "x"})


def test_options_of_spark_itself_are_let_pass() -> None:
    assert options.parse_store_location({**PLACE, "checkpointLocation": "c", "queryName": "q"}).table == "orders"


def test_every_option_is_in_the_reference() -> None:
    known = {*options.LOCATION, *options.READ, *options.WRITE}
    text = (DOCS / "SPARK.md").read_text("utf-8")
    assert not {name for name in known - {"volatile"} if not re.search(rf"\b{name}\b", text)}
