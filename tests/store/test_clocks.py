"""Clocks that jump, lead and lag: writers go on, no epoch goes back, and nothing is deleted early."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.store.catalog.redis.client import RedisServer
from epochlog.store.changelog.consumers import open_consumer
from epochlog.store.commit import root_commit
from epochlog.store.commit.expiry import expire_rows
from epochlog.store.env.clock import SystemClock
from epochlog.store.maintenance.vacuum import vacuum
from epochlog.store.metadata import known_clocks
from epochlog.store.metadata.known_clocks import ClockReading, KnownClocks, read_clocks
from epochlog.store.metadata.lookups import find_table
from epochlog.store.metadata.unreachable_files import list_unreachable
from epochlog.store.retention.holds import Hold, holds_of
from epochlog.store.session import clock_guard
from epochlog.store.session.write_intents import SEALED_MS, all_intents
from epochlog.store.types.epoch import from_unix_ms, to_unix_ms
from redis_time import KEY, served_time
from stores import servers
from virtual_machines import DAY_MS, HOUR_MS, Machine, TrueTime

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("at", pa.timestamp("ms", "UTC"))])
KEEP = timedelta(hours=12)
OPTIONS = el.TableOptions(history_retention=KEEP, log_retention=KEEP, ttl=KEEP, ttl_column="at")


class Fleet:
    """One store, opened by several machines."""

    def __init__(self, root: Path, *errors_ms: int) -> None:
        self.world = TrueTime()
        self.machines = [Machine(self.world, f"m{n}", error) for n, error in enumerate(errors_ms)]
        with ExitStack() as stack:
            self.stores = [
                stack.enter_context(el.open(root, durability="os", clock=machine)) for machine in self.machines
            ]
            self.close = stack.pop_all().close
        self.table = self.stores[0].create_table("t", SCHEMA, ["id"], options=OPTIONS)

    def put(self, machine: int, key: int = 1, value: int = 0) -> int:
        at = datetime.fromtimestamp(self.world.now_ms / 1000, UTC)
        return self.stores[machine].table("t").upsert([{"id": key, "v": value, "at": at}])

    def rows(self) -> dict[int, int]:
        return {row["id"]: row["v"] for row in self.table.to_arrow().to_pylist()}

    def known(self) -> KnownClocks:
        return self.stores[0]._handle.catalog.read(read_clocks)

    def slowest_ms(self, machine: int) -> int:
        handle = self.stores[machine]._handle
        return handle.catalog.read(handle.clock_guard.slowest_ms)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    with ExitStack() as stack:

        def make(*errors_ms: int) -> Fleet:
            made = Fleet(tmp_path / "s", *errors_ms)
            stack.callback(made.close)
            return made

        yield make


@pytest.mark.rule("1.62")
def test_a_clock_a_day_ahead_stops_no_writer(fleet: Callable[..., Fleet]) -> None:
    made = fleet(0, DAY_MS)
    ahead, right = made.put(1), made.stores[0]
    assert to_unix_ms(ahead) == made.world.now_ms + DAY_MS
    before = made.rows()
    assert made.put(0, 2, 5) == ahead + 1
    assert right.checkpoint() == ahead + 1
    assert right.table("t").restore(ahead) > ahead + 1 and made.rows() == before
    assert right.clone("t", "copy") is not None and right.last_epoch < ahead + 10
    job = right.create_job("j", ["t"], {"out": (pa.schema([("id", pa.int64())]), ["id"])})
    assert job.step_local(lambda ctx: ctx.upsert("out", ctx.table("t").select(["id"]))) == right.last_epoch
    made.world.now_ms += 2 * DAY_MS
    assert to_unix_ms(made.put(0)) == made.world.now_ms, "the clock has caught up"
    made.machines[0].jump(-DAY_MS)
    right.table("t").alter(add=pa.schema([("w", pa.int64())]))


@pytest.mark.rule("1.60")
def test_a_jump_ahead_is_refused_until_the_clock_is_right_or_trusted(fleet: Callable[..., Fleet]) -> None:
    made = fleet(0, 0)
    made.put(1)
    made.world.now_ms += HOUR_MS
    made.machines[1].jump(HOUR_MS)
    made.put(1)
    made.machines[1].jump(25 * HOUR_MS)
    newest = made.stores[0].last_epoch
    for call in (
        lambda: made.put(1),
        made.stores[1].checkpoint,
        lambda: made.stores[1].clone("t", "copy"),
        lambda: made.stores[1].create_table("u", SCHEMA, ["id"]),
        lambda: made.stores[1].table("t").alter(add=pa.schema([("w", pa.int64())])),
    ):
        with pytest.raises(
            el.ClockSkew, match=r"the clock given to open shows .*, 1 d 1 h more .* doctor .* --trust-clock"
        ):
            call()
    assert made.stores[0].last_epoch == newest
    made.put(0)  # other machines go on
    made.machines[1].jump(-25 * HOUR_MS)
    made.put(1)
    made.machines[1].jump(DAY_MS)
    made.stores[1]._handle.clock_guard.trust()
    assert to_unix_ms(made.put(1)) > made.world.now_ms + DAY_MS
    made.put(0)


@pytest.mark.rule("1.60")
def test_no_first_commit_after_a_reboot_and_no_jump_back_is_refused(fleet: Callable[..., Fleet]) -> None:
    made = fleet(0)
    made.put(0)
    made.machines[0].reboot()
    made.machines[0].jump(DAY_MS)
    newest = made.put(0)
    made.machines[0].jump(-2 * DAY_MS)
    assert made.put(0) == newest + 1
    made.machines[0].jump(2 * DAY_MS)
    assert made.put(0) == newest + 2, "the newest epoch shows that time already"


@pytest.mark.rule("1.60")
def test_notes_cost_a_write_a_minute(fleet: Callable[..., Fleet]) -> None:
    made = fleet(0)
    notes = []
    for _ in range(120):
        made.put(0)
        made.world.now_ms += 1000
        notes.append(made.known().clocks[-1].wall_ms)
    assert len(set(notes)) == 2
    for _ in range(10):
        made.machines[0].reboot()
        made.put(0)
    assert len(made.known().clocks) == known_clocks.KEPT


def expire(made: Fleet, machine: int) -> int:
    handle = made.stores[machine]._handle
    return expire_rows(handle, handle.catalog.read(lambda view: find_table(view, "t")))


@pytest.mark.rule("1.66")
def test_a_ttl_waits_until_the_store_is_caught_up(fleet: Callable[..., Fleet]) -> None:
    made = fleet(0, DAY_MS)
    made.put(0, 1)
    made.put(1, 2)
    made.world.now_ms += 13 * HOUR_MS
    assert expire(made, 0) == 0, "the store leads by 11 h"
    made.world.now_ms += 12 * HOUR_MS
    assert expire(made, 0) == 2


@pytest.mark.rule("1.63", "1.64")
def test_times_are_those_of_epochs_and_lags_those_of_the_clock(fleet: Callable[..., Fleet]) -> None:
    made = fleet(0, DAY_MS)
    right = made.stores[0]
    made.put(0, 1)
    made.world.now_ms += 1000
    made.put(1, 2)
    made.put(0, 3)
    now = datetime.fromtimestamp(made.world.now_ms / 1000, UTC)
    with right.snapshot(["t"], consistency=el.AsOf(timestamp=now)) as snapshot:
        assert set(snapshot["t"].to_arrow()["id"].to_pylist()) == {1}
    with right.snapshot(["t"], consistency=el.AsOf(timestamp=now + timedelta(days=1, seconds=1))) as snapshot:
        assert set(snapshot["t"].to_arrow()["id"].to_pylist()) == {1, 2, 3}
    with right.snapshot(["t"], consistency=el.Bounded(max_lag=1, timeout=0)) as snapshot:
        assert snapshot.lag_ms == {"t": 0}


@pytest.mark.rule("1.65")
def test_deletes_go_by_the_slowest_known_clock(fleet: Callable[..., Fleet]) -> None:
    made = fleet(0, DAY_MS, -DAY_MS)
    first = made.put(1, 1)
    for minute in range(3):
        for machine in (0, 1, 2):
            made.put(machine, 1, minute)
            made.world.now_ms += 61_000
    for machine in range(3):
        assert made.slowest_ms(machine) <= made.machines[2](), "nobody deletes earlier than the slowest allows"
        assert made.slowest_ms(machine) > made.machines[2]() - 10 * 60_000, "and not much later"
        made.stores[machine].compact("t", full=True)
    assert made.stores[0].table("t").to_arrow(epoch=first).num_rows == 1
    made.machines[2].jump(DAY_MS)  # set right
    for _ in range(2):
        for machine in (2, 0, 1):
            made.put(machine)
            made.world.now_ms += 61_000
    assert made.slowest_ms(0) == made.machines[0](), "no known clock is slower"


@pytest.mark.rule("1.65")
def test_a_clock_that_jumped_deletes_by_its_boot_clock(fleet: Callable[..., Fleet]) -> None:
    made = fleet(0)
    first = made.put(0, 1, 1)
    made.put(0, 1, 2)
    made.machines[0].jump(DAY_MS)
    made.stores[0].compact("t", full=True)
    assert made.table.to_arrow(epoch=first).to_pylist()[0]["v"] == 1
    made.machines[0].jump(-DAY_MS)
    made.world.now_ms += DAY_MS
    made.put(0, 1, 3)
    made.world.now_ms += 1
    made.stores[0].compact("t", full=True)
    with pytest.raises(el.EpochExpired):
        made.table.to_arrow(epoch=first)


@pytest.mark.rule("1.65")
def test_a_lease_of_a_clock_that_is_behind_lives(fleet: Callable[..., Fleet]) -> None:
    made = fleet(0, -DAY_MS)
    for machine in (0, 1):
        made.put(machine)
        made.world.now_ms += 61_000
    with made.stores[1].snapshot(["t"], consistency=el.Latest()) as snapshot:
        made.put(0)
        handle = made.stores[0]._handle

        def holds(now_ms: int) -> list[Hold]:
            return handle.catalog.read(lambda view: holds_of(view, find_table(view, "t").id, now_ms))

        assert not holds(made.machines[0]()), "by this clock it has ended"
        assert holds(made.slowest_ms(0)), "in another process its holder lives"
        assert snapshot["t"].to_arrow().num_rows == 1


class Served:
    """A store on Redis whose server has a clock of its own, and the machine of this process."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.world = TrueTime()
        self.server, self.machine = Machine(self.world, "server"), Machine(self.world, "here")
        patch.setattr(SystemClock, "__call__", lambda _: self.machine())
        patch.setattr(SystemClock, "boot_time", lambda _: self.machine.boot_time())
        self.show()
        self.store = el.open(root, servers.redis.url(), volatile=True)
        self.table = self.store.create_table("t", SCHEMA, ["id"], options=OPTIONS)

    def show(self) -> None:
        with servers.redis.client() as connection:
            connection.set(KEY, self.server())

    def put(self, value: int) -> int:
        self.show()
        at = datetime.fromtimestamp(self.world.now_ms / 1000, UTC)
        epoch = self.table.upsert([{"id": 1, "v": value, "at": at}])
        self.world.now_ms += 1000
        return epoch


