"""Answers in chunks: a reader has the first before the last is made, all share one, and none is cut without a word."""

from __future__ import annotations

import random
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.checkpoint.coordinator.metrics import store_lines
from epochlog.exchange.transport import shared_answers
from epochlog.exchange.transport.metrics_http import MetricsPort
from epochlog.exchange.transport.shared_answers import CHUNK_BYTES, SharedAnswers, in_chunks
from epochlog.page.document import look_at_store, status_document
from epochlog.page.port import encoded, encoded_parts
from http_flood import body_of, get, opened, rest_of
from wait_until import WAIT_LIMIT_S

pytestmark = pytest.mark.local_only
METRICS = get("/metrics")
LINE = "x" * 1023
CHUNK_LINES = CHUNK_BYTES // 1024


class Text:
    """Text of several chunks, each made when the test permits it. made: chunks that were made, over all texts."""

    def __init__(self, chunks: int, allowed: int = 0) -> None:
        self.allowed = threading.Semaphore(allowed)
        self.chunks = chunks
        self.made = 0

    def render(self) -> Iterator[str]:
        for number in range(self.chunks):
            assert self.allowed.acquire(timeout=WAIT_LIMIT_S)
            self.made += 1
            yield from [f"{number}{LINE}"[:1023]] * CHUNK_LINES

    def whole(self) -> bytes:
        lines = [f"{number}{LINE}"[:1023] for number in range(self.chunks) for _ in range(CHUNK_LINES)]
        return "".join(f"{line}\n" for line in lines).encode()


def check_the_first_piece_leaves_early() -> None:
    text = Text(chunks=4, allowed=2)
    with closing(MetricsPort("127.0.0.1:0", text.render)) as port:
        reader = opened(port.location, METRICS)
        begun = b""
        while begun.count(LINE[1:].encode()) < CHUNK_LINES:
            received = reader.recv(1 << 16)
            assert received, "the answer has ended"
            begun += received
        assert text.made == 2, "the first chunk is here, and two are not made"
        late = opened(port.location, METRICS)
        text.allowed.release(2)
        assert body_of(begun + rest_of(reader)) == body_of(rest_of(late)) == text.whole()
        assert text.made == 4, "both have read one text"


def test_the_first_piece_leaves_before_the_last_is_made() -> None:
    check_the_first_piece_leaves_early()


@pytest.mark.planted
def test_answers_that_are_made_whole_first_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = SharedAnswers.get

    def get_whole(answers: SharedAnswers, key: Any, make: Callable[[], Iterator[bytes]], has_hung_up: Any) -> Any:
        return real(answers, key, lambda: iter([b"".join(make())]), has_hung_up)

    monkeypatch.setattr(SharedAnswers, "get", get_whole)
    monkeypatch.setitem(globals(), "WAIT_LIMIT_S", 0.2)
    with pytest.raises(AssertionError):
        check_the_first_piece_leaves_early()


def test_a_short_answer_and_old_clients_and_heads_get_what_they_know() -> None:
    text = Text(chunks=3, allowed=30)
    with closing(MetricsPort("127.0.0.1:0", text.render)) as port:
        old = rest_of(opened(port.location, METRICS.replace(b"HTTP/1.1", b"HTTP/1.0")))
        assert b"Content-Length: %d\r\n" % len(text.whole()) in old and old.endswith(text.whole())
        head = rest_of(opened(port.location, METRICS.replace(b"GET", b"HEAD")))
        assert b"Transfer-Encoding: chunked\r\n" in head and head.endswith(b"\r\n\r\n")
    with closing(MetricsPort("127.0.0.1:0", lambda: ["x 1"])) as port:
        short = rest_of(opened(port.location, METRICS))
        assert short.endswith(b"\r\n\r\nx 1\n") and b"Content-Length: 4\r\n" in short


@pytest.mark.logs("defect")
def test_an_answer_that_cannot_be_made_whole_has_no_last_chunk() -> None:
    texts: list[Iterable[str]] = [failing(3), [LINE]]
    with closing(MetricsPort("127.0.0.1:0", lambda: texts.pop(0))) as port:
        answer = rest_of(opened(port.location, METRICS))
        assert answer.startswith(b"HTTP/1.1 200 ") and b"500" not in answer.partition(b"\r\n")[0]
        with pytest.raises(AssertionError, match="without its last chunk"):
            body_of(answer)
        assert rest_of(opened(port.location, METRICS)).endswith(f"{LINE}\n".encode()), "the next one is made anew"


def failing(chunks: int) -> Iterator[str]:
    yield from [LINE] * CHUNK_LINES * chunks
    raise ZeroDivisionError


