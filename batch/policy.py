"""Consistency policies: pure choices of the epoch each table of a query is read at, from one EpochView.

A policy is any object with `choose(view, tables) -> {table: epoch}`, tables by name. When no epoch satisfies it now, it
raises NoConsistentEpoch. The caller asks a policy with a `timeout` (seconds) > 0 again with a newer view until that
much monotonic time has passed. An optional `covers(view)` names the tables of a snapshot that names none itself.

Optional `options` are the policy's options on the command line. Optional `asked_at(view, tables, epoch)` returns the
options with which `epochlog epochs` asks it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from epochlog.errors import (
    EpochExpired,
    EpochNotCommitted,
    InvalidInput,
    NoConsistentEpoch,
    StalenessExceeded,
    TableDropped,
    TableNotReadable,
)
from epochlog.store.env.clock import seconds
from epochlog.store.epochs.epoch_errors import KEEP_EPOCHS, distance, expired, explain_expired, require_begun
from epochlog.store.types.epoch import MAX_EPOCH, as_epoch, last_of_unix_ms, show_epoch, show_span

from .policy_options import OptionKind, PolicyOption
from .token import Token, decode_token

if TYPE_CHECKING:  # it loads numpy, and the command line asks policies for their options before it needs that
    from epochlog.store.epochs.view import EpochView

DEFAULT_TIMEOUT_S = 10.0
MAX_REASONS = 8


@runtime_checkable
class Policy(Protocol):
    """Protocol of a consistency policy."""

    def choose(self, view: EpochView, tables: Sequence[str], /) -> Mapping[str, int]:
        """Return the epoch to read each of these tables at."""
        ...


@dataclass(frozen=True, slots=True)
class Global:
    """Policy that chooses the largest epoch valid for all tables of the store that take part, even those not read.

    Tables that are creating or parked, that lag more than the store's `global_max_lag` or commit too rarely for it, and
    all their descendants, do not take part, and reading one raises TableNotReadable. `include_creating=True` counts
    them like all others.
    """

    name: ClassVar[str] = "global"
    summary: ClassVar[str] = "the largest epoch valid for all tables that take part; default without TABLE"
    options: ClassVar[tuple[PolicyOption, ...]] = (
        PolicyOption("include_creating", OptionKind.FLAG, "count creating and parked tables too", implies=True),
    )
    include_creating: bool = False

    def covers(self, view: EpochView) -> list[str]:
        """Return all tables that take part and can be read at their common epoch."""
        left_out = self.left_out(view)
        return [name for name in view.ids if name not in left_out]

    def left_out(self, view: EpochView) -> dict[str, str]:
        """Return the reason for each table that is not covered, by name."""
        if self.include_creating:
            return {}
        membership = view.membership
        members = membership.members
        expired = {name: reason for name in members if (reason := explain_expired(view.table(name), membership.epoch))}
        views = [name for name in members if expired and view.table(name).derived]
        behind = "".join(f", and {reason}" for reason in view.why_not(views, view.last_epoch)[:MAX_REASONS])
        return {
            **membership.left_out,
            **{name: f"{name} cannot be read: {reason}{behind}" for name, reason in expired.items()},
        }

    def choose(self, view: EpochView, tables: Sequence[str], /) -> dict[str, int]:
        """Return one epoch for all. Raises TableNotReadable; NoConsistentEpoch where history at the epoch is gone."""
        if self.include_creating:
            members, epoch = list(view.ids), view.largest_valid_at_most(view.ids, read=tables)
        else:
            membership = view.membership
            refused = [
                _under_aligned(view, name, membership.left_out[name]) for name in tables if name in membership.left_out
            ]
            if refused:
                raise TableNotReadable(
                    f"under global, {listed(refused)}. Wait until it takes part again, read it with "
                    "consistency='aligned', or pass include_creating=True"
                )
            members, epoch = (
                membership.members,
                membership.epoch if membership.epoch >= view.safe_epoch_of(tables) else None,
            )
        if epoch is None:
            raise _no_epoch(self.name, view, members, tables, view.last_epoch)
        return dict.fromkeys(tables, epoch)


@dataclass(frozen=True, slots=True)
class Aligned:
    """Policy that chooses the largest epoch valid for the tables of the query.

    `bounded=True` refuses the epoch if a table lags more there than the store's `global_max_lag`; a read that names
    several tables and no policy does so.
    """

    name: ClassVar[str] = "aligned"
    summary: ClassVar[str] = (
        "the largest epoch valid for the named tables; default with TABLE, within global_max_lag if several"
    )
    bounded: bool = False

    def covers(self, view: EpochView) -> list[str]:
        """Return all tables that have a valid epoch by themselves."""
        return [name for name in view.ids if view.largest_valid_at_most([name]) is not None]

    def left_out(self, view: EpochView) -> dict[str, str]:
        """Return the reason for each table that is not covered, by name."""
        others = sorted(set(view.ids).difference(self.covers(view)))
        return {name: f"{name} cannot be read: {listed(view.why_not([name], view.last_epoch))}" for name in others}

    def choose(self, view: EpochView, tables: Sequence[str], /) -> dict[str, int]:
        """Return one epoch for all. Raises NoConsistentEpoch; TableNotReadable beyond the bound."""
        epoch = view.largest_valid_at_most(tables)
        if epoch is None:
            raise _no_epoch(self.name, view, tables, tables, view.last_epoch)
        if self.bounded:
            _require_fresh(view, tables, epoch)
        return dict.fromkeys(tables, epoch)


@dataclass(frozen=True, slots=True)
class Latest:
    """Policy that reads each table at its own newest commit: the freshest rows, not consistent."""

    name: ClassVar[str] = "latest"
    summary: ClassVar[str] = "each table at its newest commit"

    def choose(self, view: EpochView, tables: Sequence[str], /) -> dict[str, int]:
        """Return each table's newest commit; without one 0, or a root table's first epoch, at which it is empty."""
        return {name: max(view.table(name).position, view.table(name).root_begin) for name in tables}


@dataclass(frozen=True, slots=True)
class AsOf:
    """Policy that chooses the largest valid epoch at or below an epoch, or at or below the end of a millisecond.

    `timestamp` is a datetime (a naive one is taken as UTC), an ISO 8601 string of one, or Unix milliseconds.
    """

    name: ClassVar[str] = "as_of"
    summary: ClassVar[str] = "the newest agreed epoch at or before an epoch or time"
    options: ClassVar[tuple[PolicyOption, ...]] = (
        PolicyOption("epoch", OptionKind.EPOCH, "at or before this epoch"),
        PolicyOption("timestamp", OptionKind.TIMESTAMP, "the newest agreed epoch at or before this time", implies=True),
    )
    epoch: int | None = None
    timestamp: datetime | str | int | None = None

    def __post_init__(self) -> None:
        if (self.epoch is None) == (self.timestamp is None):
            raise InvalidInput("as_of takes either epoch= or timestamp=")
        self.until()

    @staticmethod
    def asked_at(view: EpochView, tables: Sequence[str], epoch: int) -> dict[str, Any]:
        return {"epoch": epoch}

    def until(self) -> int:
        """Return the highest epoch that may be chosen."""
        if self.epoch is not None:
            return as_epoch("epoch", self.epoch)
        return min(max(last_of_unix_ms(_unix_ms(self.timestamp)), 0), MAX_EPOCH)

    def choose(self, view: EpochView, tables: Sequence[str], /) -> dict[str, int]:
        """Return one epoch for all.

        Raises EpochExpired below the history that a table keeps, EpochNotCommitted before a table's first epoch, else
        NoConsistentEpoch when none is valid.
        """
        until = self.until()
        lowest = view.safe_epoch_of(tables)
        if reasons := [reason for name in tables if (reason := explain_expired(view.table(name), until))]:
            ask = f"as of {show_epoch(until)}: {listed(reasons)}. Ask for epoch {show_epoch(lowest)} or later"
            if any(until < view.table(name).root_begin for name in tables):
                raise EpochNotCommitted(ask)
            raise EpochExpired(f"{ask}; to read old epochs, {KEEP_EPOCHS}")
        epoch = view.largest_valid_at_most(tables, until, read=(), lowest=min(until, lowest))  # below: a tag's epoch
        if epoch is None:
            raise _no_epoch(self.name, view, tables, tables, min(until, view.last_epoch))
        return dict.fromkeys(tables, epoch)


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Policy that waits up to `timeout` (seconds, timedelta) for an aligned epoch not below `epoch`."""

    name: ClassVar[str] = "at_least"
    summary: ClassVar[str] = "wait for an agreed epoch at or after this one"
    options: ClassVar[tuple[PolicyOption, ...]] = (
        PolicyOption("epoch", OptionKind.EPOCH, "at this epoch or later", implies=True),
        PolicyOption("timeout", OptionKind.SECONDS, "how long to wait"),
    )
    epoch: int
    timeout: float | timedelta = DEFAULT_TIMEOUT_S

    def __post_init__(self) -> None:
        object.__setattr__(self, "epoch", as_epoch("epoch", self.epoch))
        object.__setattr__(self, "timeout", seconds(self.timeout, "timeout"))

    @staticmethod
    def asked_at(view: EpochView, tables: Sequence[str], epoch: int) -> dict[str, Any]:
        return {"epoch": epoch, "timeout": 0}

    def choose(self, view: EpochView, tables: Sequence[str], /) -> dict[str, int]:
        """Return one epoch for all. Raises NoConsistentEpoch while the largest valid epoch lies below."""
        epoch = view.largest_valid_at_most(tables)
        if epoch is None:
            raise _no_epoch(self.name, view, tables, tables, min(self.epoch, view.last_epoch))
        if epoch < self.epoch:
            reasons = view.why_not(tables, self.epoch)
            gap = f"{distance(epoch, self.epoch)} below {show_epoch(self.epoch)}"
            short = f"the largest valid epoch {show_epoch(epoch)} is {gap}"
            raise NoConsistentEpoch(f"at_least: {short}: {listed(reasons)}. Wait longer or ask for less")
        return dict.fromkeys(tables, epoch)


