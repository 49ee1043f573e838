"""Local Spark sessions with suitable settings, and the advice where Spark does not start."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epochlog.errors import InvalidInput, JavaMissing

from .catalog.install import catalog
from .session import register
from .versions import checkpoint_file_manager

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from epochlog.store.session.handle import HasHandle

OLDEST_JAVA = 17

SETTINGS = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.scheduler.mode": "FAIR",  # The jobs of a pipeline share the cores, each in its own pool.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""Settings of local sessions on local file systems: a micro-batch takes 50 ms with them, 250-350 ms without."""
_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
"""Setting of the same kind whose value depends on the version of Spark."""


def spark(
    app_name: str = "epochlog", *, catalogs: Mapping[str, HasHandle | str | Path] | None = None, **conf: Any
) -> SparkSession:
    """Return a local Spark session with the data source registered and suitable settings, whose workers run this
    interpreter.

    catalogs: stores, or their roots, by the names of the catalogs that every session of the application has, as of
    `el.catalog` with all_sessions. conf: Spark settings, with dots (`**{"spark.sql.shuffle.partitions": 4}`) or double
    underscores (`spark__sql__shuffle__partitions=4`) in their names; `master` is local[*] by default. They override the
    settings of this library. Raises InvalidInput for a store or a mapping as a setting, JavaMissing, which names the
    Java found, if Spark cannot run on it, and the errors of `el.catalog`.
    """
    from pyspark.sql import SparkSession

    if not isinstance(catalogs or {}, Mapping):
        raise InvalidInput(f"catalogs must map names to stores or their roots, not {catalogs!r}")
    for name, value in conf.items():
        if isinstance(value, Mapping) or hasattr(value, "_handle"):
            raise InvalidInput(
                f"{name!r} is no setting of Spark with such a value; for stores write catalogs={{name: store}}"
            )
    # Spark reads the workers' interpreter from the environment when it creates the session's context.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    user_settings = {name.replace("__", "."): value for name, value in conf.items()}
    settings = {**SETTINGS, "spark.sql.shuffle.partitions": str(os.cpu_count() or 2), **user_settings}
    builder = SparkSession.builder.appName(app_name).master(str(settings.pop("master", "local[*]")))
    for name, value in settings.items():
        builder = builder.config(name, str(value).lower() if isinstance(value, bool) else str(value))
    try:
        session = builder.getOrCreate()
    except Exception as error:
        wrong = find_java_problem(os.environ)
        if wrong is not None:
            raise JavaMissing(wrong) from error
        raise
    if _FILE_MANAGER not in settings:
        context: Any = session.sparkContext
        manager = checkpoint_file_manager(context._jvm)
        context._jsc.sc().conf().set(_FILE_MANAGER, manager)  # of sessions to come
        session.conf.set(_FILE_MANAGER, manager)
    register(session)
    for name, store in (catalogs or {}).items():
        catalog(session, store, name, all_sessions=True)
    return session


def find_java_problem(environ: Mapping[str, str]) -> str | None:
    """Return an error message with advice if Spark cannot run on the Java of this environment, else None."""
    home = environ.get("JAVA_HOME")
    folders = [os.path.join(home, "bin")] if home else environ.get("PATH", "").split(os.pathsep)
    candidates = [os.path.join(folder, "java") for folder in folders]
    path = (
        candidates[0] if home else next((candidate for candidate in candidates if os.access(candidate, os.X_OK)), None)
    )
    advice = (
        f"Spark needs Java {OLDEST_JAVA} or newer. On Debian or Ubuntu: sudo apt-get install openjdk-17-jre-headless; "
        "elsewhere https://adoptium.net. Set JAVA_HOME to the folder of an installed one"
    )
    if path is None:
        return f"no Java was found: JAVA_HOME is not set, and there is no java on PATH. {advice}"
    origin = f"JAVA_HOME is {home!r}" if home else "it is the first on PATH"
    try:
        process = subprocess.run(
            [path, "-version"], check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"the Java at {path} does not run ({origin}): {error}. {advice}"
    output = f"{process.stderr}{process.stdout}".strip()
    version = re.search(r'version "(?:1\.)?(\d+)', output)
    if version is None:
        return f"{path} does not print a version ({origin}), but {output[:200]!r}. {advice}"
    if int(version[1]) < OLDEST_JAVA:
        return f"the Java at {path} is version {version[1]}, which is too old ({origin}). {advice}"
    return None
