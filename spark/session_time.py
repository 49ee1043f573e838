"""Times of options in the time zone of the session, as Spark reads those of TIMESTAMP AS OF (pure)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from epochlog.errors import InvalidInput

_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")
"""Offsets that Spark takes as time zones."""


def in_session_zone(option: str, text: str, zone: str | None) -> str:
    """Return the time with the offset of the session's time zone, if it has none; any other text as it is.

    zone: None if the source does not know it. In the hour that the clock repeats the time is the earlier one, and in
    the hour that it skips it is the later one by that hour. Raises InvalidInput for a time without an offset in an
    unknown zone.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text  # The policy says what it takes.
    if moment.tzinfo is not None:
        return text
    known = None if zone is None else _find_zone(zone)
    if known is None:
        unknown = "does not know the session's time zone" if zone is None else f"does not know the time zone {zone!r}"
        raise InvalidInput(
            f"option {option}: {text!r} has no offset, and this read {unknown}: add one, as in {text}+00:00"
        )
    return moment.replace(tzinfo=known).isoformat()


def _find_zone(name: str) -> tzinfo | None:
    if name in ("Z", "UTC", "GMT", "UT"):
        return UTC
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        span = timedelta(hours=int(offset[2]), minutes=int(offset[3] or 0), seconds=int(offset[4] or 0))
        return timezone(span if offset[1] == "+" else -span)
    try:
        return ZoneInfo(name)
    except (ValueError, KeyError, OSError):
        return None
