"""One Spark session for all tests of a process, and small stores to use it on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import epochlog as el
from python_fork import forking_python
from spark_limits import raise_connect_limit
from spark_store import Lake


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with forking_python(tmp_path_factory.mktemp("python")) as program, pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "executable", program)  # the library names this process's interpreter to Spark
        session = el.spark("epochlog tests", master="local[2]", spark__sql__session__timeZone="Europe/Berlin")
        patched.undo()
        session.sparkContext.setLogLevel("OFF")
        raise_connect_limit(session)
        yield session
        session.stop()


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Iterator[Lake]:
    made = Lake(tmp_path, spark)
    yield made
    made.store.close()