@dataclass(frozen=True, slots=True)
class Bounded:
    """Policy that waits up to `timeout` for an aligned epoch at which no table lags more than `max_lag`. Seconds or
    timedeltas.
    """

    name: ClassVar[str] = "bounded"
    summary: ClassVar[str] = "wait until no table lags by more than this"
    options: ClassVar[tuple[PolicyOption, ...]] = (
        PolicyOption("max_lag", OptionKind.SECONDS, "refuse to read anything further behind", implies=True),
        PolicyOption("timeout", OptionKind.SECONDS, "how long to wait"),
    )
    max_lag: float | timedelta
    timeout: float | timedelta = DEFAULT_TIMEOUT_S

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_lag", seconds(self.max_lag, "max_lag"))
        object.__setattr__(self, "timeout", seconds(self.timeout, "timeout"))

    @staticmethod
    def asked_at(view: EpochView, tables: Sequence[str], epoch: int) -> dict[str, Any]:
        """Return the options for the least lag, in whole seconds, that the policy accepts."""
        newest = view.largest_valid_at_most(tables)
        lag_ms = 0 if newest is None else max(view.lag_ms(name, newest) for name in tables)
        return {"max_lag": math.ceil(lag_ms / 1000), "timeout": 0}

    def choose(self, view: EpochView, tables: Sequence[str], /) -> dict[str, int]:
        """Return one epoch for all. Raises StalenessExceeded while there is none, or a table lags more there."""
        epoch = view.largest_valid_at_most(tables)
        if epoch is None:
            raise StalenessExceeded(str(_no_epoch(self.name, view, tables, tables, view.last_epoch)))
        max_lag_ms = round(seconds(self.max_lag, "max_lag") * 1000, 3)  # 1.005 * 1000 lies below 1005
        lagging = {name: lag_ms for name in tables if (lag_ms := view.lag_ms(name, epoch)) > max_lag_ms}
        if lagging:
            lags = listed([f"{name} lags {lag_ms:,} ms" for name, lag_ms in lagging.items()])
            reasons = listed(view.why_not(tables, view.last_epoch)) or "its newest changes lie past that epoch"
            raise StalenessExceeded(
                f"bounded: at the largest valid epoch {show_epoch(epoch)} {lags}, more than {max_lag_ms:,.0f} ms: "
                f"{reasons}. Wait longer or allow more lag"
            )
        return dict.fromkeys(tables, epoch)


