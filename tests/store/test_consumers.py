"""Named consumers: what they hold and when they let go, who may acknowledge, and what becomes of late ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

import epochlog as el
from epochlog.store.catalog.keys import consumer_key
from epochlog.store.changelog import consumers as consumers_module
from epochlog.store.changelog.consumer import Consumer
from epochlog.store.changelog.consumers import open_consumer
from epochlog.store.metadata import consumer_record
from epochlog.store.metadata.consumer_record import get_consumer
from epochlog.store.metadata.lookups import find_table
from epochlog.store.retention.holds import Hold, holds_of, put_holds
from epochlog.store.session.leases import LEASE_MS
from lab import Lab, mirror
from seeds import seeds

HOUR_MS = 3_600_000
SHORT = el.TableOptions(log_retention=timedelta(0), history_retention=timedelta(0))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path / "s")
    made.root_table(options=SHORT)
    yield made
    made.store.close()


def opened(lab: Lab, name: str = "dash", tables: tuple[str, ...] = ("r",), **options: object) -> Consumer:
    return open_consumer(lab.store._handle, name, tables, **options)  # type: ignore[arg-type]


def info(lab: Lab, name: str = "dash") -> el.ConsumerInfo:
    return {consumer.name: consumer for consumer in lab.store.consumers()}[name]


def puts(lab: Lab, count: int, table: str = "r") -> list[int]:
    epochs = []
    for key in range(count):
        lab.tick()
        epochs.append(lab.put({key: (0, lab.now_ms)}, table))
    return epochs


def dies(consumer: Consumer) -> None:
    """As if its process had died: nobody renews its lease any more."""
    consumer._handle.leases.forget(consumer._record.holder)


def log_after(lab: Lab, epoch: int, table: str = "r") -> list[int]:
    return sorted(set(lab.store.table(table).changes(epoch).read_all()["_commit_version"].to_pylist()))


def retain(lab: Lab) -> None:
    lab.store.compact("r", full=True)


# ---- position and acknowledgement --------------------------------------------------------------------------------


@pytest.mark.rule("4.12")
def test_it_begins_with_the_rows_and_goes_on_where_it_acknowledged(lab: Lab) -> None:
    first, second = puts(lab, 2)
    with opened(lab) as consumer:
        assert (consumer.position, consumer.incarnation) == (None, 1)
        consumer.ack(first)
        assert consumer.position == first
    lab.reopen()
    with opened(lab) as consumer:
        assert (consumer.position, consumer.incarnation) == (first, 2)
        consumer.ack(second)
        consumer.ack(first)  # never backwards
        assert consumer.position == second == info(lab).position


@pytest.mark.rule("4.12")
def test_a_crash_between_an_acknowledgement_and_the_close_loses_nothing(lab: Lab) -> None:
    (epoch,) = puts(lab, 1)
    consumer = opened(lab)
    consumer.ack(epoch)
    dies(consumer)
    assert opened(lab).position == epoch


@pytest.mark.rule("4.12")
def test_what_is_not_there_yet_cannot_be_acknowledged(lab: Lab) -> None:
    puts(lab, 1)
    with opened(lab) as consumer:
        for epoch in (lab.store.last_epoch + 1, -1, "7", None):
            with pytest.raises(el.InvalidInput):
                consumer.ack(epoch)  # type: ignore[arg-type]
        assert info(lab).position is None
    with pytest.raises(el.InvalidInput, match="closed"):
        consumer.ack(1)


@pytest.mark.rule("4.13")
@pytest.mark.logs("consumer_dropped")
def test_a_new_incarnation_fences_the_earlier_one(lab: Lab) -> None:
    first, second, third = puts(lab, 3)
    old, new = opened(lab), opened(lab)
    new.ack(first)
    with pytest.raises(el.Fenced, match="incarnation 2"):
        old.ack(second)
    with pytest.raises(el.Fenced):
        old.check()
    old.close()
    new.check()
    assert (info(lab).position, info(lab).state) == (first, "open")
    lab.store._handle.leases.renew()
    lab.store.drop_consumer("dash")
    for gone in (old, new):
        with pytest.raises(el.ConsumerNotFound, match="none"):
            gone.check()
    again = opened(lab)  # its numbers begin anew, and fence all the same
    again.ack(second)
    for gone in (replace(old._record, incarnation=1), old._record):
        with pytest.raises((el.Fenced, el.InvalidInput)):
            Consumer(lab.store._handle, gone).ack(third)
    assert info(lab).position == second


@pytest.mark.rule("4.12")
def test_an_acknowledged_position_writes_nothing_again(lab: Lab) -> None:
    (epoch,) = puts(lab, 1)
    with opened(lab) as consumer:
        consumer.ack(epoch)
        lab.tick()
        consumer.ack(epoch)
        assert info(lab).acked_ms == lab.now_ms - 1000


# ---- holding -----------------------------------------------------------------------------------------------------


@pytest.mark.rule("4.14")
def test_it_holds_the_log_past_its_position_and_nothing_before(lab: Lab) -> None:
    epochs = puts(lab, 4)
    with opened(lab) as consumer:
        consumer.ack(epochs[1])
        lab.tick(10)
        retain(lab)
        assert log_after(lab, epochs[1]) == epochs[2:]
        with pytest.raises(el.LogTruncated):
            log_after(lab, epochs[0])
        with pytest.raises(el.LogHeld, match="consumer:dash"):
            lab.store.table("r").truncate_log(epochs[3])
        consumer.ack(epochs[3])
        lab.store.table("r").truncate_log(epochs[3])


def test_nothing_acknowledged_holds_nothing(lab: Lab) -> None:
    epochs = puts(lab, 2)
    with opened(lab):
        lab.store.table("r").truncate_log(epochs[1])


@pytest.mark.rule("4.14")
def test_one_that_was_dropped_lets_go_at_once(lab: Lab) -> None:
    epochs = puts(lab, 3)
    consumer = opened(lab, keep=None)
    consumer.ack(epochs[0])
    lab.store.drop_consumer("dash")
    lab.store.table("r").truncate_log(epochs[2])
    assert lab.store.consumers() == []
    with pytest.raises(el.ConsumerNotFound):
        consumer.ack(epochs[1])
    with pytest.raises(el.ConsumerNotFound):
        lab.store.drop_consumer("dash")


@pytest.mark.rule("4.14")
def test_one_that_is_away_for_too_long_lets_go(lab: Lab) -> None:
    epochs = puts(lab, 3)
    with opened(lab, keep=timedelta(hours=1)) as consumer:
        consumer.ack(epochs[0])
    lab.now_ms += HOUR_MS - 1
    retain(lab)
    assert info(lab).state == "away" and info(lab).until_ms == lab.now_ms + 1
    assert log_after(lab, epochs[0]) == epochs[1:]
    lab.now_ms += 1
    assert info(lab).state == "expired"
    retain(lab)
    assert info(lab).state == "lost"
    with pytest.raises(el.LogTruncated):
        log_after(lab, epochs[0])


@pytest.mark.rule("4.14")
def test_one_kept_for_good_never_lets_go(lab: Lab) -> None:
    epochs = puts(lab, 3)
    with opened(lab, keep=None) as consumer:
        consumer.ack(epochs[0])
    lab.tick(86_400 * 10_000)
    retain(lab)
    assert log_after(lab, epochs[0]) == epochs[1:] and info(lab).until_ms is None


@pytest.mark.rule("4.14")
def test_one_whose_process_died_is_away_from_the_end_of_its_lease(lab: Lab) -> None:
    epochs = puts(lab, 2)
    consumer = opened(lab, keep=1.0)
    consumer.ack(epochs[0])
    dies(consumer)
    lab.now_ms += LEASE_MS - 1
    assert info(lab).state == "open"
    lab.now_ms += 1
    assert info(lab).state == "away"
    retain(lab)
    assert log_after(lab, epochs[0]) == epochs[1:]
    lab.now_ms += 1000
    retain(lab)
    assert info(lab).state == "lost"


@pytest.mark.rule("4.14")
def test_one_that_is_open_never_expires(lab: Lab) -> None:
    """Neither by time, which its lease is renewed in, nor by a jump of the clock, which nobody could renew in."""
    epochs = puts(lab, 3)
    other = lab.open()
    with opened(lab, keep=0) as consumer:
        consumer.ack(epochs[0])
        for _ in range(10):
            lab.now_ms += LEASE_MS // 2
            lab.store._handle.leases.renew()
            retain(lab)
        lab.now_ms += 1000 * HOUR_MS
        retain(lab)
        other.compact("r", full=True)
        assert info(lab).state == "open"
        assert log_after(lab, epochs[0]) == epochs[1:]
        other.close()
    assert info(lab).state == "expired"
    retain(lab)
    assert info(lab).state == "lost"


def test_a_fenced_one_keeps_nobody_alive(lab: Lab) -> None:
    """The renewals of the earlier incarnation do not pass for those of the one that fenced it, and died."""
    puts(lab, 2)
    zombie = opened(lab, keep=0)
    taker = opened(lab, keep=0)
    dies(taker)
    lab.now_ms += LEASE_MS // 2
    lab.store._handle.leases.renew()
    lab.now_ms += LEASE_MS // 2
    assert info(lab).state == "away"
    zombie.close()
    assert info(lab).until_ms is None  # no position, nothing held


def test_closing_the_store_closes_it(lab: Lab) -> None:
    opened(lab).ack(*puts(lab, 1))
    lab.reopen()
    assert info(lab).state == "away"


@pytest.mark.rule("4.17")
def test_rows_that_are_being_taken_in_are_held_until_they_are_acknowledged(lab: Lab) -> None:
    """For a reader that keeps its own position, as a Spark query does: it reads the same rows again after a crash."""
    epochs = puts(lab, 3)
    consumer = opened(lab)
    consumer.begin(epochs[1], snapshot=True)
    dies(consumer)
    lab.tick()
    retain(lab)
    assert info(lab).state == "open" and info(lab).position is None and info(lab).lag_ms is None
    assert lab.store.table("r").to_arrow(epoch=epochs[1]).num_rows == 2
    with opened(lab) as consumer:
        assert consumer.position is None
        consumer.ack(epochs[1])
        retain(lab)
        with pytest.raises(el.EpochExpired):
            lab.store.table("r").to_arrow(epoch=epochs[1])
        assert log_after(lab, epochs[1]) == epochs[2:]
        consumer.ack(epochs[2])
        consumer.begin(epochs[1])  # it was not kept, and may go back all the same
        assert info(lab).position == epochs[1] == consumer.position
        lab.store.reset_consumer("dash", "snapshot")
        with pytest.raises(el.Fenced):
            consumer.begin(epochs[2])


def test_a_hold_from_before_there_were_records_is_taken_over(lab: Lab) -> None:
    epochs = puts(lab, 2)
    handle = lab.store._handle
    handle.catalog.transact(lambda tx: put_holds(tx, [Hold("consumer:dash", 1, epochs[0], None, 0, None)]))
    with opened(lab) as consumer:
        assert consumer.position == epochs[0]
        consumer.ack(epochs[1])
    lab.store.table("r").truncate_log(epochs[1])


def test_states_are_held_where_old_images_are_looked_up(lab: Lab) -> None:
    lab.root_table("full", changelog="full", options=SHORT)
    for name, tables, states in (("plain", ("r",), False), ("images", ("r",), True), ("stored", ("full",), True)):
        (table,) = tables
        epochs = puts(lab, 3, table)
        consumer = opened(lab, name, tables, states=states)
        consumer.ack(epochs[0])
        lab.tick()
        lab.store.compact(table, full=True)
        feed = lab.store.table(table)
        if name == "plain":
            with pytest.raises(el.EpochExpired):
                feed.changes(epochs[0], pre_images=True)
        else:
            assert feed.changes(epochs[0], pre_images=True).read_all().num_rows == 2 * (2 if name == "images" else 1)
        assert (feed.info.safe_epoch > epochs[0]) == (name != "images")
        lab.store.drop_consumer(name)


# ---- those that come too late ------------------------------------------------------------------------------------


def too_late(lab: Lab, **options: object) -> list[int]:
    epochs = puts(lab, 3)
    with opened(lab, keep=0, **options) as consumer:
        consumer.ack(epochs[0])
    lab.tick()
    retain(lab)
    return epochs


@pytest.mark.rule("4.15")
def test_too_late_is_an_error_that_says_what_to_do(lab: Lab) -> None:
    epochs = too_late(lab)
    with pytest.raises(el.LogTruncated, match='reset_consumer.*"snapshot"'):
        opened(lab)
    assert info(lab).incarnation == 1 and info(lab).state == "lost"
    lab.store.reset_consumer("dash", "earliest")
    with opened(lab) as consumer:
        assert consumer.position == epochs[2] == lab.store.table("r").info.log_start_epoch


@pytest.mark.rule("4.15")
def test_too_late_begins_anew_if_it_wants_to(lab: Lab) -> None:
    too_late(lab, too_old="snapshot")
    with opened(lab, too_old="snapshot") as consumer:
        assert (consumer.position, consumer.incarnation) == (None, 2)


@pytest.mark.rule("4.15")
@pytest.mark.logs("log_truncated")
def test_late_and_nothing_lost(lab: Lab) -> None:
    """The mark passed its position, but no change lies between."""
    epochs = puts(lab, 2)
    with opened(lab, keep=0) as consumer:
        consumer.ack(epochs[1])
    lab.tick()
    lab.store.table("r").truncate_log(lab.put({}))
    assert opened(lab).position == epochs[1] < lab.store.table("r").info.log_start_epoch


# ---- reset -------------------------------------------------------------------------------------------------------


@pytest.mark.rule("4.13")
@pytest.mark.logs("consumer_created", "consumer_reset")
def test_reset_moves_it_and_fences_whoever_has_it(lab: Lab) -> None:
    epochs = puts(lab, 3)
    lab.root_table("q")
    for to, position in (
        ("latest", lab.store.last_epoch),
        (epochs[1], epochs[1]),
        ("earliest", 0),
        ("snapshot", None),
        (0, 0),
    ):
        with opened(lab, keep=None) as consumer:
            lab.store.reset_consumer("dash", to)
            assert (info(lab).position, info(lab).state) == (position, "away")
            with pytest.raises(el.Fenced, match="reset"):
                consumer.ack(epochs[2])
        with opened(lab) as consumer:
            assert consumer.position == position
    for bad in (lab.store.last_epoch + 1, "newest", -1, None, 1.5):
        with pytest.raises(el.InvalidInput):
            lab.store.reset_consumer("dash", bad)  # type: ignore[arg-type]
    with pytest.raises(el.ConsumerNotFound, match="dash"):
        lab.store.reset_consumer("dsh", "latest")


def test_reset_to_what_is_truncated_is_refused(lab: Lab) -> None:
    epochs = too_late(lab)
    with pytest.raises(el.LogTruncated, match='"earliest" or "snapshot"'):
        lab.store.reset_consumer("dash", epochs[0])
    with pytest.raises(el.LogTruncated):
        lab.store.reset_consumer("dash", 0)


def test_latest_of_a_derived_table_waits_for_its_job(lab: Lab) -> None:
    """Commits that a job has yet to make count as later, though their epochs are sealed already."""
    job = lab.job("j", ["r"], ["out"])
    (first,) = puts(lab, 1)
    lab.tick()
    at = job.step_local(mirror("r", "out"))
    puts(lab, 1)
    lab.tick()
    lab.store.checkpoint()
    opened(lab, "d", ("out",)).close()
    lab.store.reset_consumer("d", "latest")
    position = info(lab, "d").position
    assert at is not None and position is not None and first <= at <= position
    landed = job.step_local(mirror("r", "out"))
    assert landed is not None and position < landed


# ---- what is told ------------------------------------------------------------------------------------------------


def test_lag_in_time_and_commits(lab: Lab) -> None:
    lab.root_table("q")
    epochs = puts(lab, 3)
    puts(lab, 2, "q")
    with opened(lab, "both", ("r", "q")) as consumer:
        assert (info(lab, "both").lag_ms, info(lab, "both").lag_commits) == (None, None)
        consumer.ack(epochs[1])
        lab.tick(7)
        assert (info(lab, "both").lag_ms, info(lab, "both").lag_commits) == (9000, 3)
        lab.put({})  # no change
        consumer.ack(lab.store.last_epoch)
        assert (info(lab, "both").lag_ms, info(lab, "both").lag_commits) == (0, 0)
    assert info(lab, "both").tables == ("r", "q")


def test_describe_names_it_among_the_holders(lab: Lab) -> None:
    (epoch,) = puts(lab, 1)
    opened(lab).ack(epoch)
    handle = lab.store._handle
    (hold,) = handle.catalog.read(lambda view: holds_of(view, find_table(view, "r").id, lab.now_ms))
    assert (hold.holder, hold.log_epoch, hold.read_epoch) == ("consumer:dash", epoch, None)


# ---- tables that go ----------------------------------------------------------------------------------------------


@pytest.mark.rule("4.16")
def test_a_table_with_a_consumer_may_be_dropped_and_the_consumer_says_so(lab: Lab) -> None:
    lab.root_table("q", options=SHORT)
    r_epochs, q_epochs = puts(lab, 2), puts(lab, 3, "q")
    consumer = opened(lab, "both", ("r", "q"), keep=None)
    consumer.ack(r_epochs[0])
    lab.store.drop_table("r")
    lab.store.table("q").truncate_log(q_epochs[2])  # it cannot go on, so it holds nothing of the others either
    lab.root_table("r")  # another table of that name
    assert (info(lab, "both").state, info(lab, "both").tables) == ("dropped", ("r", "q"))
    for attempt in (
        lambda: consumer.ack(r_epochs[1]),
        consumer.check,
        lambda: opened(lab, "both", ("r", "q")),
        lambda: lab.store.reset_consumer("both", "latest"),
    ):
        with pytest.raises(el.TableDropped, match="drop_consumer"):
            attempt()
    consumer.close()
    lab.store.drop_consumer("both")
    assert opened(lab, "both", ("r", "q")).position is None


def test_it_reads_the_tables_that_it_was_made_for(lab: Lab) -> None:
    lab.root_table("q")
    opened(lab, "both", ("r", "q")).close()
    opened(lab, "both", ("q", "r")).close()
    for tables in (("r",), ("q",)):
        with pytest.raises(el.InvalidInput, match="reads r, q"):
            opened(lab, "both", tables)
    with pytest.raises(el.TableNotFound):
        opened(lab, "other", ("nothing",))
    assert [consumer.name for consumer in lab.store.consumers()] == ["both"]


def test_bad_input_is_named(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", "a/b", "a b", ".a", "x" * 129, None, "ä", "a\0"):
        with pytest.raises(el.InvalidName):
            opened(lab, name)  # type: ignore[arg-type]
    for options in ({"too_old": "ignore"}, {"keep": -1}, {"keep": "1h"}, {"tables": ()}, {"tables": ("r", "r")}):
        with pytest.raises(el.InvalidInput):
            opened(lab, **options)  # type: ignore[arg-type]
    assert lab.store.consumers() == []
    monkeypatch.setattr(consumers_module, "MOST_CONSUMERS", 2)
    for name in ("7", "A.b-c_D", "7"):
        opened(lab, name).close()
    with pytest.raises(el.LimitExceeded):
        opened(lab, "c")


# ---- copies and damage -------------------------------------------------------------------------------------------


@pytest.mark.local_only
def test_an_export_brings_it_back(lab: Lab, tmp_path: Path) -> None:
    first, second = puts(lab, 2)
    consumer = opened(lab)
    consumer.ack(first)
    lab.store.export_catalog(tmp_path / "export")
    consumer.ack(second)
    consumer.close()
    lab.store.close()
    for path in (lab.root / "catalog").iterdir():
        path.unlink()
    (lab.root / "catalog").rmdir()
    el.restore_catalog(lab.root, tmp_path / "export")
    lab.store = lab.open()
    with opened(lab) as consumer:
        assert (consumer.position, consumer.incarnation) == (first, 2)


@pytest.mark.damages_store
@pytest.mark.parametrize(
    "damage", [{"position": 1 << 60}, {"tables": (99,)}, {"tables": ()}, {"name": "other"}, {"states": (1, 2)}]
)
def test_verify_knows_the_records(lab: Lab, damage: dict[str, object]) -> None:
    opened(lab).close()
    handle = lab.store._handle
    assert lab.store.verify().ok
    record = handle.catalog.read(lambda view: get_consumer(view, "dash"))
    broken = replace(record, **damage).to_record()  # type: ignore[arg-type]
    handle.catalog.transact(lambda tx: tx.put(consumer_key("dash"), broken))
    assert any(problem.where.startswith("consumer ") for problem in lab.store.verify().problems)


# ---- by chance ---------------------------------------------------------------------------------------------------


@pytest.mark.rule("4.14")
@pytest.mark.parametrize("seed", range(3))
def test_whoever_is_kept_can_read_on_and_whoever_is_not_lets_go(lab: Lab, seed: int) -> None:
    print(f"seed {seed}")
    by_chance(lab, random.Random(seed), 60)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(range(100, 105), 2))
def test_the_same_for_longer(lab: Lab, seed: int) -> None:
    print(f"seed {seed}")
    by_chance(lab, random.Random(seed), 200)


def by_chance(lab: Lab, rng: random.Random, turns: int) -> None:
    """A model of who holds what: position, and until when (None: as long as it is open)."""
    keep_ms = {"a": 0, "b": 5_000, "c": LEASE_MS}
    alive: dict[str, Consumer] = {}
    until: dict[str, int] = {}
    position: dict[str, int | None] = {}
    epochs = [0]
    for _ in range(turns):
        name = rng.choice("abc")
        kind = rng.choice(("put", "put", "open", "ack", "ack", "close", "die", "tick", "retain", "jump", "drop"))
        if kind == "put":
            epochs.append(lab.put({rng.randrange(5): (0, rng.randrange(9))}))
        elif kind == "open":
            alive[name] = opened(lab, name, keep=keep_ms[name] / 1000, too_old="snapshot")
            if until.pop(name, lab.now_ms + 1) > lab.now_ms:  # else it may have lost what it had not read
                assert alive[name].position == position.get(name)
            position[name] = alive[name].position
        elif kind == "ack" and name in alive:
            begin = lab.store.table("r").info.log_start_epoch
            epoch = rng.choice([epoch for epoch in epochs if epoch >= begin])  # it has read that far just now
            known = position[name]
            alive[name].ack(epoch)
            position[name] = epoch if known is None or epoch > known else known
        elif kind in ("close", "die") and name in alive:
            consumer = alive.pop(name)
            if kind == "close":
                consumer.close()
                until[name] = lab.now_ms + keep_ms[name]
            else:
                lab.store._handle.leases.renew()
                dies(consumer)
                until[name] = lab.now_ms + LEASE_MS + keep_ms[name]
        elif kind == "drop" and rng.random() < 0.3 and name in position:
            lab.store.drop_consumer(name)
            alive.pop(name, None)
            until.pop(name, None)
            del position[name]
        elif kind in ("tick", "jump"):
            lab.now_ms += rng.choice((1, 3_000, LEASE_MS)) if kind == "tick" else 10 * LEASE_MS
        elif kind == "retain":
            lab.now_ms += 1  # what was committed in this very millisecond is not past yet
            lab.store.compact("r", full=True)
        held = [
            at
            for consumer_name, at in position.items()
            if at is not None and until.get(consumer_name, FOR_EVER) > lab.now_ms
        ]
        hold(lab, held, epochs, just_retained=kind == "retain")


FOR_EVER = 1 << 62


def hold(lab: Lab, held: list[int], epochs: list[int], *, just_retained: bool) -> None:
    """Those who hold at these epochs can read on, and nobody else keeps anything."""
    mark = lab.store.table("r").info.log_start_epoch
    for at in held:
        assert log_after(lab, max(at, mark)) == [epoch for epoch in epochs if epoch > at]
    if just_retained and epochs[-1]:
        assert mark >= max(epoch for epoch in epochs if epoch <= min([*held, epochs[-1]])), (mark, held)


MUTANTS: tuple[Callable[..., bool], ...] = (
    lambda record, *args: False,
    lambda record, *args: record.position is not None,
)


@pytest.mark.planted
@pytest.mark.parametrize("mutant", MUTANTS, ids=["holds nothing", "never lets go"])
def test_the_model_is_not_blind(lab: Lab, monkeypatch: pytest.MonkeyPatch, mutant: Callable[..., bool]) -> None:
    """It sees a consumer that holds nothing, and one that never lets go."""
    monkeypatch.setattr(consumer_record.ConsumerRecord, "holds", mutant)
    with pytest.raises((AssertionError, el.LogTruncated)):
        by_chance(lab, random.Random(1), 600)
