"""Spark sessions of one process in the JVM of another: a JVM takes ten seconds of CPU before it does anything.

`invite` gives the environment of a guest. In a process with it, `enter` makes `el.spark(…)` return a session of the
host's JVM, with its own settings, views and queries; `stop` ends these queries. A guest runs in the folder in which the
JVM began, for Spark resolves relative paths there.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PORT, SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"


def invite(host: SparkSession) -> Mapping[str, str]:
    """Return the environment variables of a guest of a session's JVM."""
    gateway: Any = host.sparkContext._gateway
    return {PORT: str(gateway.java_parameters.port), SECRET: gateway.java_parameters.auth_token}


def come_back(host: SparkSession) -> None:
    """Make the host's session the default one again, and have the JVM call functions in the host's process."""
    inner: Any = host
    sessions = inner._get_j_spark_session_class(inner._jvm)
    sessions.setDefaultSession(inner._jsparkSession)
    sessions.setActiveSession(inner._jsparkSession)
    gateway: Any = host.sparkContext._gateway
    if gateway.__dict__.get("_callback_server") is not None:
        _call_back(gateway)


def _call_back(gateway: Any) -> None:
    """Name this process's callback server to the JVM, as pyspark.java_gateway does when it starts the server."""
    from py4j.java_gateway import JavaObject

    server = cast("Any", JavaObject("GATEWAY_SERVER", gateway._gateway_client))
    server.resetCallbackClient(server.getCallbackClient().getAddress(), gateway._python_proxy_port)


def enter() -> None:
    """Make a session in the host's JVM the one that `SparkSession.builder` finds."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    gateway: Any = launch_gateway()
    running = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
    java_context = gateway.jvm.org.apache.spark.api.java.JavaSparkContext(running)
    context = SparkContext(conf=SparkConf(_jconf=java_context.getConf()), gateway=gateway, jsc=java_context)
    root = gateway.jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get()

    def begin() -> None:
        SparkSession._instantiatedSession = None
        session = SparkSession(context, root.newSession())
        session.conf.set("spark.sql.session.timeZone", os.environ.get("TZ") or time.tzname[0])

    def stop(self: SparkSession) -> None:
        for query in self.streams.active:
            query.stop()
        begin()

    SparkSession.stop = stop
    begin()
    atexit.register(lambda: stop(SparkSession.builder.getOrCreate()))
    del os.environ[PORT], os.environ[SECRET]  # processes that this one starts have JVMs of their own