@dataclass(frozen=True, slots=True)
class Exact:
    """Policy that reads the given epochs, by table name, or those of the token of an earlier snapshot."""

    name: ClassVar[str] = "exact"
    summary: ClassVar[str] = "the given epochs, or those of a snapshot"
    options: ClassVar[tuple[PolicyOption, ...]] = (
        PolicyOption("epoch", OptionKind.EPOCH, "at this epoch", "epochs_or_token", each_table=True, implies=True),
        PolicyOption(
            "token",
            OptionKind.SNAPSHOT,
            "repeat the snapshot of this token, or the one held under this name",
            "epochs_or_token",
            implies=True,
        ),
    )
    epochs_or_token: Mapping[str, int] | str
    epochs: Mapping[str, int] = field(init=False)
    token: Token | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        epochs_or_token = self.epochs_or_token
        if isinstance(epochs_or_token, str):
            token = decode_token(epochs_or_token)
            object.__setattr__(self, "token", token)
            object.__setattr__(self, "epochs", {name: entry.epoch for name, entry in token.entries.items()})
        elif isinstance(epochs_or_token, Mapping) and all(isinstance(name, str) for name in epochs_or_token):
            object.__setattr__(
                self,
                "epochs",
                {name: as_epoch(f"the epoch of {name!r}", epoch) for name, epoch in epochs_or_token.items()},
            )
        else:
            raise InvalidInput(f"exact takes a dict of epochs by table name, or a token, not {epochs_or_token!r}")

    @staticmethod
    def asked_at(view: EpochView, tables: Sequence[str], epoch: int) -> dict[str, Any]:
        return {"epochs_or_token": dict.fromkeys(tables, epoch)}

    def covers(self, view: EpochView) -> list[str]:
        """Return the tables that have an epoch."""
        return list(self.epochs)

    def left_out(self, view: EpochView) -> Mapping[str, str]:
        """Return the reasons in the token for the tables that its snapshot left out, by name."""
        return self.token.left_out if self.token else {}

    def choose(self, view: EpochView, tables: Sequence[str], /) -> dict[str, int]:
        """Return the given epochs. Raises InvalidInput for a table without one, TableDropped for a dropped table of a
        token.
        """
        missing = [name for name in tables if name not in self.epochs]
        refused = [self.token.left_out[name] for name in missing if name in self.token.left_out] if self.token else []
        if refused:
            raise TableNotReadable(f"the snapshot of this token left out tables of the query: {listed(refused)}")
        if missing:
            known = ", ".join(self.epochs) or "none"
            raise InvalidInput(f"exact has no epoch for {', '.join(missing)}; it has: {known}{advice_of(self)}")
        if self.token:
            self._check_identity(self.token, view, tables)
        return {name: self.epochs[name] for name in tables}

    @staticmethod
    def _check_identity(token: Token, view: EpochView, tables: Iterable[str]) -> None:
        if token.store_id and view.store_id and token.store_id != view.store_id:
            raise InvalidInput("this snapshot token is of another store; open that store to read it")
        for name in tables:
            if view.ids.get(name) != token.entries[name].table_id:
                raise TableDropped(f"{name} has been dropped since the token was made; take a new snapshot")


