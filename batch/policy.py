"""Consistency policies: pure choices of the epoch each table of a query is read at, from one EpochView.

A policy is any object with `choose(view, tables) -> {table: epoch}`, tables by name. When no epoch satisfies it now, it
raises NoConsistentEpoch; a policy with a `timeout` (seconds) > 0 is then asked again with a newer view until that much
monotonic time has passed. The waiting is the caller's. `covers(view)`, if there, names the tables of a snapshot that
names none itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Protocol, runtime_checkable

from ..errors import (
    EpochExpired,
    EpochNotCommitted,
    InvalidInput,
    NoConsistentEpoch,
    StalenessExceeded,
    TableDropped,
    TableNotReadable,
)
from ..store.clock import seconds
from ..store.epoch import MAX_EPOCH, as_epoch, last_of_unix_ms, show_epoch
from ..store.explain import distance, let_go
from ..store.lineage import EpochView, require_begun
from .token import Token, decode_token

DEFAULT_TIMEOUT_S = 10.0
MAX_REASONS = 8


@runtime_checkable
class Policy(Protocol):
    """What a snapshot needs of a policy."""

    def choose(self, view: EpochView, tables: Sequence[str], /) -> Mapping[str, int]:
        """The epoch to read each of these tables at."""
        ...


@dataclass(frozen=True, slots=True)
class Global:
    """The largest epoch valid for all tables of the store, whatever the query reads.

    Tables that are creating or parked, that lag more than the store's `global_max_lag` or commit too rarely for it, and
    all that descend from them, take no part, and reading one raises TableNotReadable. `include_creating=True` counts
    them like all others.
    """

    name: ClassVar[str] = "global"
    include_creating: bool = False

    def covers(self, view: EpochView) -> list[str]:
        """All tables that take part, and can be read at their common epoch."""
        left_out = self.left_out(view)
        return [name for name in view.ids if name not in left_out]

    def left_out(self, view: EpochView) -> dict[str, str]:
        """Why each table is not covered that is not, by name."""
        if self.include_creating:
            return {}
        found = view.membership
        gone = {name: let_go(view.table(name), found.epoch) for name in found.members}
        return {**found.left_out, **{name: f"{name} cannot be read: {why}" for name, why in gone.items() if why}}

    def choose(self, view: EpochView, tables: Sequence[str], /) -> dict[str, int]:
        """One epoch for all. TableNotReadable, or NoConsistentEpoch where the history of a table is gone there."""
        if self.include_creating:
            members, at = list(view.ids), view.largest_valid_at_most(view.ids, read=tables)
        else:
            found = view.membership
            refused = [_under_aligned(view, name, found.left_out[name]) for name in tables if name in found.left_out]
            if refused:
                raise TableNotReadable(
                    f"under global, {listed(refused)}. Wait until it takes part again, read it with "
                    "consistency='aligned', or pass include_creating=True"
                )
            members, at = found.members, found.epoch if found.epoch >= view.floor(tables) else None
        if at is None:
            raise _no_epoch(self.name, view, members, tables, view.last_epoch)
        return dict.fromkeys(tables, at)


@dataclass(frozen=True, slots=True)
class Aligned:
    """The largest epoch valid for the tables of this query."""

    name: ClassVar[str] = "aligned"

    def choose(self, view: EpochView, tables: Sequence[str], /) -> dict[str, int]:
        """One epoch for all, or NoConsistentEpoch."""
        at = view.largest_valid_at_most(tables)
        if at is None:
            raise _no_epoch(self.name, view, tables, tables, view.last_epoch)
        return dict.fromkeys(tables, at)


@dataclass(frozen=True, slots=True)
class Latest:
    """Each table at its own newest commit: the freshest, and not consistent."""

    name: ClassVar[str] = "latest"

    def choose(self, view: EpochView, tables: Sequence[str], /) -> dict[str, int]:
        """Each table's newest commit; without one 0, or where a root table was made, where it reads as empty."""
        return {name: max(view.table(name).position, view.table(name).root_begin) for name in tables}