def _server_ahead_deletes_nothing(root: Path) -> None:
    """The server's clock jumps a day ahead; then a machine that the catalog does not know maintains the store."""
    with pytest.MonkeyPatch.context() as patch, served_time():
        served = Served(root, patch)
        with served.store as store:
            first, newest = served.put(1), served.put(2)
            with store.snapshot(["t"], consistency=el.AsOf(epoch=first)) as snapshot:
                served.server.jump(DAY_MS)
                for committed in (False, True):
                    served.machine.reboot()
                    if committed:
                        assert served.put(3) > newest, "the first commit after a boot is taken"
                        served.world.now_ms += 61_000
                    served.show()
                    with el.open(root, servers.redis.url(), volatile=True) as other:
                        other.compact("t", full=True)
                        other.compact()
                        vacuum(other._handle, grace=timedelta(0))
                    assert served.table.count() == 1, "the ttl deleted a row early"
                    try:
                        assert served.table.to_arrow(epoch=first)["v"].to_pylist() == [1]
                        assert snapshot["t"].to_arrow()["v"].to_pylist() == [1]
                    except (el.EpochExpired, el.SnapshotExpired) as error:
                        raise AssertionError("history was deleted early") from error
            served.world.now_ms += 2 * DAY_MS
            served.show()
            store.compact()
            assert served.table.count() == 0, "the clocks have passed the ttl"