@pytest.mark.parametrize("seed", range(30))
def test_readers_in_any_order_share_one_answer_or_know_that_it_is_cut(seed: int) -> None:
    """Readers take chunks in turns; an answer may fail at any chunk, and grow stale at any time."""
    rng = random.Random(seed)
    now_s, texts = 0.0, list[tuple[list[bytes], int | None]]()
    made = Counter[bytes]()

    def make() -> Iterator[bytes]:
        number = len(texts)
        whole = [b"%d.%d," % (number, chunk) for chunk in range(rng.randrange(5))]
        fails_at = rng.randrange(len(whole) + 1) if rng.random() < 0.3 else None
        texts.append((whole, fails_at))
        for place, chunk in enumerate(whole):
            if place == fails_at:
                raise ZeroDivisionError
            made[chunk] += 1
            yield chunk
        if fails_at == len(whole):
            raise ZeroDivisionError

    answers = SharedAnswers(1, lambda: now_s)
    readers: list[tuple[Iterator[bytes], list[bytes]]] = []
    for _ in range(60):
        now_s += rng.choice((0.0, 0.1, 0.6))
        if not readers or rng.random() < 0.3:
            try:
                readers.append((answers.get("a", make, lambda: False), []))
            except ZeroDivisionError:
                assert texts[-1][1] == 0, "an error of a first chunk alone"
            continue
        reader = rng.choice(readers)
        try:
            reader[1].append(next(reader[0]))
        except StopIteration:
            readers.remove(reader)
            assert (reader[1], None) in texts, "whole"
        except (ZeroDivisionError, ConnectionAbortedError):
            readers.remove(reader)
            assert any(reader[1] == whole[:fails_at] for whole, fails_at in texts if fails_at is not None)
    assert set(made.values()) <= {1} and len(answers._answers) <= 1


# ---- many tables


TABLES = 4_000


def peak_of(chunks: Iterable[bytes]) -> tuple[int, int]:
    """Return the bytes of the chunks, and the most memory that making them took while none was kept."""
    tracemalloc.start()
    try:
        before, size = tracemalloc.get_traced_memory()[0], 0
        for chunk in chunks:
            size += len(chunk)
        return size, tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def many_tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[el.Store]:
    with el.open(tmp_path_factory.mktemp("many") / "s", durability="os") as store:
        for number in range(TABLES):
            store.create_table(f"t{number}", pa.schema([pa.field("id", pa.int64(), nullable=False)]), ["id"])
        yield store


def check_metrics(store: el.Store) -> None:
    size, peak = peak_of(in_chunks(f"{line}\n".encode() for line in store_lines(store._handle)))
    assert size > 16 * CHUNK_BYTES
    assert peak < size / 2, f"{peak:,} bytes beside a text of {size:,}"


def check_page(store: el.Store) -> None:
    document = status_document("here", look_at_store(store._handle))
    size, peak = peak_of(in_chunks(encoded_parts(document)))
    assert size == len(encoded(document)) > 16 * CHUNK_BYTES
    assert peak < size / 2, f"{peak:,} bytes beside a text of {size:,}"


@pytest.mark.medium
@pytest.mark.parametrize("check", [check_metrics, check_page])
def test_a_text_of_many_tables_is_in_memory_once(check: Callable[[el.Store], None], many_tables: el.Store) -> None:
    """Beside the chunks that all requests share, making a chunk takes less memory than half of them."""
    check(many_tables)


@pytest.mark.medium
@pytest.mark.planted
@pytest.mark.parametrize("check", [check_metrics, check_page])
def test_a_text_that_is_in_memory_twice_is_found(
    check: Callable[[el.Store], None], many_tables: el.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def whole(parts: Iterable[bytes]) -> Iterator[bytes]:
        yield b"".join(list(parts))

    monkeypatch.setitem(globals(), "in_chunks", whole)
    with pytest.raises(AssertionError, match="bytes beside a text"):
        check(many_tables)


def test_the_parts_of_a_document_are_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(5)
    monkeypatch.setattr(shared_answers, "CHUNK_BYTES", 7)

    def value(depth: int) -> Any:
        kind = rng.randrange(6) if depth else rng.randrange(4)
        count = rng.choice((0, 1, 3, 99, 100, 101, 250)) if kind > 3 and depth > 1 else rng.randrange(4)
        match kind:
            case 0:
                return rng.choice((None, True, 1.5, -3))
            case 1 | 2 | 3:
                return rng.choice(("", "a", '"\\', "ü\n", "," * 9, "[]{}"))
            case 4:
                return [value(depth - 1) for _ in range(count)]
            case _:
                return {f'k"{number}': value(depth - 1) for number in range(count)}

    for _ in range(150):
        document = value(3)
        assert b"".join(in_chunks(encoded_parts(document))) == encoded(document)
