"""Documents of the page: equal to what the command line says, one read of the catalog, sentence, chain and errors."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.__main__ import main
from epochlog.page.changes import apply, difference
from epochlog.page.curves import Curves
from epochlog.page.document import (
    agreement_document,
    lanes_document,
    look_at_store,
    status_document,
    table_document,
)
from epochlog.page.port import encoded
from epochlog.page.summary import newest_common_epoch, typed_error
from epochlog.store.epochs.table_epochs import TableEpochs
from epochlog.store.epochs.view import EpochView
from epochlog.store.types.epoch_set import ints
from page_store import HOSTILE, PageStore, break_views, pack_orders

pytestmark = [pytest.mark.local_only, pytest.mark.medium]


def status(lake: PageStore) -> dict[str, Any]:
    handle = lake.store._handle
    return status_document(handle.files.place, look_at_store(handle))


def test_a_store_at_rest_can_be_read_as_of_its_newest_epoch(lake: PageStore) -> None:
    summary = status(lake)["summary"]
    assert summary["epoch"] == lake.store.last_epoch
    assert summary["text"].startswith("Everything can be read as of ")
    assert summary["text"].endswith("ago: it is the newest epoch.")
    assert summary["held_by"] == [] and summary["chain"] == [] and summary["lag_ms"] == 0


def test_the_sentence_names_what_holds_back_and_the_type_of_its_error(lake: PageStore) -> None:
    before = lake.store.last_epoch
    break_views(lake)
    document = status(lake)
    summary = document["summary"]
    with lake.store.snapshot(consistency="global") as snapshot:
        assert set(snapshot.epochs.values()) == {document["global"]["epoch"]}
    assert before <= summary["epoch"] < lake.store.table("by_day").info.max_committed_epoch
    assert "Held back by `by_region`: its refresh has failed for " in summary["text"]
    assert "(ZeroDivisionError); `slow`: no live process runs it, due " in summary["text"]
    failing, slow = summary["held_by"]
    assert (failing["table"], failing["job"], failing["kind"]) == ("by_region", "by_region", "failed")
    assert failing["error"] == {
        "type": "ZeroDivisionError",
        "text": "ZeroDivisionError: integer division or modulo by zero",
    }
    assert (slow["table"], slow["kind"], slow["error"]) == ("slow", "runner", None)
    assert summary["chain"] == ["by_region", "orders", "slow"]
    assert summary["lag_ms"] > 0
    (error,) = document["errors"]
    assert (error["kind"], error["of"], error["type"]) == ("refresh", "by_region", "ZeroDivisionError")


def test_it_is_true_that_the_tables_can_be_read_at_the_epoch_of_the_sentence_and_at_no_later_one(
    lake: PageStore,
) -> None:
    break_views(lake)
    epoch = status(lake)["summary"]["epoch"]
    names = [table.name for table in lake.store.tables()]
    with lake.store.snapshot(names, consistency="as_of", epoch=epoch) as snapshot:
        assert set(snapshot.epochs) == set(names)
    with lake.store.snapshot(names, consistency="aligned") as snapshot:
        assert set(snapshot.epochs.values()) == {epoch}


def test_tables_without_a_common_epoch_are_left_out_with_what_descends_from_them(lake: PageStore) -> None:
    lake.store.create_view("late", "SELECT day FROM days", ["day"])
    lake.store.create_view("later", "SELECT day FROM late", ["day"])
    summary = status(lake)["summary"]
    assert summary["missing"] == ["late", "later"]
    assert summary["text"].startswith("6 of 8 tables can be read as of ")
    assert "Left out `late`: " in summary["text"]
    assert {"late", "later", "days"} <= set(summary["chain"])
    assert summary["epoch"] == lake.store.last_epoch


def test_a_table_that_has_merged_boundaries_holds_nothing_back() -> None:
    """At epoch 4 and 5 the merging view is not valid, but the late view is what no later epoch is valid for."""
    root = TableEpochs(1, "root", commits=ints([1, 3, 5, 7]), changes=ints([1, 3, 5, 7]))
    merging = TableEpochs(2, "merging", derived=True, upstreams=(1,), commits=ints([1, 3, 7]), changes=ints([1, 3, 7]))
    late = TableEpochs(3, "late", derived=True, upstreams=(1,), commits=ints([1, 3]), changes=ints([1, 3]))
    common = newest_common_epoch(EpochView(7, 0, {1: root, 2: merging, 3: late}))
    assert (common.epoch, common.held_by) == (4, ("late",))
    late_since_6 = TableEpochs(3, "late", derived=True, upstreams=(4,), commits=ints([1, 3]), changes=ints([1, 3]))
    other = TableEpochs(4, "other", commits=ints([1, 3, 6]), changes=ints([1, 3, 6]))
    view = EpochView(7, 0, {1: root, 2: merging, 3: late_since_6, 4: other})
    assert (newest_common_epoch(view).epoch, newest_common_epoch(view).held_by) == (4, ("late",))


def test_many_late_tables_are_counted(lake: PageStore) -> None:
    for number in range(60):
        lake.store.create_job(f"late_{number}", ["days"], {f"late_{number}": (pa.schema([("n", pa.int64())]), ["n"])})
    summary = status(lake)["summary"]
    assert summary["held"] == 60 and len(summary["held_by"]) == 50 and len(summary["missing"]) == 60
    assert summary["text"].startswith("6 of 66 tables can be read as of ")
    assert summary["text"].endswith("; and 57 tables more.")


def test_failing_and_parked_jobs_that_hold_nothing_back_are_named_too(lake: PageStore) -> None:
    """`slow` lacks an older change than `by_region`, so that it alone holds the store back."""
    lake.put(3)
    assert lake.by_region.step_local(lake.refresh) is not None
    lake.put(4)
    lake.fail()
    summary = status(lake)["summary"]
    assert [held["cause"] for held in summary["held_by"]] == ["slow"]
    assert summary["text"].endswith(" Also failing: `by_region`.")


def test_an_empty_store_and_one_without_commits_say_so(tmp_path: Any) -> None:
    with el.open(str(tmp_path / "new"), durability="os") as store:
        handle = store._handle
        assert status_document("", look_at_store(handle))["summary"]["text"] == "The store has no table yet."
        store.create_table("orders", pa.schema([("id", pa.int64())]), ["id"])
        summary = status_document("", look_at_store(handle))["summary"]
        assert summary["text"] == "Nothing is committed yet: 1 table."


def test_it_has_every_number_of_the_command_line(lake: PageStore, capsys: pytest.CaptureFixture[str]) -> None:
    break_views(lake)
    with lake.store.snapshot(["orders"], consistency="latest") as snapshot:
        snapshot.tag("monday")
        document = json.loads(encoded(status(lake)))
        assert main(["status", str(lake.root), "--json", "--no-rows"]) == 0
        shown = json.loads(capsys.readouterr().out)
    assert document["held"][0]["tables"] == {"orders": lake.store.table("orders").info.max_committed_epoch}
    for name in ("root", "last_epoch", "loads", "tags"):
        assert document[name] == shown[name], name
    changing = {"lag_ms", "rows", "waits_for", "barrier"}  # by the time between the two reads
    for field in ("tables", "jobs"):
        for mine, theirs in zip(document[field], shown[field], strict=True):
            assert theirs.keys() - {"rows"} <= mine.keys()
            for name in theirs.keys() - changing:
                assert mine[name] == theirs[name], (field, mine["name"], name)


def test_the_graph_has_levels_and_upstreams(lake: PageStore) -> None:
    tables = {table["name"]: table for table in status(lake)["tables"]}
    assert {name: table["level"] for name, table in tables.items()} == {
        "best_day": 2, "by_day": 1, "by_region": 1, "days": 0, "orders": 0, "slow": 1
    }  # fmt: skip
    assert tables["best_day"]["upstreams"] == ["by_day"] and tables["orders"]["upstreams"] == []


def test_a_document_is_one_read_of_the_catalog_however_many_tables_there_are(
    lake: PageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, reads = lake.store._handle.catalog, []
    real_read = catalog.read
    monkeypatch.setattr(catalog, "read", lambda body: reads.append(body) or real_read(body))
    for number in range(20):
        lake.store.create_table(f"more_{number}", pa.schema([("id", pa.int64())]), ["id"])
    reads.clear()
    look = look_at_store(lake.store._handle)
    assert len(reads) == 1
    status_document("", look)
    assert len(reads) == 1, "the document is made of the look alone"


def test_the_packs_of_a_table_s_log(lake: PageStore) -> None:
    pack_orders(lake)
    document = table_document(lake.store._handle, "orders")
    assert document["log"]["packs"] == 1 and document["log"]["packed_commits"] >= 16
    packing, *merges = document["compactions"]
    assert packing["packs"] == 1 and packing["commits"] == document["log"]["packed_commits"]
    assert all("packs" not in merge for merge in merges)


def test_a_table_in_full(lake: PageStore) -> None:
    document = table_document(lake.store._handle, "best_day")
    assert document["sql"] == lake.store.view("best_day").sql
    assert document["explain"] == {"text": lake.store.view("best_day").explain(), "error": None}
    assert [commit["epoch"] for commit in document["commits"]] == lake.store.table("best_day").history()[
        "epoch"
    ].to_pylist()
    assert document["schema"][0] == {"name": "day", "type": "string", "nullable": False, "key": 1}
    assert table_document(lake.store._handle, "orders")["explain"] is None
    with pytest.raises(el.TableNotFound):
        table_document(lake.store._handle, "nowhere")


def test_two_tables_agree_at_the_newest_epoch_valid_for_both_and_the_reason_is_given(lake: PageStore) -> None:
    handle = lake.store._handle
    assert agreement_document(handle, ["by_day", "slow"])["why_not"] == []
    break_views(lake)
    document = agreement_document(handle, ["by_day", "slow"])
    with lake.store.snapshot(["by_day", "slow"], consistency="aligned") as snapshot:
        assert set(snapshot.epochs.values()) == {document["epoch"]}
    (why,) = document["why_not"]
    assert why["table"] == "slow" and "does not reflect the change of orders" in why["reason"]
    assert document["newest"]["by_day"] > document["newest"]["slow"]
    with pytest.raises(el.InvalidInput, match="1 to 16 tables"):
        agreement_document(handle, [])
    with pytest.raises(el.TableNotFound):
        agreement_document(handle, ["by_day", HOSTILE])


def test_lanes_have_consistent_stretches_and_the_epochs_of_snapshots_and_tags(lake: PageStore) -> None:
    break_views(lake)
    handle = lake.store._handle
    with lake.store.snapshot(["by_day", "slow"], consistency="aligned") as snapshot:
        tag = snapshot.tag("monday")
        document = lanes_document(handle, ["by_day", "slow"])
    assert document["stretches"][-1]["readable"] is False
    assert document["stretches"][-1]["why_not"][0]["table"] == "slow"
    assert any(stretch["readable"] for stretch in document["stretches"])
    marks = {(mark["table"], mark["epoch"], mark["tag"]) for mark in document["marks"]}
    assert marks == {(table, epoch, is_tag) for table, epoch in tag.epochs.items() for is_tag in (True, False)}


@pytest.mark.parametrize(
    "text, kind",
    [
        ("ZeroDivisionError: integer division", "ZeroDivisionError"),
        ("pyarrow.lib.ArrowInvalid: no", "pyarrow.lib.ArrowInvalid"),
        ("KeyError", "KeyError"),
        (f"{HOSTILE}: x", "Error"),
        ("a b: c", "Error"),
        ("", "Error"),
    ],
)
def test_errors_have_types(text: str, kind: str) -> None:
    assert typed_error(text) == {"type": kind, "text": text}


def test_events_turn_one_document_into_the_next(lake: PageStore) -> None:
    before = json.loads(encoded(status(lake)))
    break_views(lake)
    lake.store.create_table("aaa", pa.schema([("id", pa.int64())]), ["id"])
    lake.store.drop_table("days")
    after = json.loads(encoded(status(lake)))
    event = difference(before, after)
    assert event["drop"] == {"tables": ["days"]}
    assert apply(before, event) == after
    orders = next(patch for patch in event["put"]["tables"] if patch["name"] == "orders")
    assert "max_committed_epoch" in orders and "primary_key" not in orders, "only what differs"
    assert difference(after, after) == {}


def test_no_name_or_message_ends_a_line_of_an_event(lake: PageStore) -> None:
    break_views(lake)
    lake.fail(ValueError(f"{HOSTILE}\n\nevent: status\ndata: {{}}\r\u2028"))
    text = encoded(status(lake))
    assert b"\n" not in text and b"\r" not in text and text.isascii()
    assert HOSTILE in json.loads(text)["errors"][0]["text"]


def test_curves_follow_lag_rows_and_barriers(lake: PageStore) -> None:
    handle = lake.store._handle
    curves = Curves(handle)
    curves.sample(look_at_store(handle))
    first = curves.newest()
    assert first is not None and first["rows_per_s"] is None and first["commit_ms"] is None
    lake.put(10, 11, 12)
    curves.sample(look_at_store(handle))
    second = curves.newest()
    assert second is not None
    seconds = (second["at_ms"] - first["at_ms"]) / 1000
    assert second["rows_per_s"] == pytest.approx(3 / seconds, rel=0.01)
    assert second["commit_ms"] > 0 and second["collection_ms"] > 0 and second["latency_ms"] >= 0
    assert second["lag_ms"] > 0 and second["l0_segments"] > first["l0_segments"]
    document = curves.document()
    assert document["at_ms"] == [first["at_ms"], second["at_ms"]] and curves.version == 2
