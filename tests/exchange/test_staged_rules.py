"""Staged exchange against a model of dicts: any calls in any order, with the catalog checked after each transaction.

The rules run on a catalog in memory; verify's own checks hold after every step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import epochlog as el
from epochlog.exchange.staged import transactions
from epochlog.exchange.staged.batch_file import decode_batch, encode_batch
from epochlog.exchange.staged.state import StageConsumer, StagedQuery
from epochlog.store.catalog.keys import intent_key
from epochlog.store.metadata.exchange_records import end_query, query_key
from epochlog.store.verify.exchanges import check_exchanges

pytestmark = pytest.mark.local_only

QUERY, INTENT = "q", "0" * 32
STAGES = {"a": -1, "b": 0, "c": 0}
CONSUMERS = {"one": {-1: ("a",), 0: ("b",)}, "two": {-1: ("a",), 0: ("b", "c")}}
SIZE = 10


class Records:
    """A catalog's transaction over a dict."""

    def __init__(self) -> None:
        self.records: dict[bytes, Any] = {}

    def get(self, key: bytes) -> Any:
        return self.records.get(key)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, Any]]:
        yield from [(key, self.records[key]) for key in sorted(self.records, reverse=reverse) if start <= key < stop]

    def put(self, key: bytes, record: Any) -> None:
        self.records[key] = record

    def delete(self, key: bytes) -> None:
        self.records.pop(key, None)


channels, consumers = st.sampled_from(sorted(STAGES)), st.sampled_from(sorted(CONSUMERS))
near = st.sampled_from([0, 0, 0, 0, 0, 1, -1, 2])
"""How far from what would be right; mostly it is."""


