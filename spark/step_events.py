"""Steps of jobs in Spark's UI: each one that has committed is an execution there, beside the queries of SQL."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from epochlog.checkpoint.job.step_work import CommittedStep

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
        _events_of(context._gateway).post(scala.listenerBus(), step)


@dataclass(frozen=True, slots=True)
class _Events:
    """Events of Spark's executions, made in one JVM. Each call into it takes a quarter of a millisecond, so what does
    not change is asked for once.
    """

    gateway: Any
    kinds: Any
    """Java package of the events."""
    plan: Any
    """Java class of the plan that an event has."""
    nothing: Any
    """Empty list of Scala's."""
    begin_defaults: Sequence[Any]
    """Defaults of the last arguments of a begin; the first is an empty map of settings."""
    end_defaults: Sequence[Any]
    counter: Any
    """Object with Spark's own numbers of executions."""
    count: Any
    """Java method of the counter: it returns the next number."""

    def post(self, bus: Any, step: CommittedStep) -> None:
        """Post the begin and the end of an execution with the step's time."""
        jvm, text = self.gateway.jvm, description(step)
        end_ms, number = jvm.java.lang.System.currentTimeMillis(), self._next_number()
        node = f"epochlog {step.engine}"
        plan = self.plan(node, text, self.nothing, self.begin_defaults[0], self.nothing)
        root, begin_ms = jvm.scala.Option.empty(), end_ms - step.took_ms
        begin = self.kinds.SparkListenerSQLExecutionStart
        bus.post(begin(number, root, text, text, text, plan, begin_ms, *self.begin_defaults))
        no_error = jvm.scala.Option.apply("")
        bus.post(self.kinds.SparkListenerSQLExecutionEnd(number, end_ms, no_error, *self.end_defaults))

    def _next_number(self) -> int:
        """Return a number that no other execution of the application has."""
        return self.count.invoke(self.counter, self.gateway.new_array(self.gateway.jvm.java.lang.Object, 0))


@lru_cache(maxsize=1)
def _events_of(gateway: Any) -> _Events:
    jvm = gateway.jvm
    execution = jvm.org.apache.spark.sql.execution
    counter = jvm.java.lang.Class.forName("org.apache.spark.sql.execution.SQLExecution$")
    count = counter.getDeclaredMethod("nextExecutionId", gateway.new_array(jvm.java.lang.Class, 0))
    count.setAccessible(True)
    return _Events(
        gateway,
        execution.ui,
        execution.SparkPlanInfo,
        getattr(getattr(jvm.scala.collection.immutable, "Nil$"), "MODULE$"),
        _defaults(execution.ui.SparkListenerSQLExecutionStart, 8),
        _defaults(execution.ui.SparkListenerSQLExecutionEnd, 4),
        counter.getField("MODULE$").get(None),
        count,
    )


def _defaults(kind: Any, first: int) -> list[Any]:
    """Return the default values of the arguments of a Scala class from number `first` on, as many as it has."""
    values: list[Any] = []
    for number in itertools.count(first):
        try:
            values.append(getattr(kind, f"$lessinit$greater$default${number}")())
        except Py4JError:
            break
    return values
