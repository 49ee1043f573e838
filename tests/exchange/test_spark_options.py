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


SETS = (options.LOAD_OPTIONS, options.FEED_OPTIONS, options.SAVE_OPTIONS)


@pytest.mark.parametrize("known", SETS, ids=["load", "feed", "save"])
@pytest.mark.parametrize("option, message", [
    ("versionAsOff", "did you mean 'versionAsOf'|takes no option versionAsOff"),
    ("paths", "did you mean 'path'"),
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
def test_what_would_silently_mean_other_rows_is_refused(option: str, message: str, known: options.OptionSet) -> None:
    with pytest.raises(el.InvalidInput, match=message):
        options.parse_store_location({**PLACE, option: "x"}, known)


@pytest.mark.parametrize("known", SETS, ids=["load", "feed", "save"])
@pytest.mark.parametrize("option", ["foo", "snapshotToken", "FOO"])
def test_an_option_that_is_none_is_refused_with_those_that_are(option: str, known: options.OptionSet) -> None:
    with pytest.raises(el.InvalidInput) as caught:
        options.parse_store_location({**PLACE, option: "x"}, known)
    listed = ", ".join(known.options)
    assert str(caught.value) == f"{known.taker} takes no option {option}; it takes {listed}"


def test_the_options_of_each_kind_are_listed_and_taken() -> None:
    for known in SETS:
        for name in known.options:
            for spelled in (name, name.lower(), name.upper()):
                options.refuse_unknown_options({spelled: "x"}, known)
    named = {name for known in SETS for name in known.options}
    assert named == {*options.LOCATION, *options.READ, *options.WRITE, "minPartitions"}
    with pytest.raises(el.InvalidInput, match="a write of .* takes no option minPartitions; it takes path"):
        options.refuse_unknown_options({"minpartitions": "4"}, options.SAVE_OPTIONS)


def test_options_of_spark_itself_are_let_pass() -> None:
    own = {**PLACE, "checkpointlocation": "c", "queryname": "q"}
    assert options.parse_store_location(own, options.SAVE_OPTIONS).table == "orders"


def test_every_option_is_in_the_reference() -> None:
    known = {*options.LOCATION, *options.READ, *options.WRITE}
    text = (DOCS / "SPARK.md").read_text("utf-8")
    assert not {name for name in known - {"volatile"} if not re.search(rf"\b{name}\b", text)}