class ExchangeMachine(RuleBasedStateMachine):
    """The model: what was pushed, ended and acknowledged, by the words of the rules."""

    def __init__(self) -> None:
        super().__init__()
        self.tx = Records()
        self.tx.put(intent_key(INTENT), {"id": INTENT})
        for name, stages in CONSUMERS.items():
            transactions.declare(
                self.tx, StagedQuery(QUERY, {}, frozenset(), 1, 1, 1 << 40), StageConsumer(name, stages)
            )
        self.content: dict[tuple[str, int], int] = {}
        self.last: dict[str, int] = {}
        self.brought: dict[tuple[str, str], int] = {}  # by the present incarnation, perhaps past what is here
        self.attempt = dict.fromkeys(STAGES, 0)
        self.incarnation = dict.fromkeys(CONSUMERS, -1)
        self.acked = {name: dict.fromkeys(self.names(name), 0) for name in CONSUMERS}

    def names(self, consumer: str) -> list[str]:
        return [name for names in CONSUMERS[consumer].values() for name in names]

    def next(self, channel: str) -> int:
        seq = 0
        while (channel, seq) in self.content:
            seq += 1
        return seq

    def refused(self, error: type[Exception], call: Any) -> None:
        before = dict(self.tx.records)
        with pytest.raises(error):
            call()
        assert self.tx.records == before, "what is refused changes nothing"

    @rule(channel=channels, ahead=near, newer=near, content=st.sampled_from([0, 0, 0, 1]))
    def push_some(self, channel: str, ahead: int, newer: int, content: int) -> None:
        self.push(channel, max(0, self.next(channel) + ahead), max(0, self.attempt[channel] + newer), content)

    def push(self, channel: str, seq: int, attempt: int, content: int) -> None:
        given = transactions.Push(
            channel, STAGES[channel], seq, attempt, f"{INTENT}-{channel}{seq}.arrow", SIZE, content, 1
        )
        known = self.content.get((channel, seq))
        if attempt < self.attempt[channel]:
            self.refused(el.Fenced, lambda: transactions.push(self.tx, QUERY, given))
        elif known is not None and known != content:
            self.refused(el.ContentMismatch, lambda: transactions.push(self.tx, QUERY, given))
        elif known is None and seq > self.last.get(channel, seq):
            self.refused(el.EndMarkMismatch, lambda: transactions.push(self.tx, QUERY, given))
        else:
            assert transactions.push(self.tx, QUERY, given).stored == (known is None)
            self.content[channel, seq] = content
            self.attempt[channel] = attempt

    @rule(channel=channels, beyond=near, newer=near)
    def end(self, channel: str, beyond: int, newer: int) -> None:
        last, attempt = max(-1, self.next(channel) + 1 + beyond), max(0, self.attempt[channel] + newer)
        top = max([seq for name, seq in self.content if name == channel], default=-1)
        if attempt < self.attempt[channel]:
            self.refused(el.Fenced, lambda: transactions.end(self.tx, QUERY, channel, last, attempt, None))
        elif self.last.get(channel, last) != last or top > last:
            self.refused(el.EndMarkMismatch, lambda: transactions.end(self.tx, QUERY, channel, last, attempt, None))
        else:
            transactions.end(self.tx, QUERY, channel, last, attempt, None)
            self.last[channel], self.attempt[channel] = last, attempt

    @rule(consumer=consumers, newer=near)
    def claim(self, consumer: str, newer: int) -> None:
        incarnation = max(0, self.incarnation[consumer] + newer)
        if incarnation < self.incarnation[consumer]:
            self.refused(el.Fenced, lambda: transactions.claim(self.tx, QUERY, consumer, incarnation, None))
            return
        claimed = transactions.claim(self.tx, QUERY, consumer, incarnation, None)
        self.incarnation[consumer] = incarnation
        self.brought = {key: seq for key, seq in self.brought.items() if key[0] != consumer}
        assert {name: claimed.start.get(name, 0) for name in self.acked[consumer]} == self.acked[consumer]

    @rule(consumer=consumers, newer=near, data=st.data())
    def acknowledge(self, consumer: str, newer: int, data: st.DataObject) -> None:
        incarnation = max(0, self.incarnation[consumer] + newer)
        some = data.draw(st.dictionaries(st.sampled_from(self.names(consumer)), near))
        cursor = {name: max(0, self.next(name) + beyond - (beyond == 2) * 4) for name, beyond in some.items()}
        if incarnation != self.incarnation[consumer]:
            self.refused(el.Fenced, lambda: transactions.acknowledge(self.tx, QUERY, consumer, incarnation, cursor))
        elif any(seq > max(self.next(name), self.brought.get((consumer, name), 0)) for name, seq in cursor.items()):
            self.refused(
                el.InvalidInput, lambda: transactions.acknowledge(self.tx, QUERY, consumer, incarnation, cursor)
            )
        else:
            freed = transactions.acknowledge(self.tx, QUERY, consumer, incarnation, cursor)
            before = self.live()
            for name, seq in cursor.items():
                self.acked[consumer][name] = max(self.acked[consumer][name], min(seq, self.next(name)))
            assert sorted(freed) == sorted(before - self.live())

    @precondition(lambda self: self.incarnation["two"] >= 0)
    @rule(data=st.data())
    def a_cursor_is_brought(self, data: st.DataObject) -> None:
        """By a consumer whose state covers more than it has acknowledged, perhaps more than is here."""
        name = data.draw(st.sampled_from(self.names("two")))
        seq = data.draw(st.integers(self.released(name), 9))
        if seq > self.last.get(name, 9) + 1:
            return
        claimed = transactions.claim(self.tx, QUERY, "two", self.incarnation["two"], {name: seq})
        self.brought = {key: at for key, at in self.brought.items() if key[0] != "two"} | {("two", name): seq}
        assert claimed.start[name] == seq and claimed.cursor.get(name, 0) == self.acked["two"][name]
        transactions.acknowledge(self.tx, QUERY, "two", self.incarnation["two"], {name: seq})
        self.acked["two"][name] = max(self.acked["two"][name], min(seq, self.next(name)))

    def released(self, channel: str) -> int:
        return min(acked[channel] for acked in self.acked.values() if channel in acked)

    def live(self) -> set[str]:
        return {f"{INTENT}-{name}{seq}.arrow" for name, seq in self.content if seq >= self.released(name)}

    @invariant()
    def what_is_kept(self) -> None:
        assert check_exchanges(self.tx) == []
        assert {record["path"] for key, record in self.tx.records.items() if key.startswith(b"xp/")} == self.live()
        assert transactions.used_bytes(self.tx, QUERY) == SIZE * len(self.live())
        query = transactions.find_query(self.tx, QUERY)
        assert {name: transactions.find_channel(self.tx, query, name).attempt for name in STAGES} == self.attempt
        lacking = [stage for name, stage in STAGES.items() if self.next(name) <= self.last.get(name, self.next(name))]
        assert query.stage == min(lacking, default=1)

    @invariant()
    def what_consumers_find(self) -> None:
        for consumer in CONSUMERS:
            cursor = self.acked[consumer]
            mail = transactions.read_backlog(self.tx, QUERY, consumer, cursor, list(cursor), 99)
            wanted = [(name, seq) for name, at in cursor.items() for seq in range(at, self.next(name))]
            assert [(name, seq) for name, seq, _ in mail.pushed] == wanted
            assert mail.ends == {name: last for name, last in self.last.items() if name in cursor}
            assert mail.incarnation == self.incarnation[consumer]


@pytest.mark.rule("6.3", "6.4", "6.5", "6.6", "6.7")
def test_any_calls_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "DIGESTS_PER_RECORD", 3)  # digests of what was released, over several records
    machine = ExchangeMachine.TestCase
    machine.settings = settings(settings.default, max_examples=20, stateful_step_count=30, phases=[Phase.generate])
    machine().runTest()


