"""Steps of jobs in Spark's UI: each one that has committed is an execution there, beside the queries of SQL."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from epochlog.checkpoint.job.refresh_adapter import CommittedStep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EVENT_LOG = "spark.eventLog.enabled"


def description(step: CommittedStep) -> str:
    """Return the text of a step in the UI. Pure."""
    at = f"epoch {step.epoch}" if step.epoch else "a chunk of its backfill"
    return f"{step.job}: {step.operation} to {at}, {step.rows} rows, engine {step.engine}"


def show_step(session: SparkSession, step: CommittedStep) -> None:
    """Show a step that has just committed in the UI, and in the event log, of its Spark application. It does nothing
    without both. Raises the errors of Py4J.
    """
    context: Any = session.sparkContext
    scala = context._jsc.sc()
    if scala.uiWebUrl().isDefined() or scala.conf().getBoolean(_EVENT_LOG, False):
        _post(context._gateway, scala.listenerBus(), step)


def _post(gateway: Any, bus: Any, step: CommittedStep) -> None:
    """Post the begin and the end of an execution with the step's time."""
    jvm = gateway.jvm
    execution, ui = jvm.org.apache.spark.sql.execution, jvm.org.apache.spark.sql.execution.ui
    text, end_ms = description(step), jvm.java.lang.System.currentTimeMillis()
    begin, end = ui.SparkListenerSQLExecutionStart, ui.SparkListenerSQLExecutionEnd
    begin_defaults = _defaults(begin, 8)
    nothing, no_entries = getattr(getattr(jvm.scala.collection.immutable, "Nil$"), "MODULE$"), begin_defaults[0]
    plan = execution.SparkPlanInfo(f"epochlog {step.engine}", text, nothing, no_entries, nothing)
    number = _next_execution(gateway)
    begin_ms = end_ms - step.took_ms
    bus.post(begin(number, jvm.scala.Option.empty(), text, text, text, plan, begin_ms, *begin_defaults))
    bus.post(end(number, end_ms, jvm.scala.Option.apply(""), *_defaults(end, 4)))


def _defaults(kind: Any, first: int) -> list[Any]:
    """Return the default values of the arguments of a Scala class from number `first` on, as many as it has."""
    values: list[Any] = []
    for number in count(first):
        try:
            values.append(getattr(kind, f"$lessinit$greater$default${number}")())
        except Py4JError:
            break
    return values


def _next_execution(gateway: Any) -> int:
    """Return a number of an execution that no other one of this application has, from the counter of Spark's own."""
    jvm = gateway.jvm
    counter = jvm.java.lang.Class.forName("org.apache.spark.sql.execution.SQLExecution$")
    module = counter.getField("MODULE$").get(None)
    following = counter.getDeclaredMethod("nextExecutionId", gateway.new_array(jvm.java.lang.Class, 0))
    following.setAccessible(True)
    return following.invoke(module, gateway.new_array(jvm.java.lang.Object, 0))
