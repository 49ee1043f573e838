"""Log lines: one event is one line whatever its values are, and a disabled one costs nothing."""

from __future__ import annotations

import io
import json
import logging
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochlog.store.env import log_line
from epochlog.store.env.log_events import COMMIT, DEFECT, EVENTS, RUNNER_WAITS
from epochlog.store.env.log_line import LogEvent, logfmt
from logged_events import missing_events, recorded_events

pytestmark = pytest.mark.local_only

EVIL = [
    "",
    " ",
    "a b",
    'a"b',
    "a=b",
    "a\\b",
    "x\nERROR root: lost",
    "\r\x1b[2J\x9b31m",
    "\u202egnp\u2066",
    "\u2028",
    "\0",
    "\ud800",
]
PAIR = re.compile(r' ([a-z_]+)=("(?:[^"\\]|\\.)*"|[^\s"=\\]+)')


def parsed(line: str) -> tuple[str, dict[str, str]]:
    """Read a line as a parser of logfmt does; quoted values are JSON."""
    event, pairs = re.fullmatch(r"([a-z_]+)(.*)", line).groups()  # type: ignore[union-attr]
    assert "".join(match[0] for match in PAIR.finditer(pairs)) == pairs, line
    return event, {name: json.loads(text) if text[0] == '"' else text for name, text in PAIR.findall(pairs)}


def check(values: list[str]) -> None:
    """Fail unless the values come back, from one line without anything that steers a terminal."""
    line = logfmt("commit", {f"{'abcdefghijkl'[at % 12]}": value for at, value in enumerate(values)})
    assert len(line.splitlines()) <= 1
    assert not [char for char in line if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    line.encode()
    assert list(parsed(line)[1].values()) == values[-12:]


def test_hostile_values_stay_on_one_line() -> None:
    check(EVIL)


@given(st.lists(st.text(), max_size=12))
def test_any_values_come_back_from_one_line(values: list[str]) -> None:
    check(values)


@pytest.mark.planted
@pytest.mark.parametrize("planted", ["no escapes", "no quotes", "unprintable as is"])
def test_a_line_that_is_not_escaped_is_noticed(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bugs = {
        "no escapes": ("_escaped", lambda text, special="": text),
        "no quotes": ("_BARE", re.compile(r"(?s).*")),
        "unprintable as is": ("_escaped", lambda text, special="": text.replace("\\", "\\\\").replace('"', '\\"')),
    }
    monkeypatch.setattr(log_line, *bugs[planted])
    with pytest.raises((AssertionError, ValueError, UnicodeError)):
        check(EVIL)


def test_values_keep_their_types_as_attributes_and_have_one_text_each() -> None:
    event = LogEvent("try", "test", logging.INFO, "count share flag names error", "A test.")
    with recorded_events() as records:
        event.log(count=3, share=0.25, flag=True, names=("a", "b c"), error=ValueError("no"))
    assert records[0].getMessage() == 'try count=3 share=0.25 flag=true names="a,b c" error="ValueError: no"'
    values = {"count": 3, "share": 0.25, "flag": True, "names": ["a", "b c"], "error": "ValueError: no"}
    assert records[0].__dict__["epochlog"] == {"event": "try", **values}


def test_the_traceback_of_a_defect_follows_its_line_and_looks_like_no_record() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter("LINE %(message)s"))
    logging.getLogger("epochlog").addHandler(handler)
    try:
        try:
            raise ValueError("x\nLINE forged\x1b[2J")
        except ValueError as error:
            DEFECT.log(what="a test", error=error)
        DEFECT.log(what="a test", error=KeyError("never raised"))
    finally:
        logging.getLogger("epochlog").removeHandler(handler)
    lines = out.getvalue().splitlines()
    assert [line[:4] for line in lines].count("LINE") == 2 and all(line[:4] in ("LINE", "    ") for line in lines)
    assert lines[0] == 'LINE defect what="a test" error="ValueError: x\\nLINE forged\\u001b[2J"'


def test_a_disabled_event_makes_no_record_and_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def must_not_run(*_: object) -> str:
        raise AssertionError("a line was made")

    monkeypatch.setattr(log_line, "logfmt", must_not_run)
    assert not COMMIT.enabled and not RUNNER_WAITS.enabled
    COMMIT.log(store="s", table="t", epoch=1, operation="upsert", rows=1, took_ms=1.5)
    RUNNER_WAITS.log(store="s", job="j", reason="r")


@pytest.mark.planted
def test_a_missing_event_and_a_wrong_field_are_noticed() -> None:
    with recorded_events() as records:
        RUNNER_WAITS.log(store="s", job="j", reason="r")
    assert missing_events([], ["commit"]) == {"commit"}
    with pytest.raises(AssertionError):  # the event does not come from the library
        missing_events(records, ["runner_waits"])
    assert all(event.logger.startswith("epochlog.") for event in EVENTS)
