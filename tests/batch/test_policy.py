"""Each policy chooses what it promises, and says who holds the choice back, why, and by how much."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from importlib.metadata import EntryPoint, EntryPoints
from types import SimpleNamespace

import pytest

from epochlog.batch.policy import Aligned, AsOf, AtLeast, Bounded, Exact, Global, Latest, choose_epochs, timeout_of
from epochlog.batch.policy_registry import resolve_policy
from epochlog.batch.token import encode_token
from epochlog.errors import (
    EpochExpired,
    EpochNotCommitted,
    InvalidInput,
    NoConsistentEpoch,
    StalenessExceeded,
    TableDropped,
    TableNotFound,
    TableNotReadable,
)
from epochlog.store.epochs.table_epochs import TableEpochs
from epochlog.store.epochs.view import EpochView
from epochlog.store.types.epoch import EPOCH_ORIGIN_MS, MAX_EPOCH, from_unix_ms, last_of_unix_ms, show_epoch
from epochlog.store.types.epoch_set import ints

pytestmark = pytest.mark.local_only


def at(ms: int) -> int:
    """The last epoch of that millisecond after the origin."""
    return last_of_unix_ms(EPOCH_ORIGIN_MS + ms)


def table(table_id: int, name: str, upstreams: Sequence[int], commits: Sequence[int], **more) -> TableEpochs:
    epochs = ints([at(ms) for ms in commits])
    return TableEpochs(
        table_id, name, derived=bool(upstreams), upstreams=tuple(upstreams), commits=epochs, changes=epochs, **more
    )


ORDERS = table(1, "orders", [], [10, 30, 50])
DAILY = table(2, "daily", [1], [20, 40])
WORST = table(3, "worst", [2], [20])
IDLE = table(4, "idle", [], [])


def view(*tables: TableEpochs, last_ms: int = 60, store_id: str = "") -> EpochView:
    return EpochView(at(last_ms), EPOCH_ORIGIN_MS + 100, {t.table_id: t for t in tables}, store_id)


STORE = view(ORDERS, DAILY, WORST, IDLE)


# ---- global --------------------------------------------------------------------------------------------------------


@pytest.mark.rule("3.1")
def test_global_takes_one_epoch_for_the_whole_store() -> None:
    assert Global().choose(STORE, ["orders"]) == {"orders": at(30) - 1}
    assert choose_epochs(Global(), STORE) == dict.fromkeys(["orders", "daily", "worst", "idle"], at(30) - 1)


@pytest.mark.rule("3.8", "3.9")
def test_global_leaves_out_what_is_creating_or_parked_and_what_descends_from_it() -> None:
    for state in ("creating", "parked"):
        v = view(ORDERS, replace(DAILY, state=state), WORST, IDLE)
        assert choose_epochs(Global(), v) == {"orders": at(60), "idle": at(60)}
        with pytest.raises(TableNotReadable, match=f"daily cannot be read: it is {state}"):
            Global().choose(v, ["orders", "daily"])
        with pytest.raises(TableNotReadable, match="worst cannot be read: it descends from .*daily"):
            Global().choose(v, ["worst"])
        assert choose_epochs(Global(include_creating=True), v, ["worst"]) == {"worst": at(30) - 1}


def test_include_creating_lets_a_table_without_a_commit_hold_everything_back() -> None:
    v = view(ORDERS, table(5, "fresh", [1], [], state="creating"))
    assert choose_epochs(Global(), v) == {"orders": at(60)}
    with pytest.raises(NoConsistentEpoch, match=r"fresh \(creating\) has no commit yet"):
        Global(include_creating=True).choose(v, ["orders"])


def test_only_global_refuses_creating_tables() -> None:
    v = view(ORDERS, replace(DAILY, state="creating"))
    assert Aligned().choose(v, ["daily"]) == {"daily": at(50) - 1}


def test_a_safe_epoch_that_the_query_does_not_read_bounds_nothing() -> None:
    v = view(replace(ORDERS, safe_epoch=at(50)), DAILY, WORST)
    assert Global().choose(v, ["daily"]) == {"daily": at(30) - 1}
    with pytest.raises(NoConsistentEpoch, match="history of orders below epoch .* and it is the newest valid one"):
        Global().choose(v, ["orders"])


# ---- aligned, latest -----------------------------------------------------------------------------------------------


@pytest.mark.rule("3.2")
def test_aligned_looks_at_the_tables_of_the_query_alone() -> None:
    assert Aligned().choose(STORE, ["orders"]) == {"orders": at(60)}
    assert Aligned().choose(STORE, ["orders", "daily"]) == dict.fromkeys(["orders", "daily"], at(50) - 1)
    assert Aligned().choose(STORE, ["worst"]) == {"worst": at(30) - 1}
    assert Aligned().choose(STORE, []) == {}


def test_a_failed_choice_names_the_table_the_reason_and_the_distance() -> None:
    v = view(replace(ORDERS, safe_epoch=at(50)), DAILY)
    with pytest.raises(NoConsistentEpoch) as caught:
        Aligned().choose(v, ["orders", "daily"])
    text = str(caught.value)
    assert f"daily is committed through {show_epoch(at(40))}, 20 ms behind" in text
    assert f"the change of orders at {at(50)}" in text
    assert "less than 1 ms below" in text


@pytest.mark.rule("3.3")
def test_latest_takes_each_tables_own_newest_commit() -> None:
    expected = {"orders": at(50), "daily": at(40), "worst": at(20), "idle": 0}
    assert choose_epochs(Latest(), STORE) == expected


# ---- as_of ---------------------------------------------------------------------------------------------------------


@pytest.mark.rule("3.4")
def test_as_of_takes_the_largest_valid_epoch_at_or_below() -> None:
    for until, expected in [(at(45), at(45)), (at(40) - 1, at(30) - 1), (at(20), at(20)), (MAX_EPOCH, at(50) - 1)]:
        assert AsOf(epoch=until).choose(STORE, ["orders", "daily"]) == dict.fromkeys(["orders", "daily"], expected)
    with pytest.raises(NoConsistentEpoch, match="daily begins with its first commit"):
        AsOf(epoch=at(15)).choose(STORE, ["daily"])


@pytest.mark.rule("3.4")
def test_a_timestamp_means_the_end_of_its_millisecond_and_utc() -> None:
    moment = datetime(2025, 1, 1, 0, 0, 0, 20_000, tzinfo=UTC)
    forms = [
        moment,
        moment.replace(tzinfo=None),
        moment.astimezone(timezone(timedelta(hours=5))),
        moment.isoformat(),
        EPOCH_ORIGIN_MS + 20,
    ]
    for timestamp in forms:
        assert AsOf(timestamp=timestamp).choose(STORE, ["daily"]) == {"daily": at(20)}
    assert AsOf(timestamp="1999-01-01").choose(STORE, ["orders"]) == {"orders": 0}


@pytest.mark.rule("2.6")
def test_as_of_below_the_history_kept_is_expired() -> None:
    v = view(replace(ORDERS, safe_epoch=at(30)), DAILY)
    with pytest.raises(EpochExpired, match=f"history of orders below epoch {at(30)} .* is 10 ms below"):
        AsOf(epoch=at(20)).choose(v, ["orders", "daily"])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"epoch": 1, "timestamp": 1},
        {"epoch": -1},
        {"epoch": 1.5},
        {"epoch": True},
        {"epoch": 2**53},
        {"timestamp": "yesterday"},
        {"timestamp": 1.5},
        {"timestamp": True},
    ],
)
def test_as_of_takes_one_good_argument(options: dict) -> None:
    with pytest.raises(InvalidInput):
        AsOf(**options)


# ---- at_least, bounded ---------------------------------------------------------------------------------------------


@pytest.mark.rule("3.5")
def test_at_least_is_aligned_and_not_below() -> None:
    for epoch in (at(45), at(50) - 1):
        assert AtLeast(epoch).choose(STORE, ["daily"]) == {"daily": at(50) - 1}
    with pytest.raises(NoConsistentEpoch, match=r"less than 1 ms below .*does not reflect the change of orders"):
        AtLeast(at(50)).choose(STORE, ["daily"])
    with pytest.raises(NoConsistentEpoch, match="is not sealed yet"):
        AtLeast(at(70)).choose(STORE, ["orders"])
    with pytest.raises(NoConsistentEpoch, match="has no commit yet"):
        AtLeast(at(10)).choose(view(ORDERS, table(5, "fresh", [1], [])), ["fresh"])


@pytest.mark.rule("3.6")
def test_bounded_measures_what_the_snapshot_lacks() -> None:
    assert Bounded(max_lag=0.050).choose(STORE, ["daily"]) == {"daily": at(50) - 1}
    with pytest.raises(StalenessExceeded, match=r"daily lags 50 ms, more than 49 ms.*committed through"):
        Bounded(max_lag=0.049).choose(STORE, ["daily"])
    with pytest.raises(StalenessExceeded, match="orders lags 50 ms; daily lags 50 ms"):
        Bounded(max_lag=timedelta(milliseconds=10)).choose(STORE, ["orders", "daily"])
    with pytest.raises(StalenessExceeded, match="worst lags 70 ms"):
        Bounded(max_lag=0.069).choose(STORE, ["worst"])
    assert Bounded(max_lag=0).choose(STORE, ["orders", "idle"]) == dict.fromkeys(["orders", "idle"], at(60))
    with pytest.raises(StalenessExceeded, match="has no commit yet"):
        Bounded(max_lag=9).choose(view(ORDERS, table(5, "fresh", [1], [])), ["fresh"])


@pytest.mark.rule("3.6")
def test_a_lag_as_large_as_the_bound_is_within_it() -> None:
    """1.005 s times 1000 is a little less than 1005, and a lag of 1,005 ms was refused."""
    for lag_ms in (1005, 1001, 4099):
        late = replace(STORE, clock_ms=EPOCH_ORIGIN_MS + 50 + lag_ms)
        assert late.lag_ms("daily", at(50) - 1) == lag_ms
        assert Bounded(max_lag=lag_ms / 1000).choose(late, ["daily"]) == {"daily": at(50) - 1}
        with pytest.raises(StalenessExceeded):
            Bounded(max_lag=(lag_ms - 0.1) / 1000).choose(late, ["daily"])


def test_timeouts_are_seconds_or_timedeltas() -> None:
    assert AtLeast(5, timeout=timedelta(seconds=2)).timeout == Bounded(1, timeout=2).timeout == 2.0
    assert AtLeast(5).timeout == Bounded(1).timeout == 10.0
    for options in ({"timeout": -1}, {"timeout": "1"}, {"max_lag": None}):
        with pytest.raises(InvalidInput):
            Bounded(**{"max_lag": 1, **options})


# ---- exact ---------------------------------------------------------------------------------------------------------


@pytest.mark.rule("3.7")
def test_exact_repeats_given_epochs() -> None:
    epochs = {"orders": at(45), "daily": at(20)}
    assert choose_epochs(Exact(epochs), STORE) == epochs
    assert choose_epochs(Exact(epochs), STORE, ["daily"]) == {"daily": at(20)}
    with pytest.raises(InvalidInput, match="no epoch for worst; it has: orders, daily"):
        choose_epochs(Exact(epochs), STORE, ["worst"])


@pytest.mark.rule("3.7")
def test_exact_repeats_a_token_and_defaults_to_its_tables() -> None:
    token = encode_token({1: at(45), 2: at(40)}, {1: "orders", 2: "daily"}, "s1")
    assert choose_epochs(Exact(token), view(ORDERS, DAILY, WORST, store_id="s1")) == {"orders": at(45), "daily": at(40)}
    with pytest.raises(InvalidInput, match="of another store"):
        choose_epochs(Exact(token), view(ORDERS, DAILY, store_id="s2"))


def test_a_token_means_the_table_and_not_its_name() -> None:
    token = encode_token({1: at(45), 2: at(40)}, {1: "orders", 2: "daily"})
    for v in (view(ORDERS), view(ORDERS, replace(DAILY, table_id=9))):
        with pytest.raises(TableDropped, match="daily"):
            choose_epochs(Exact(token), v)
        assert choose_epochs(Exact(token), v, ["orders"]) == {"orders": at(45)}


@pytest.mark.rule("2.6")
def test_exact_epochs_must_be_readable_still_and_already() -> None:
    v = view(replace(ORDERS, safe_epoch=at(30)), DAILY)
    with pytest.raises(EpochExpired, match="orders"):
        choose_epochs(Exact({"orders": at(29)}), v)
    with pytest.raises(EpochNotCommitted, match="daily .* complete only through"):
        choose_epochs(Exact({"daily": at(50)}), v)
    with pytest.raises(EpochNotCommitted, match="orders"):
        choose_epochs(Exact({"orders": at(61)}), v)


@pytest.mark.parametrize(
    "epochs", [None, 5, ["orders"], "no token", {"orders": -1}, {"orders": "5"}, {"orders": None}, {1: 1}]
)
def test_exact_takes_epochs_or_a_token(epochs: object) -> None:
    with pytest.raises(InvalidInput):
        Exact(epochs)  # pyright: ignore[reportArgumentType]


# ---- users' own, names, the common checks ----------------------------------------------------------------------------


class Half:
    """A user's policy."""

    def __init__(self, factor: int = 2) -> None:
        self.factor = factor

    def choose(self, view: EpochView, tables: Sequence[str]) -> dict[str, int]:
        return dict.fromkeys(tables, view.last_epoch // self.factor)


class Failing(Half):
    def __init__(self) -> None:
        super().__init__(1 // 0)


def test_a_users_own_policy_is_any_object_that_chooses() -> None:
    policy = Half()
    assert resolve_policy(policy) is policy
    assert choose_epochs(policy, STORE, ["orders"]) == {"orders": at(60) // 2}
    assert set(choose_epochs(policy, view(ORDERS, IDLE))) == {"orders", "idle"}
    with pytest.raises(EpochNotCommitted):
        choose_epochs(Half(1), STORE, ["worst"])


@pytest.mark.parametrize("answer", [{}, {"orders": -1}, {"orders": "5"}, {"orders": None}])
def test_a_policy_that_gives_no_epoch_is_told_so(answer: dict) -> None:
    class Odd:
        def choose(self, view: EpochView, tables: Sequence[str]) -> dict:
            return answer

    with pytest.raises(InvalidInput):
        choose_epochs(Odd(), STORE, ["orders"])


@pytest.mark.parametrize(
    "covers", [lambda view: None, lambda view: 1, lambda view: [["orders"]], lambda view: [1], 5, "orders"]
)
def test_a_policy_that_covers_no_tables_is_told_so(covers: object) -> None:
    odd = Half()
    odd.covers = covers  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(InvalidInput, match="must cover a list of table names"):
        choose_epochs(odd, STORE)


@pytest.mark.parametrize("timeout", ["1", [1], True, -1, float("nan")])
def test_a_policy_with_a_timeout_that_is_none_is_told_so(timeout: object) -> None:
    odd = Half()
    odd.timeout = timeout  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(InvalidInput, match="the timeout of the policy"):
        timeout_of(odd)


def test_a_policy_of_ones_own_says_its_timeout_in_seconds_or_as_a_timedelta() -> None:
    patient = Half()
    assert timeout_of(patient) == 0
    for timeout, wanted in {None: 0.0, 2: 2.0, timedelta(seconds=1.5): 1.5}.items():
        patient.timeout = timeout  # pyright: ignore[reportAttributeAccessIssue]
        assert timeout_of(patient) == wanted


@pytest.mark.parametrize("policy", [Global(), Aligned(), Latest(), AsOf(epoch=5), AtLeast(5), Bounded(5), Half()])
def test_an_unknown_table_is_no_question_of_policy(policy) -> None:
    with pytest.raises(TableNotFound, match="refunds"):
        choose_epochs(policy, STORE, ["orders", "refunds"])


def test_policies_go_by_names_with_options() -> None:
    assert resolve_policy("global") == Global()
    assert resolve_policy("global", include_creating=True) == Global(include_creating=True)
    assert resolve_policy("aligned") == resolve_policy(Aligned) == Aligned()
    assert resolve_policy("latest") == Latest()
    assert resolve_policy("as_of", epoch=5) == AsOf(epoch=5)
    assert resolve_policy("at_least", epoch=5, timeout=1) == AtLeast(5, timeout=1)
    assert resolve_policy("bounded", max_lag=timedelta(seconds=1)) == Bounded(1.0)
    assert resolve_policy("exact", epochs_or_token={"orders": 5}) == Exact({"orders": 5})


@pytest.mark.parametrize(
    "consistency, options, named",
    [
        ("eventual", {}, "known are: aligned, as_of, at_least"),
        ("aligned", {"epoch": 5}, "epoch"),
        ("at_least", {}, "epoch"),
        (Aligned(), {"epoch": 5}, "takes no options"),
        (object(), {}, "is not a policy"),
        (None, {}, "is not a policy"),
    ],
)
def test_unknown_names_and_options_are_bad_input(consistency, options: dict, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        resolve_policy(consistency, **options)


def test_other_packages_register_policies_as_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    here = f"{__name__}:Half"
    entries = EntryPoints(
        [
            EntryPoint("half", here, "epochlog.consistency"),
            EntryPoint("broken", "no_such_module_at_all:Policy", "epochlog.consistency"),
            EntryPoint("aligned", here, "epochlog.consistency"),
            EntryPoint("failing", f"{__name__}:Failing", "epochlog.consistency"),
        ]
    )
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: entries.select(group=group))
    monkeypatch.setitem(sys.modules, __name__, SimpleNamespace(Half=Half, Failing=Failing))
    made = resolve_policy("half", factor=3)
    assert isinstance(made, Half)
    assert made.factor == 3
    assert resolve_policy("aligned") == Aligned()
    with pytest.raises(InvalidInput, match="cannot be loaded"):
        resolve_policy("broken")
    with pytest.raises(InvalidInput, match="the policy 'failing' cannot be made: ZeroDivisionError"):
        resolve_policy("failing")
    with pytest.raises(InvalidInput, match="half"):
        resolve_policy("eventual")


def test_long_lists_of_reasons_are_cut() -> None:
    fresh = [table(10 + i, f"fresh_{i}", [1], []) for i in range(30)]
    with pytest.raises(NoConsistentEpoch, match="fresh_7 has no commit yet; and 22 more") as caught:
        Aligned().choose(view(ORDERS, *fresh), [t.name for t in fresh])
    assert len(str(caught.value)) < 1000


def test_an_empty_store_reads_as_empty() -> None:
    v = EpochView(0, EPOCH_ORIGIN_MS, {4: IDLE})
    for policy in (Global(), Aligned(), Latest(), AsOf(epoch=from_unix_ms(EPOCH_ORIGIN_MS))):
        assert choose_epochs(policy, v, None) == {"idle": 0}