@pytest.mark.redis
@pytest.mark.local_only
@pytest.mark.rule("1.61", "1.65", "1.66")
def test_a_server_ahead_of_a_machine_deletes_by_the_machines_clock(tmp_path: Path) -> None:
    _server_ahead_deletes_nothing(tmp_path / "s")


@pytest.mark.redis
@pytest.mark.local_only
@pytest.mark.rule("1.60", "1.61")
def test_notes_cost_no_request_on_redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[str] = []
    real = RedisServer._command
    monkeypatch.setattr(RedisServer, "_command", lambda self, *c: requests.append(str(c[0])) or real(self, *c))
    counts = []
    for guarded in (True, False):
        with el.open(tmp_path / f"s{guarded}", servers.redis.url(), volatile=True) as store:
            if not guarded:
                store._handle.clock_guard._boot_clock = None
            table, count = store.create_table("t", SCHEMA, ["id"]), list[int]()
            for number in range(6):
                requests.clear()
                table.upsert([{"id": number, "v": 0, "at": None}])
                count.append(len(requests))
        counts.append(count)
    assert counts[0] == counts[1]


# ---- what lasts for a given time ---------------------------------------------------------------------------------


KEEP_NO_HISTORY = el.TableOptions(history_retention=timedelta(0), log_retention=timedelta(0))


