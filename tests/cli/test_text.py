"""Numbers as people read them."""

from __future__ import annotations

import pytest

from epochlog.facts import text as shown
from epochlog.store.types.epoch import from_unix_ms


@pytest.mark.parametrize(
    "count, text",
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_950, "1.0 MB"), (4_500_000, "4.5 MB"),
     (7 * 10**12, "7.0 TB"), (10**19, "10000.0 PB")],
)  # fmt: skip
def test_bytes(count: int, text: str) -> None:
    assert shown.bytes_text(count) == text


def test_epochs_have_their_time_and_zero_has_none() -> None:
    epoch = from_unix_ms(1_750_000_000_123) + 5
    assert shown.epoch_text(epoch) == f"{epoch} (2025-06-15T15:06:40.123Z)"
    assert shown.epoch_iso(epoch) == "2025-06-15T15:06:40.123Z"
    assert (shown.epoch_text(0), shown.epoch_text(None), shown.epoch_iso(0)) == ("-", "-", None)


def test_text_is_made_safe_and_one_line() -> None:
    assert shown.safe("naïve 漢字 x") == "naïve 漢字 x"
    assert shown.safe("a\x1b[0m\u202eb\n") == "a\\x1b[0m\\u202eb\\n"
    assert shown.one_line("Error:\n  at x\ty\x00") == "Error: at x y\\x00"


def test_lists_are_cut() -> None:
    assert shown.listed([]) == "" and shown.listed(["a", "b"]) == "a, b"
    assert shown.listed(list("abcdef")) == "a, b, c, d, e and 1 more" and shown.listed(list("abcde")) == "a, b, c, d, e"