def test_a_release_of_much_takes_several_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "MAX_RELEASED", 5)
    machine = ExchangeMachine()
    for seq in range(12):
        machine.push(channel="c", seq=seq, attempt=0, content=0)
    transactions.claim(machine.tx, QUERY, "two", 0, None)
    freed = transactions.acknowledge(machine.tx, QUERY, "two", 0, {"c": 12})
    while len(freed) % 5 == 0:
        assert check_exchanges(machine.tx) == []
        freed += transactions.release(machine.tx, QUERY, ["c"])
    assert len(freed) == len(set(freed)) == 12 and transactions.release(machine.tx, QUERY, ["c"]) == []
    assert check_exchanges(machine.tx) == []


@pytest.mark.rule("6.11")
def test_a_record_that_is_missing_is_damage_and_no_empty_stream() -> None:
    machine = ExchangeMachine()
    for seq in range(4):
        machine.push(channel="a", seq=seq, attempt=0, content=0)
    machine.tx.delete(b"xp/q/a/%016x" % 2)
    with pytest.raises(el.Corrupt, match="its batch was pushed"):
        transactions.read_backlog(machine.tx, QUERY, "one", {"a": 0, "b": 0}, ["a"], 9)
    assert any("lacks 1 batches of channel a, the first at 2" in what for _, what in check_exchanges(machine.tx))


def test_a_query_of_version_0_1_is_counted_by_what_was_pushed() -> None:
    """Its record says which channels have end marks, and not which have passed."""
    machine = ExchangeMachine()
    machine.push(channel="b", seq=0, attempt=0, content=0)
    for channel, last in (("a", 1), ("b", 0), ("c", -1)):
        transactions.end(machine.tx, QUERY, channel, last, 0, None)
    key = query_key(QUERY)
    record = machine.tx.records[key]
    assert record.pop("passed") == ["b", "c"]
    machine.tx.records[key] = record | {"ended": ["a", "b", "c"]}
    assert check_exchanges(machine.tx) == []
    assert transactions.find_query(machine.tx, QUERY).stage == -1
    machine.push(channel="a", seq=0, attempt=0, content=0)
    machine.push(channel="a", seq=1, attempt=0, content=0)
    assert transactions.find_query(machine.tx, QUERY).stage == 1
    assert "ended" not in machine.tx.records[key] and check_exchanges(machine.tx) == []


def test_a_query_that_was_ended_is_there_for_nobody() -> None:
    machine = ExchangeMachine()
    end_query(machine.tx, QUERY)
    for call in (
        lambda: transactions.end(machine.tx, QUERY, "a", -1, 0, None),
        lambda: transactions.claim(machine.tx, QUERY, "one", 0, None),
        lambda: transactions.release(machine.tx, QUERY, ["a"]),
    ):
        with pytest.raises(el.QueryNotFound):
            call()


def test_the_same_values_have_the_same_bytes_whatever_lies_beneath_nulls() -> None:
    """Padding and what nulls hide differ from one making of a batch to the next; its checksum does not."""
    valid = pa.py_buffer(np.packbits([1, 0, 1, 1, 0], bitorder="little").tobytes())
    noisy = pa.py_buffer((np.packbits([1, 0, 1, 1, 0], bitorder="little") | 0xE0).tobytes())

    def made(hidden: int, bits: pa.Buffer) -> pa.RecordBatch:
        columns = {}
        for kind in (pa.int64(), pa.float64(), pa.timestamp("us", "UTC"), pa.duration("ms"), pa.uint64()):
            values = np.array([1, hidden, 3, 4, hidden], "i8")
            columns[str(kind)] = pa.Array.from_buffers(kind, 5, [bits, pa.py_buffer(values.tobytes())])
        for kind in (pa.int32(), pa.date32(), pa.time32("s")):
            values = np.array([1, hidden, 3, 4, hidden], "i4")
            columns[str(kind)] = pa.Array.from_buffers(kind, 5, [bits, pa.py_buffer(values.tobytes())])
        text, ends = b"a" + b"x" * hidden + b"cd" + b"y" * hidden, np.cumsum([0, 1, hidden, 1, 1, hidden], dtype="i4")
        columns["text"] = pa.Array.from_buffers(
            pa.string(), 5, [bits, pa.py_buffer(ends.tobytes()), pa.py_buffer(text)]
        )
        columns["flag"] = pa.Array.from_buffers(pa.bool_(), 5, [bits, pa.py_buffer(bytes([0b01101 ^ hidden * 2]))])
        return pa.record_batch(columns)

    clean, noisy_batch = made(0, valid), made(1, noisy)
    assert clean.equals(noisy_batch)
    for name in clean.schema.names:
        assert encode_batch(clean.select([name])).equals(encode_batch(noisy_batch.select([name]))), name
        assert decode_batch(encode_batch(noisy_batch.select([name]))).equals(clean.select([name])), name
