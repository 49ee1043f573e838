"""Flink SQL in a process of Java, driven by py4j: `PYTHON flink_driver.py` in an environment with Flink's jars.

The first line on standard output has the process id of Java. Each line on standard input, a command in JSON, is then
answered by a line: {"set": {KEY: VALUE}} configures what follows, {"sql": [STATEMENT…]} executes statements that return
at once, {"start": [INSERT…]} starts one job, {"stop": null} cancels it, {"run": [INSERT…]} runs one to its end.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway  # pyright: ignore[reportMissingTypeStubs]

OPENED = ("java.lang", "java.util", "java.net", "java.io", "java.nio", "java.time", "java.util.concurrent", "java.math")
HEAP = "10g"


class Flink:
    """A Java process with a table environment, whose jobs run in a cluster within it."""

    def __init__(self) -> None:
        opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
        command = [
            "java",
            f"-Xmx{HEAP}",
            *opens,
            "-cp",
            class_path(),
            "py4j.GatewayServer",
            "--die-on-broken-pipe",
            "0",
        ]
        self.java = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr, text=True
        )
        assert self.java.stdout is not None
        port = int(self.java.stdout.readline())
        self._gateway: Any = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
        api = self._gateway.jvm.org.apache.flink.table.api
        settings = api.EnvironmentSettings.newInstance().inStreamingMode().build()
        self._tables: Any = api.TableEnvironment.create(settings)
        self._job: Any = None

    def set(self, options: dict[str, str]) -> None:
        for key, value in options.items():
            self._tables.getConfig().set(key, value)

    def sql(self, statements: list[str]) -> None:
        for statement in statements:
            self._tables.executeSql(statement)

    def start(self, inserts: list[str]) -> None:
        self._job = self._submit(inserts)

    def stop(self, _: None) -> None:
        self._job.getJobClient().get().cancel().get()

    def run(self, inserts: list[str]) -> None:
        getattr(self._submit(inserts), "await")()

    def _submit(self, inserts: list[str]) -> Any:
        statements = self._tables.createStatementSet()
        for insert in inserts:
            statements.addInsertSql(insert)
        return statements.execute()

    def close(self) -> None:
        self.java.kill()
        self.java.wait()


def class_path() -> str:
    """Return the jars of the environment: Flink's own and py4j's."""
    spec = importlib.util.find_spec("pyflink")
    assert spec is not None and spec.submodule_search_locations
    (folder,) = spec.submodule_search_locations
    jars = [*Path(sys.prefix, "share", "py4j").glob("py4j*.jar"), *sorted(Path(folder, "lib").glob("*.jar"))]
    return ":".join(map(str, jars))


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to standard error
    flink = Flink()
    try:
        print(json.dumps({"pid": flink.java.pid}), file=answers, flush=True)
        for line in sys.stdin:
            [(work, given)] = json.loads(line).items()
            getattr(flink, work)(given)
            print(json.dumps({"ok": work}), file=answers, flush=True)
    finally:
        flink.close()


if __name__ == "__main__":
    main()