def _at_right_time(made: Fleet, machine: int = 0) -> None:
    """Set the clock right, commit, and maintain the store at once."""
    made.machines[machine].error_ms = 0
    store = made.stores[machine]
    store._handle.clock_guard.trust()
    made.table.upsert([{"id": key, "v": 9, "at": None} for key in (1, 2)])
    store.checkpoint()
    made.world.now_ms += 1000
    store.compact("t", full=True)
    store.vacuum(grace=0)


def _tag_lasts(root: Path, *, commits: bool, before_ms: int) -> None:
    """A tag of an hour, made while the clock is a day back, keeps its rows for an hour of true time, and no longer."""
    made = Fleet(root, 0)
    try:
        made.stores[0].table("t").alter(options=KEEP_NO_HISTORY)
        made.put(0, 1, 1)
        made.world.now_ms += before_ms
        made.machines[0].jump(-DAY_MS)
        for value in range(1, 4 if commits else 1):
            made.put(0, 1, value)
            made.world.now_ms += HOUR_MS
        rows = made.rows()
        tag = made.stores[0].snapshot(["t"], consistency=el.Latest()).tag("keep", lasting=timedelta(hours=1))
        end_ms = made.world.now_ms + HOUR_MS
        _at_right_time(made)
        for now_ms in (made.world.now_ms, end_ms - 1):
            made.world.now_ms = now_ms
            made.stores[0].compact("t", full=True)
            assert [kept.name for kept in made.stores[0].tags()] == ["keep"], "the tag ended early"
            try:
                kept = made.stores[0].table("t").to_arrow(epoch=tag.epochs["t"])
            except el.EpochExpired as error:
                raise AssertionError("the rows of the tag were released early") from error
            assert {row["id"]: row["v"] for row in kept.to_pylist()} == rows
        made.world.now_ms = end_ms
        assert not made.stores[0].tags(), "it lasts no longer"
    finally:
        made.close()


@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize("before_ms", [1000, 90_000, 3 * HOUR_MS])
@pytest.mark.rule("1.68", "3.18")
def test_a_tag_lasts_for_its_time_though_the_clock_was_set_back(
    tmp_path: Path, before_ms: int, *, commits: bool
) -> None:
    _tag_lasts(tmp_path / "s", commits=commits, before_ms=before_ms)


@pytest.mark.rule("1.68")
def test_a_tag_of_a_clock_without_a_boot_clock_counts_from_the_newest_epoch(fleet: Callable[..., Fleet]) -> None:
    made = fleet(0)
    made.put(0, 1, 1)
    back = Machine(made.world, "back", -DAY_MS)
    with el.open(made.stores[0].root, durability="os", clock=back.__call__) as store:
        tag = store.tag("keep", ["t"], lasting=timedelta(hours=1))
    assert tag.until_ms == made.world.now_ms + HOUR_MS and tag.since_ms == back()
    assert made.stores[0].tags() == [tag]


