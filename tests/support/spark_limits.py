"""Limits of Spark in which a Python worker must answer, raised for a machine on which tests are not alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG_MS = 600_000
SPARK_LIMITS = f"-Dspark.python.authenticate.socketTimeout={LONG_MS}ms -Dspark.sql.broadcastTimeout={LONG_MS}ms"
"""Options of a JVM, with the limits that are settings."""


def raise_connect_limit(session: SparkSession) -> None:
    """Raise the ten seconds in which a new Python process must connect. Spark has no setting for it, but a constant."""
    jvm: Any = session.sparkContext._jvm
    unsafe_field = jvm.java.lang.Class.forName("sun.misc.Unsafe").getDeclaredField("theUnsafe")
    unsafe_field.setAccessible(True)
    unsafe = unsafe_field.get(None)
    limit = jvm.java.lang.Class.forName("org.apache.spark.api.python.PythonWorkerFactory$").getDeclaredField(
        "PROCESS_WAIT_TIMEOUT_MS"
    )
    unsafe.putInt(unsafe.staticFieldBase(limit), unsafe.staticFieldOffset(limit), LONG_MS)
    assert jvm.org.apache.spark.api.python.PythonWorkerFactory.PROCESS_WAIT_TIMEOUT_MS() == LONG_MS
