"""Numbers of users and peers beyond all bounds: a typed error or the largest value, never Python's own error."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

import epochlog as el
from epochlog.cli.grammar import values
from epochlog.exchange.transport.http_port import host_and_port
from epochlog.store.env.clock import FOR_EVER, Deadline, parse_seconds, seconds
from epochlog.store.env.whole_number import whole_number

MOST = FOR_EVER.total_seconds()


@pytest.mark.parametrize("value", [1e308, 1.7976931348623157e308, 10**400, timedelta.max])
def test_a_length_of_time_is_bounded(value: float | timedelta) -> None:
    assert seconds(value, "keep") == MOST
    assert round(seconds(value, "keep") * 1000) == FOR_EVER // timedelta(milliseconds=1)
    assert not Deadline.after(value).passed


@pytest.mark.parametrize("text", ["1" + "0" * 308, "9" * 300 + "d", "99999999999d"])
def test_a_length_of_time_in_text_is_bounded(text: str) -> None:
    assert timedelta(seconds=parse_seconds(text)) == FOR_EVER


@given(text=st.text(st.sampled_from("0123456789²٣ -+_"), max_size=40) | st.integers(0, 10**30).map(str))
def test_a_whole_number_is_one_of_64_bits_in_ascii(text: str) -> None:
    number = whole_number(text)
    is_one = text.isascii() and text.isdigit() and int(text) < 10**19
    assert number == (int(text) if is_one else None)


@pytest.mark.parametrize("text", ["9" * 5_000, "²", "-1", "1_0"])
def test_texts_that_are_no_numbers_are_refused(text: str) -> None:
    assert whole_number(text) is None
    for parse in (values.epoch, values.positive):
        with pytest.raises(values.argparse.ArgumentTypeError):
            parse(text)
    with pytest.raises(el.InvalidInput):
        host_and_port(f"127.0.0.1:{text}", "the page")