@pytest.mark.rule("1.68", "3.18")
def test_a_clock_that_is_ahead_ends_no_tag_and_takes_no_name(fleet: Callable[..., Fleet]) -> None:
    """A process with a clock a day ahead found the tag ended, and put another one under its name."""
    made = fleet(0, DAY_MS)
    for machine in (1, 0, 1, 0):
        made.put(machine, 1, 1)
        made.world.now_ms += 61_000
    right, ahead = made.stores
    with right.snapshot(["t"], consistency=el.Latest()) as snapshot:
        tag = snapshot.tag("keep", lasting=timedelta(hours=1))
    made.put(1, 1, 2)
    assert [kept.epochs for kept in ahead.tags()] == [tag.epochs]
    with ahead.snapshot(["t"], consistency=el.Latest()) as snapshot, pytest.raises(el.InvalidInput, match="other"):
        snapshot.tag("keep", lasting=timedelta(hours=1))
    ahead.drop_tag("keep")
    assert not right.tags()


def _refused_does_no_harm(root: Path) -> None:
    """A process whose clock is refused may tag, alter and maintain: nothing is deleted early."""
    made = Fleet(root, 0)
    try:
        store = made.stores[0]
        store.table("t").alter(options=el.TableOptions(history_retention=KEEP, log_retention=KEEP))
        first = made.put(0, 1, 1)
        kept = store.snapshot(["t"], consistency=el.Latest()).tag("kept", lasting=timedelta(hours=2))
        made.put(0, 1, 2)
        made.machines[0].jump(DAY_MS)
        with pytest.raises(el.ClockSkew):
            made.put(0, 1, 3)
        tag = store.snapshot(["t"], consistency=el.Latest()).tag("late", lasting=timedelta(hours=1))
        assert (tag.since_ms, tag.until_ms) == (made.world.now_ms, made.world.now_ms + HOUR_MS), "by the boot clock"
        store.alter(global_max_lag=timedelta(hours=1))
        store.compact("t", full=True)
        vacuumed = store.vacuum()
        assert not vacuumed.deleted, "vacuum deleted files in their grace"
        assert {each.name for each in store.tags()} == {"kept", "late"}
        assert made.rows() == {1: 2}
        try:
            for epoch in (first, kept.epochs["t"]):
                assert store.table("t").to_arrow(epoch=epoch)["v"].to_pylist() == [1]
        except el.EpochExpired as error:
            raise AssertionError("history was released early") from error
    finally:
        made.close()


@pytest.mark.rule("1.60", "1.65", "1.68")
def test_a_process_that_is_refused_deletes_nothing_early(tmp_path: Path) -> None:
    _refused_does_no_harm(tmp_path / "s")


def _consumer_is_kept(root: Path) -> None:
    """A consumer that is closed while the clock is a day back holds the log for its `keep`."""
    made = Fleet(root, 0)
    try:
        store = made.stores[0]
        store.table("t").alter(options=KEEP_NO_HISTORY)
        made.put(0, 1, 1)
        made.machines[0].jump(-DAY_MS)
        consumer = open_consumer(store._handle, "dash", ["t"], keep=timedelta(hours=1))
        consumer.begin(store.last_epoch)
        store._handle.leases.renew()
        consumer.close()
        until_ms = made.world.now_ms + HOUR_MS
        assert [each.until_ms for each in store.consumers()] == [until_ms], "its time counts from the wrong clock"
        _at_right_time(made)
        made.world.now_ms = until_ms - 1
        store.compact("t", full=True)
        assert [each.state for each in store.consumers()] == ["away"]
        made.world.now_ms = until_ms
        assert [each.state for each in store.consumers()] == ["expired"]
    finally:
        made.close()


@pytest.mark.rule("1.68", "4.14")
def test_a_consumer_that_is_closed_while_the_clock_is_back_is_kept(tmp_path: Path) -> None:
    _consumer_is_kept(tmp_path / "s")