@dataclass(frozen=True, slots=True)
class AsOf:
    """The largest valid epoch at or below an epoch, or at or below the end of a millisecond.

    `timestamp` is a datetime (a naive one is taken as UTC), an ISO 8601 string of one, or Unix milliseconds.
    """

    name: ClassVar[str] = "as_of"
    epoch: int | None = None
    timestamp: datetime | str | int | None = None

    def __post_init__(self) -> None:
        if (self.epoch is None) == (self.timestamp is None):
            raise InvalidInput("as_of takes one of epoch= and timestamp=")
        self.until()

    def until(self) -> int:
        """The epoch not to go beyond."""
        if self.epoch is not None:
            return as_epoch("epoch", self.epoch)
        return min(max(last_of_unix_ms(_unix_ms(self.timestamp)), 0), MAX_EPOCH)

    def choose(self, view: EpochView, tables: Sequence[str], /) -> dict[str, int]:
        """One epoch for all. EpochExpired below the history that a table keeps, EpochNotCommitted before one was made,
        else NoConsistentEpoch when none is.
        """
        until = self.until()
        floor = view.floor(tables)
        if until < floor:
            reasons = [reason for name in tables if (reason := let_go(view.table(name), until))]
            early = any(until < view.table(name).root_begin for name in tables)
            raise (EpochNotCommitted if early else EpochExpired)(
                f"as of {show_epoch(until)}: {listed(reasons)}. Ask for epoch {show_epoch(floor)} or later"
            )
        at = view.largest_valid_at_most(tables, until)
        if at is None:
            raise _no_epoch(self.name, view, tables, tables, min(until, view.last_epoch))
        return dict.fromkeys(tables, at)


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Aligned, but not below `epoch`: what was written there is in it. Waits up to `timeout` (seconds, timedelta)."""

    name: ClassVar[str] = "at_least"
    epoch: int
    timeout: float | timedelta = DEFAULT_TIMEOUT_S

    def __post_init__(self) -> None:
        object.__setattr__(self, "epoch", as_epoch("epoch", self.epoch))
        object.__setattr__(self, "timeout", seconds(self.timeout, "timeout"))

    def choose(self, view: EpochView, tables: Sequence[str], /) -> dict[str, int]:
        """One epoch for all; NoConsistentEpoch as long as the largest valid one lies below."""
        at = view.largest_valid_at_most(tables)
        if at is None:
            raise _no_epoch(self.name, view, tables, tables, min(self.epoch, view.last_epoch))
        if at < self.epoch:
            reasons = view.why_not(tables, self.epoch)
            short = (
                f"the largest valid epoch {show_epoch(at)} is {distance(at, self.epoch)} below {show_epoch(self.epoch)}"
            )
            raise NoConsistentEpoch(f"at_least: {short}: {listed(reasons)}. Wait longer or ask for less")
        return dict.fromkeys(tables, at)


@dataclass(frozen=True, slots=True)
class Bounded:
    """Aligned, if no table then lags more than `max_lag`; waits up to `timeout` for that. Seconds or timedeltas."""

    name: ClassVar[str] = "bounded"
    max_lag: float | timedelta
    timeout: float | timedelta = DEFAULT_TIMEOUT_S

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_lag", seconds(self.max_lag, "max_lag"))
        object.__setattr__(self, "timeout", seconds(self.timeout, "timeout"))

    def choose(self, view: EpochView, tables: Sequence[str], /) -> dict[str, int]:
        """One epoch for all; StalenessExceeded as long as there is none, or a table lags more there."""
        at = view.largest_valid_at_most(tables)
        if at is None:
            raise StalenessExceeded(str(_no_epoch(self.name, view, tables, tables, view.last_epoch)))
        max_lag_ms = round(seconds(self.max_lag, "max_lag") * 1000, 3)  # 1.005 * 1000 lies below 1005
        late = {name: lag_ms for name in tables if (lag_ms := view.lag_ms(name, at)) > max_lag_ms}
        if late:
            lags = listed([f"{name} lags {lag_ms:,} ms" for name, lag_ms in late.items()])
            reasons = listed(view.why_not(tables, view.last_epoch)) or "its newest changes lie past that epoch"
            raise StalenessExceeded(
                f"bounded: at the largest valid epoch {show_epoch(at)} {lags}, more than {max_lag_ms:,.0f} ms: "
                f"{reasons}. "
                "Wait longer or allow more lag"
            )
        return dict.fromkeys(tables, at)


@dataclass(frozen=True, slots=True)
class Exact:
    """The epochs given, by table name or as the token of an earlier snapshot, which this repeats."""

    name: ClassVar[str] = "exact"
    epochs_or_token: Mapping[str, int] | str
    epochs: Mapping[str, int] = field(init=False)
    token: Token | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        given = self.epochs_or_token
        if isinstance(given, str):
            token = decode_token(given)
            object.__setattr__(self, "token", token)
            object.__setattr__(self, "epochs", {name: entry.epoch for name, entry in token.entries.items()})
        elif isinstance(given, Mapping) and all(isinstance(name, str) for name in given):
            object.__setattr__(
                self, "epochs", {name: as_epoch(f"the epoch of {name!r}", epoch) for name, epoch in given.items()}
            )
        else:
            raise InvalidInput(f"exact takes a dict of epochs by table name, or a token, not {given!r}")

    def covers(self, view: EpochView) -> list[str]:
        """The tables given."""
        return list(self.epochs)

    def left_out(self, view: EpochView) -> Mapping[str, str]:
        """Why the snapshot of the token had not those that it left out."""
        return self.token.left_out if self.token else {}

    def choose(self, view: EpochView, tables: Sequence[str], /) -> dict[str, int]:
        """The epochs given. InvalidInput for a table without one, TableDropped for a token's table that is no more."""
        missing = [name for name in tables if name not in self.epochs]
        refused = [self.token.left_out[name] for name in missing if name in self.token.left_out] if self.token else []
        if refused:
            raise TableNotReadable(f"the snapshot of this token left out what is asked for: {listed(refused)}")
        if missing:
            there = ", ".join(self.epochs) or "none"
            raise InvalidInput(f"exact has no epoch for {', '.join(missing)}; it has: {there}{advice_of(self)}")
        if self.token:
            self._check_identity(self.token, view, tables)
        return {name: self.epochs[name] for name in tables}

    @staticmethod
    def _check_identity(token: Token, view: EpochView, tables: Iterable[str]) -> None:
        if token.store_id and view.store_id and token.store_id != view.store_id:
            raise InvalidInput("this snapshot token is of another store; open that one to repeat it")
        for name in tables:
            if view.ids.get(name) != token.entries[name].table_id:
                raise TableDropped(f"{name} has been dropped since the token was made; take a new snapshot")


