"""SparkLost names the remedy: after `spark.stop()` a new session, after the death of the JVM a new process.

Tried with PySpark 4.3: `getOrCreate` works after `stop()`, and is refused by the dead gateway after the JVM was killed,
also when the session is stopped or the gateway is taken out of SparkContext before.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from epochlog.spark.live_session import is_session_lost, session_lost_error


class Dead:
    """A context whose JVM refuses connections."""

    @property
    def _jsc(self) -> Any:
        raise ConnectionRefusedError("[Errno 111] Connection refused")

    _jvm = _jsc


def stopped() -> Any:
    """A session whose context was stopped, in a JVM that lives."""
    system = SimpleNamespace(nanoTime=lambda: 1)
    jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=system)))
    return SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None, _jvm=jvm))


def test_a_stopped_session_is_made_anew() -> None:
    assert is_session_lost(stopped())
    message = str(session_lost_error("job 'days'", "this barrier", stopped()))
    assert "job 'days' is lost: it was stopped" in message and "Make a new one, also in this process" in message


def test_a_dead_jvm_wants_another_process() -> None:
    session: Any = SimpleNamespace(sparkContext=Dead())
    assert is_session_lost(session)
    message = str(session_lost_error("job 'days'", "this barrier", session))
    assert "its JVM has died" in message and "start the program again" in message and "Make a new one" not in message