@pytest.mark.rule("1.68")
def test_sealed_segments_and_the_grace_of_vacuum_last_though_the_clock_was_set_back(
    fleet: Callable[..., Fleet],
) -> None:
    made = fleet(0)
    store = made.stores[0]
    for value in (1, 2):
        made.put(0, 1, value)
    made.machines[0].jump(-DAY_MS)
    intent = store._handle.intents.register("spark", SEALED_MS)
    ends = {each.id: each.expires_ms for each in store._handle.catalog.read(all_intents)}
    assert ends[intent] == made.world.now_ms + SEALED_MS
    store._handle.leases.renew()
    ends = {each.id: each.expires_ms for each in store._handle.catalog.read(all_intents)}
    assert ends[intent] == made.world.now_ms + SEALED_MS
    store.drop_table("t")
    notes = store._handle.catalog.read(list_unreachable)
    assert notes and {note.at_ms for note in notes} == {made.world.now_ms}
    made.machines[0].jump(DAY_MS)
    assert not store.vacuum(grace=60).deleted


@pytest.mark.rule("1.68", "1.7")
def test_a_pair_is_remembered_though_the_clock_was_set_back(fleet: Callable[..., Fleet]) -> None:
    made = fleet(0)
    made.put(0, 1, 1)
    made.machines[0].jump(-60 * DAY_MS)
    epoch = made.table.upsert([{"id": 2, "v": 1, "at": None}], txn=("app", 1))
    made.machines[0].jump(60 * DAY_MS)
    made.stores[0].vacuum()
    assert made.table.upsert([{"id": 2, "v": 1, "at": None}], txn=("app", 1)) == epoch


@pytest.mark.rule("1.68")
def test_no_job_is_parked_early_by_what_it_noted_while_the_clock_was_back(fleet: Callable[..., Fleet]) -> None:
    made = fleet(0)
    store = made.stores[0]
    job = store.create_job("j", ["t"], {"out": (pa.schema([("id", pa.int64())]), ["id"])})
    made.machines[0].jump(-DAY_MS)
    made.put(0, 1, 1)
    job.step_local(lambda ctx: ctx.upsert("out", ctx.table("t").select(["id"])), until="newest")
    made.put(0, 1, 2)
    made.machines[0].jump(DAY_MS)
    store.compact("t", full=True)
    assert store.job("j").info.state != "parked"


# ---- the kind ----------------------------------------------------------------------------------------------------