# ---- the shared parts ----------------------------------------------------------------------------------------------


def choose_epochs(policy: Policy, view: EpochView, tables: Sequence[str] | None = None) -> dict[str, int]:
    """What the policy chooses for these tables (None: those it covers), checked: known, complete, not expired.

    Raises what the policy raises (NoConsistentEpoch: ask again with a newer view while its `timeout` lasts),
    TableNotFound, EpochExpired, EpochNotCommitted, or InvalidInput when the policy leaves out a table or an epoch.
    """
    tables = _covered(policy, view) if tables is None else list(dict.fromkeys(tables))
    if not isinstance(policy, Exact):
        for name in tables:
            view.table(name)
    chosen = policy.choose(view, tables)
    if not isinstance(chosen, Mapping):
        raise InvalidInput(f"the policy {policy!r} must choose a dict {{table: epoch}}, not {chosen!r}")
    out: dict[str, int] = {}
    for name in tables:
        if name not in chosen:
            raise InvalidInput(f"the policy {policy!r} chose no epoch for {name}")
        out[name] = _readable(view, name, as_epoch(f"the epoch chosen for {name}", chosen[name]))
    return out


def advice_of(policy: Policy) -> str:
    """What is known of tables that a token has not, as the end of a message; nothing for other policies."""
    if not isinstance(policy, Exact) or policy.token is None:
        return ""
    return (
        ". The snapshot of this token was taken without it: of other tables alone, before it was made, or of all, and "
        "left out what could not be read then. job.info.outside and `epochlog jobs` tell what cannot be read now"
    )