# ---- shared functions ----------------------------------------------------------------------------------------------


def choose_epochs(policy: Policy, view: EpochView, tables: Sequence[str] | None = None) -> dict[str, int]:
    """Return the epochs that the policy chooses for these tables (None: those it covers). Each table is known, complete
    and not expired at its epoch.

    Raises the errors of the policy (after NoConsistentEpoch, ask again with a newer view while its `timeout` lasts),
    TableNotFound, EpochExpired, EpochNotCommitted, or InvalidInput when the policy leaves out a table or an epoch.
    """
    tables = _covered(policy, view) if tables is None else list(dict.fromkeys(tables))
    if not isinstance(policy, Exact):
        for name in tables:
            view.table(name)
    chosen = policy.choose(view, tables)
    if not isinstance(chosen, Mapping):
        raise InvalidInput(f"the policy {policy!r} must choose a dict {{table: epoch}}, not {chosen!r}")
    checked: dict[str, int] = {}
    for name in tables:
        if name not in chosen:
            raise InvalidInput(f"the policy {policy!r} chose no epoch for {name}")
        checked[name] = _readable(view, name, as_epoch(f"the epoch chosen for {name}", chosen[name]))
    return checked


def asks_of_named(policy: Policy) -> bool:
    """Return True if the policy asks for the named tables and their ancestors only; a subclass may ask for all."""
    return type(policy) in (Aligned, Latest, AsOf, AtLeast, Bounded)


def advice_of(policy: Policy) -> str:
    """Return a sentence about tables that a token lacks, to end a message with; "" for other policies."""
    if not isinstance(policy, Exact) or policy.token is None:
        return ""
    return (
        ". The snapshot of this token named other tables, was taken before this table was created, or left it out as "
        "unreadable. job.info.outside and `epochlog jobs` show the tables that cannot be read now"
    )


def left_out_of(policy: Policy, view: EpochView) -> dict[str, str]:
    """Return the reason for each table, by name, that a snapshot of all tables under the policy leaves out."""
    read_reasons = getattr(policy, "left_out", None)
    reasons = read_reasons(view) if callable(read_reasons) else {}
    if not isinstance(reasons, Mapping):
        raise InvalidInput(f"left_out of the policy {policy!r} must return a dict of reasons by table, not {reasons!r}")
    if isinstance(policy, Exact | Aligned):
        return {str(name): str(reason) for name, reason in reasons.items()}
    return {name: _under_aligned(view, name, str(reason)) for name, reason in reasons.items() if name in view.ids}