def random_history(root: Path, seed: int) -> None:
    """Random operations of three machines beside random jumps, reboots and corrections. Each commit is refused or
    lands above all before it; a refusal is of a clock that jumped; no machine deletes by a time that no clock shows.
    """
    rng = random.Random(seed)
    made = Fleet(root, 0, 0, 0)
    rows: dict[int, int] = {}
    newest = 0
    try:
        for step in range(60):
            made.world.now_ms += rng.choice([1, 1000, 61_000, HOUR_MS // 2])
            machine = rng.randrange(3)
            clock, store = made.machines[machine], made.stores[machine]
            before = made.known().of(clock.boot_time().boot)
            match rng.randrange(8):
                case 0:
                    clock.jump(rng.choice([DAY_MS, -DAY_MS, 2 * HOUR_MS, -clock.error_ms]))
                case 1 if rng.random() < 0.3:
                    clock.reboot()
                case 2:
                    seen = min(other() for other in made.machines)
                    boot_ms = clock() if before is None else before.wall_ms + made.world.now_ms - clock.booted_ms
                    boot_ms -= 0 if before is None else before.boot_ms
                    assert made.slowest_ms(machine) <= max(clock(), seen)
                    if clock() - boot_ms > HOUR_MS:
                        assert made.slowest_ms(machine) <= boot_ms, "a jump deletes nothing"
                    store.compact("t")
                case _:
                    last = store.last_epoch
                    now = ClockReading("", clock.boot_time().boot, clock.boot_time().ms, clock())
                    jumped = before is not None and now.jump_ms(before) > HOUR_MS
                    jumped = jumped and clock() > to_unix_ms(last) + HOUR_MS
                    try:
                        epoch = made.put(machine, step, step)
                    except el.ClockSkew:
                        assert jumped, "refused without a jump"
                        assert store.last_epoch == last
                        continue
                    assert not jumped, "taken from a clock that jumped"
                    assert epoch == max(from_unix_ms(clock()), last + 1) and epoch > newest
                    newest, rows[step] = epoch, step
            present = made.rows()
            assert all(rows[key] == value for key, value in present.items())
            for key in rows.keys() - present.keys():
                raise AssertionError(f"row {key} is gone before any ttl has passed by the slowest clock")
    finally:
        made.close()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.rule("1.60", "1.62", "1.65")
@pytest.mark.medium
def test_random_histories_of_clocks(tmp_path: Path, seed: int) -> None:
    random_history(tmp_path / "s", seed)


# ---- planted bugs ------------------------------------------------------------------------------------------------


def _jump_is_taken(base: Path) -> None:
    made = Fleet(base / "s", 0)
    try:
        made.put(0)
        made.machines[0].jump(DAY_MS)
        try:
            made.put(0)
        except el.ClockSkew:
            return
        raise AssertionError("a commit of a clock that jumped was taken")
    finally:
        made.close()


def _slowest_is_kept(base: Path) -> None:
    made = Fleet(base / "s", 0, DAY_MS)
    try:
        for _ in range(2):
            made.put(1)
            made.put(0)
            made.world.now_ms += 61_000
        assert made.slowest_ms(1) <= made.machines[0]()
    finally:
        made.close()


def _writers_go_on(base: Path) -> None:
    made = Fleet(base / "s", 0, DAY_MS)
    try:
        ahead = made.put(1)
        with suppress(el.EpochRegressed):
            assert made.put(0) == ahead + 1
            return
        raise AssertionError("a writer was stopped")
    finally:
        made.close()


def _lead_is_none(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KnownClocks, "_ahead_ms", lambda self, now: {})


def _no_jump(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(known_clocks.KnownClock, "jumped_ms", lambda self, now, last_epoch: 0)


def _never_noted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(clock_guard, "read_clocks", lambda view: KnownClocks())


def _wall_clock_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(root_commit, "max", lambda *values: values[0] if len(values) == 2 else max(values), raising=False)


def _own_clock_is_overlooked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(clock_guard.ClockGuard, "lead_ms", lambda self, wall_ms: 0)


def _ends_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(clock_guard.ClockGuard, "latest_ms", lambda self, view: self._catalog.now_ms())


def _ends_by_the_newest_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KnownClocks, "latest_ms", lambda self, now: now.wall_ms)


def _forgets_what_it_showed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(known_clocks.KnownClock, "behind_at", lambda self, now: max(0, -now.jump_ms(self)))


def _upkeep_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(clock_guard.ClockGuard, "slowest_ms", lambda self, view: self._catalog.now_ms())


def _tag_of_a_busy_store(base: Path) -> None:
    _tag_lasts(base / "s", commits=True, before_ms=1000)


def _tag_of_an_idle_store(base: Path) -> None:
    _tag_lasts(base / "s", commits=False, before_ms=3 * HOUR_MS)


PLANTS = {
    "a tag counts from the wall clock": (_ends_by_the_wall_clock, _tag_of_a_busy_store),
    "a tag counts from the newest epoch alone": (_ends_by_the_newest_epoch, _tag_of_an_idle_store),
    "a note forgets what the clock has shown": (_forgets_what_it_showed, _tag_of_a_busy_store),
    "a consumer counts from the wall clock": (_ends_by_the_wall_clock, lambda base: _consumer_is_kept(base / "s")),
    "a refused clock maintains": (_upkeep_by_the_wall_clock, lambda base: _refused_does_no_harm(base / "s")),
    "jumps are not compared": (_no_jump, _jump_is_taken),
    "notes are not read": (_never_noted, _jump_is_taken),
    "slower clocks are overlooked": (_lead_is_none, _slowest_is_kept),
    "epochs go by the wall clock alone": (_wall_clock_only, _writers_go_on),
}
SERVED_PLANTS = {"the machine's own clock is overlooked": (_own_clock_is_overlooked, _server_ahead_deletes_nothing)}


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.planted
def test_a_planted_bug_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: str) -> None:
    apply, check = PLANTS[plant]
    check(tmp_path / "whole")
    apply(monkeypatch)
    with pytest.raises(AssertionError):
        check(tmp_path / "broken")


@pytest.mark.redis
@pytest.mark.local_only
@pytest.mark.parametrize("plant", SERVED_PLANTS)
@pytest.mark.planted
def test_a_planted_bug_beside_a_server_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: str) -> None:
    apply, check = SERVED_PLANTS[plant]
    apply(monkeypatch)
    with pytest.raises(AssertionError):
        check(tmp_path / "broken")