def left_out_of(policy: Policy, view: EpochView) -> dict[str, str]:
    """Why a snapshot of all tables under the policy has not those that it leaves out: a sentence for each, by name."""
    told = getattr(policy, "left_out", None)
    reasons = told(view) if callable(told) else {}
    if not isinstance(reasons, Mapping):
        raise InvalidInput(f"the policy {policy!r} must say why by table name, not {reasons!r}")
    if isinstance(policy, Exact):
        return {str(name): str(why) for name, why in reasons.items()}
    return {name: _under_aligned(view, name, str(why)) for name, why in reasons.items() if name in view.ids}


def _under_aligned(view: EpochView, name: str, why: str) -> str:
    """The reason, with the epoch at which the table can be read by itself."""
    at = view.largest_valid_at_most([name])
    return f"{why}; aligned {'finds no epoch for it either' if at is None else f'would read it at {show_epoch(at)}'}"


def timeout_of(policy: Policy) -> float:
    """For how many seconds a policy may be asked again; 0.0 when it says nothing. InvalidInput for what is none."""
    given = getattr(policy, "timeout", None)
    return 0.0 if given is None else seconds(given, f"the timeout of the policy {policy!r}")


def _covered(policy: Policy, view: EpochView) -> list[str]:
    """The tables of a snapshot that names none: what the policy covers, else all."""
    covers = getattr(policy, "covers", None)
    if covers is None:
        return list(view.ids)
    found = covers(view) if callable(covers) else covers
    if isinstance(found, str | bytes) or not isinstance(found, Iterable):
        raise InvalidInput(f"the policy {policy!r} must cover a list of table names, not {found!r}")
    names = list(found)
    if not all(isinstance(name, str) for name in names):
        raise InvalidInput(f"the policy {policy!r} must cover a list of table names, not {names!r}")
    return list(dict.fromkeys(names))


def _readable(view: EpochView, name: str, epoch: int) -> int:
    """The epoch, if the table can be read there."""
    safe, through = view.table(name).safe_epoch, view.complete_through(name)
    require_begun(view.table(name), epoch)
    if epoch < safe:
        raise EpochExpired(
            f"{name} at {show_epoch(epoch)}: its history below {show_epoch(safe)} has been let go, "
            f"{distance(epoch, safe)} later; "
            f"ask for {show_epoch(safe)} or later"
        )
    if epoch > through:
        short = f"is complete only through {show_epoch(through)}, {distance(through, epoch)} short"
        raise EpochNotCommitted(
            f"{name} at {show_epoch(epoch)}: it {short if through else 'has no commit yet'}; wait for it or ask for an "
            "earlier epoch"
        )
    return epoch


def _unix_ms(value: object) -> int:
    """Unix milliseconds of a timestamp."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidInput(f"{value!r} is no ISO 8601 timestamp, as 2025-06-01T12:00:00Z is") from None
    if isinstance(value, datetime):
        at = value if value.tzinfo else value.replace(tzinfo=UTC)
        return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"a timestamp is a datetime, an ISO 8601 string or Unix milliseconds, not {value!r}")
    return value


def _no_epoch(
    policy: str, view: EpochView, members: Sequence[str], read: Sequence[str], epoch: int
) -> NoConsistentEpoch:
    """Why the members share no valid epoch up to `epoch` at which the tables to read still have their history."""
    reasons = view.why_not(members, epoch)
    oldest = view.largest_valid_at_most(members, epoch, read=())
    if oldest is not None:
        reasons += [f"{reason}, and it is the newest valid one" for reason in view.why_not(read, oldest)]
    at = view.largest_valid_at_most(read) if policy == Global.name else None
    instead = "consistency='latest' and do without consistency"
    if at is not None:
        instead = f"consistency='aligned', which chooses {show_epoch(at)} now"
    return NoConsistentEpoch(
        f"{policy}: no epoch is valid for {listed(list(read), ', ')}: {listed(reasons)}. "
        f"Wait for the jobs named, or read with {instead}"
    )


def listed(items: Sequence[str], between: str = "; ") -> str:
    """Join sentences or names; those past the first few are counted only."""
    more = len(items) - MAX_REASONS
    return between.join(items[:MAX_REASONS]) + (f"{between}and {more} more" if more > 0 else "")
