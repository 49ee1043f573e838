"""Choice of epochs by a policy: one way for snapshots, table reads, Spark's loads and catalogs, and Flight.

A choice reads one state of the catalog. The jobs that it finds late under `global` are marked before its result is
used, and also if the policy refuses the read. A policy with a timeout is asked again when the catalog has changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from epochlog.errors import EpochExpired, EpochlogError, NoConsistentEpoch, TableDropped
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.commit.lag_marks import mark_late
from epochlog.store.env.clock import Deadline, monotonic_s, wait_with_checks
from epochlog.store.epochs.view import EpochView
from epochlog.store.epochs.view_reader import TableRecords, read_epochs_and_records
from epochlog.store.metadata.lookups import find_table_id
from epochlog.store.metadata.read_default import read_default
from epochlog.store.session.handle import Handle

from .default_policy import default_policy
from .policy import Global, Policy, asks_of_named, timeout_of

T = TypeVar("T")
U = TypeVar("U")

CHOICES = 3
"""Choices outside of a transaction that retention may overtake; the next one is made inside the transaction that pins
it.
"""
ASK_ANYWAY_S = 1.0
"""Time after which a policy is asked again without a change of the catalog, because it may depend on the clock."""
PAUSE_RATIO = 4
"""Ratio of the pause after a choice to its duration, so that waiting takes at most a fifth of a core under many
commits.
"""


class ChoiceRead:
    """Read of one state of the catalog, `view`, from which a policy chooses epochs."""

    def __init__(self, handle: Handle, view: ReadTxn, named: Policy | None) -> None:
        self.view = view
        self._handle = handle
        self._named = named
        self._under_global: EpochView | None = None

    def policy(self, tables: Sequence[str] | None) -> Policy:
        """Return the policy that the read names, or else the default for these tables (None: for all)."""
        return self._named or default_policy(tables, read_default(self.view))

    def epochs(self, policy: Policy, tables: Sequence[str] | None = None) -> tuple[EpochView, dict[str, TableRecords]]:
        """Read the epochs from which the policy chooses, with the records that they are of: of all tables, or of the
        named tables and their ancestors for a policy that asks for no others. Raises TableNotFound.
        """
        named = tables if tables and asks_of_named(policy) else ()
        above = {find_table_id(self.view, name): name for name in named} or None
        now_ms, store_id = self._handle.catalog.now_ms(), self._handle.store_id
        epochs, records = read_epochs_and_records(self.view, self._handle.memory, now_ms, store_id, above=above)
        if isinstance(policy, Global):
            self._under_global = epochs
        return epochs, records

    def mark_late(self, tx: Txn | None = None) -> None:
        """Mark the jobs that are late in the epochs that were read under `global`, once. tx: see `mark_late`."""
        if self._under_global is not None:
            mark_late(self._handle, self._under_global, tx)
            self._under_global = None


def choose(
    handle: Handle, policy: Policy | None, answer: Callable[[ChoiceRead], T], check: Callable[[], None] | None = None
) -> T:
    """Return `answer` of one state of the catalog, with all late jobs marked; ask again as `until_chosen` does.

    policy: None for the default. check: called during a wait; it raises an error to end the wait.
    """
    return until_chosen(handle, policy, lambda: _ask(handle, policy, answer), check)


def choose_and_pin(
    handle: Handle,
    policy: Policy | None,
    answer: Callable[[ChoiceRead], T],
    pin: Callable[[Txn, T], U],
    check: Callable[[], None] | None = None,
) -> tuple[T, U]:
    """Choose as `choose` does, and return the answer with the result of `pin`, which runs in a transaction.

    The answer is found outside of any transaction, so that writers are not blocked. pin: checks the answer again, and
    raises EpochExpired or TableDropped if retention or a drop was faster; then the next answer is found.
    """

    def attempt() -> tuple[T, U]:
        for _ in range(CHOICES):
            chosen = _ask(handle, policy, answer)
            with suppress(EpochExpired, TableDropped):
                return chosen, handle.pin(lambda tx, chosen=chosen: pin(tx, chosen))
        return handle.pin(answer_and_pin)

    def answer_and_pin(tx: Txn) -> tuple[T, U]:
        asked = ChoiceRead(handle, tx, policy)
        chosen = answer(asked)
        asked.mark_late(tx)  # a failure after the pin would leave its holds to nobody
        return chosen, pin(tx, chosen)

    return until_chosen(handle, policy, attempt, check)


def _ask(handle: Handle, policy: Policy | None, answer: Callable[[ChoiceRead], T]) -> T:
    """Ask in one read of the catalog, and mark the jobs that were late in it, also if the policy refuses."""
    asked: ChoiceRead | None = None

    def ask(view: ReadTxn) -> T:
        nonlocal asked
        asked = ChoiceRead(handle, view, policy)
        return answer(asked)

    try:
        answered = handle.catalog.read(ask)
    except BaseException:
        if asked is not None:
            with suppress(EpochlogError):  # the refusal tells more
                asked.mark_late()
        raise
    if asked is not None:
        asked.mark_late()
    return answered


def until_chosen(
    handle: Handle, policy: Policy | None, choose: Callable[[], T], check: Callable[[], None] | None = None
) -> T:
    """Return the result of `choose`. While it raises NoConsistentEpoch, call it again after each change of the catalog.

    This ends with the policy's `timeout` (seconds of monotonic time; no timeout: no waiting), which raises the last
    error. check: called every CHECK_S of the wait; it raises an error to end the wait.
    """
    deadline = Deadline.after(timeout_of(policy))
    try:
        return choose()
    except NoConsistentEpoch:
        if deadline.passed:
            raise
    pause = threading.Event()  # never set
    with handle.watcher.listen() as event:
        while True:
            wait_with_checks(event.wait, min(deadline.remaining_s, ASK_ANYWAY_S), check)
            began_s = monotonic_s()
            try:
                return choose()
            except NoConsistentEpoch:
                if deadline.passed:
                    raise
            wait_with_checks(pause.wait, min(deadline.remaining_s, PAUSE_RATIO * (monotonic_s() - began_s)), check)
