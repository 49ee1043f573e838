"""Live sessions of Spark: checks for one that was stopped or whose JVM died, and the error that names the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epochlog.errors import InvalidInput, SparkLost

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_connect(session: object) -> bool:
    """Say whether this is a session of Spark Connect, which has no JVM in this process."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def is_session_lost(session: SparkSession) -> bool:
    """Return True if the session's JVM died or its context was stopped, so that the driver can commit nothing more."""
    try:
        context: Any = session.sparkContext
        return bool(context._jsc.sc().isStopped())
    except Exception:  # noqa: BLE001  # py4j has errors of many kinds for a JVM that does not answer
        return True


def require_live(session: object, use: str) -> None:
    """Raise SparkLost if the session is lost, InvalidInput if it is no classic session. use: the call that needs it."""
    from pyspark.sql import SparkSession

    if not isinstance(session, SparkSession):
        raise InvalidInput(f"{use} needs a classic SparkSession, not {session!r}")
    if is_session_lost(session):
        cause, advice = _find_cause(session)
        raise SparkLost(f"{use}: the Spark session is lost: {cause}. {advice}")


def session_lost_error(subject: str, unit: str, session: SparkSession) -> SparkLost:
    """Build the SparkLost error of a lost session. subject: the user of the session. unit: its uncommitted work."""
    cause, advice = _find_cause(session)
    return SparkLost(
        f"the Spark session of {subject} is lost: {cause}, and {unit} was not committed. {advice}: it resumes from "
        "the catalog"
    )


def _find_cause(session: SparkSession) -> tuple[str, str]:
    """Return the cause of the loss of a session, and advice."""
    if _jvm_died(session):
        return (
            "its JVM has died",
            "PySpark cannot start another JVM in this Python process: start the program again, and repeat the call",
        )
    return "it was stopped", "Make a new one, also in this process (epochlog.spark()), and repeat the call with it"


def _jvm_died(session: SparkSession) -> bool:
    """Return True if the session's JVM does not answer."""
    try:
        jvm: Any = session.sparkContext._jvm
        jvm.java.lang.System.nanoTime()
    except Exception:  # noqa: BLE001  # py4j has errors of many kinds for a JVM that does not answer
        return True
    return False
