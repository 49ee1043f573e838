"""A snapshot token comes back as it went out, and nothing else passes for one."""

from __future__ import annotations

import base64
import zlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochlog.batch.token import decode_token, encode_token
from epochlog.errors import InvalidInput
from epochlog.store.types.epoch import MAX_EPOCH

pytestmark = pytest.mark.local_only


def forged(record: object) -> str:
    body: bytes = msgpack.packb(record)  # pyright: ignore[reportAssignmentType]
    return base64.urlsafe_b64encode(zlib.crc32(body).to_bytes(4, "big") + body).decode().rstrip("=")


@given(st.dictionaries(st.integers(1, 2**32 - 1), st.integers(0, MAX_EPOCH), max_size=20), st.text(max_size=36))
def test_a_token_comes_back_as_it_went_out(epochs: dict[int, int], store_id: str) -> None:
    names = {table_id: f"table_{table_id}" for table_id in epochs}
    token = encode_token(epochs, names, store_id)
    assert token.replace("-", "").replace("_", "").isalnum()
    back = decode_token(token)
    assert back.store_id == store_id
    assert {entry.table_id: entry.epoch for entry in back.entries.values()} == epochs
    assert {name: entry.table_id for name, entry in back.entries.items()} == {n: i for i, n in names.items()}


def test_a_few_tables_fit_a_kibibyte() -> None:
    ids = range(2**32 - 8, 2**32)
    token = encode_token(dict.fromkeys(ids, MAX_EPOCH), {i: f"{i}".ljust(63, "x") for i in ids}, "0" * 36)
    assert len(token) <= 1024


def test_every_cut_and_every_changed_character_is_noticed() -> None:
    token = encode_token({1: 5, 2: 6}, {1: "orders", 2: "lines"}, "store")
    broken = {token[:at] for at in range(len(token))}
    broken |= {token[:at] + c + token[at + 1 :] for at in range(len(token)) for c in "Aa0-_ \u00e9=" if token[at] != c}
    for text in broken:
        with pytest.raises(InvalidInput, match="snapshot token"):
            decode_token(text)


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        7,
        {"v": 1},
        [2, "", []],
        [1, "", [["orders", 1]]],
        [1, "", [["orders", 1, -1]]],
        [1, "", [["orders", 1, MAX_EPOCH + 1]]],
        [1, "", [["orders", "1", 5]]],
        [1, "", [[b"orders", 1, 5]]],
        [1, None, []],
        [1, "", {}],
    ],
)
def test_a_well_summed_token_of_something_else_is_refused(record: object) -> None:
    with pytest.raises(InvalidInput, match="snapshot token"):
        decode_token(forged(record))


@pytest.mark.parametrize("value", [None, 5, b"abc", "", "A" * (1 << 21)])
def test_what_is_no_text_or_too_long_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="snapshot token"):
        decode_token(value)  # pyright: ignore[reportArgumentType]