def _under_aligned(view: EpochView, name: str, reason: str) -> str:
    """Return the reason, with the epoch at which the table can be read by itself."""
    epoch = view.largest_valid_at_most([name])
    aligned = "finds no epoch for it either" if epoch is None else f"would read it at {show_epoch(epoch)}"
    return f"{reason}; aligned {aligned}"


def timeout_of(policy: Policy | None) -> float:
    """Return the seconds for which a policy may be asked again; 0.0 without a timeout. Raises InvalidInput."""
    timeout = getattr(policy, "timeout", None)
    return 0.0 if timeout is None else seconds(timeout, f"the timeout of the policy {policy!r}")


def _covered(policy: Policy, view: EpochView) -> list[str]:
    """Return the tables of a snapshot that names none: those that the policy covers, else all."""
    covers = getattr(policy, "covers", None)
    if covers is None:
        return list(view.ids)
    covered = covers(view) if callable(covers) else covers
    if isinstance(covered, str | bytes) or not isinstance(covered, Iterable):
        raise InvalidInput(f"the policy {policy!r} must cover a list of table names, not {covered!r}")
    names = list(covered)
    if not all(isinstance(name, str) for name in names):
        raise InvalidInput(f"the policy {policy!r} must cover a list of table names, not {names!r}")
    return list(dict.fromkeys(names))


def _readable(view: EpochView, name: str, epoch: int) -> int:
    """Return the epoch if the table can be read there, else raise EpochExpired or EpochNotCommitted."""
    through = view.complete_through(name)
    require_begun(view.table(name), epoch)
    if not view.table(name).keeps(epoch):
        raise expired(name, epoch, view.table(name).safe_epoch)
    if epoch > through:
        short = f"is complete only through {show_epoch(through)}, {distance(through, epoch)} short"
        raise EpochNotCommitted(
            f"{name} at {show_epoch(epoch)}: it {short if through else 'has no commit yet'}; wait for it or ask for an "
            "earlier epoch"
        )
    return epoch


def _require_fresh(view: EpochView, tables: Sequence[str], epoch: int) -> None:
    """Raise TableNotReadable if one of the tables lags more than the store's `global_max_lag` at the epoch that is the
    newest one valid for all of them.
    """
    bound_ms = view.global_max_lag_ms
    lagging = {name: lag_ms for name in tables if (lag_ms := view.lag_ms(name, epoch)) > bound_ms}
    if not lagging:
        return
    late = [name for name in lagging if view.lag_ms(name) > bound_ms] or list(lagging)
    lags = listed([f"{name} lags {show_span(lagging[name])}" for name in late])
    reasons = listed(view.why_not(tables, view.last_epoch)) or "its newest changes lie past that epoch"
    raise TableNotReadable(
        f"the newest epoch valid for {listed(list(tables), ', ')} is {show_epoch(epoch)}, where {lags}, more than "
        f"global_max_lag ({show_span(bound_ms)}): {reasons}. Wait for the jobs named, leave the late table out, or "
        "read with consistency='aligned', which takes that epoch, or 'latest', which is not consistent"
    )


def _unix_ms(value: object) -> int:
    """Return the Unix milliseconds of a timestamp."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidInput(f"{value!r} is not an ISO 8601 timestamp such as 2025-06-01T12:00:00Z") from None
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"a timestamp must be a datetime, an ISO 8601 string or Unix milliseconds, not {value!r}")
    return value


def _no_epoch(
    policy: str, view: EpochView, members: Sequence[str], read: Sequence[str], epoch: int
) -> NoConsistentEpoch:
    """Return the error for members without a common valid epoch up to `epoch` that can still be read."""
    reasons = view.why_not(members, epoch)
    oldest = view.largest_valid_at_most(members, epoch, read=())
    if oldest is not None:
        reasons += [f"{reason}, and it is the newest valid one" for reason in view.why_not(read, oldest)]
    aligned_epoch = view.largest_valid_at_most(read) if policy == Global.name else None
    instead = "consistency='latest', which is not consistent"
    if aligned_epoch is not None:
        instead = f"consistency='aligned', which chooses {show_epoch(aligned_epoch)} now"
    return NoConsistentEpoch(
        f"{policy}: no epoch is valid for {listed(list(read), ', ')}: {listed(reasons)}. "
        f"Wait for the jobs named, or take a snapshot with {instead}"
    )


def listed(items: Sequence[str], between: str = "; ") -> str:
    """Join sentences or names; only count those past the first few."""
    more = len(items) - MAX_REASONS
    return between.join(items[:MAX_REASONS]) + (f"{between}and {more} more" if more > 0 else "")
