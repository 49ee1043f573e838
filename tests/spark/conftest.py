"""One Spark session for all tests of a process, and small stores to use it on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import epochlog as el
from spark_store import Lake


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = el.spark("epochlog tests", master="local[2]", spark__sql__session__timeZone="Europe/Berlin")
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Iterator[Lake]:
    made = Lake(tmp_path, spark)
    yield made
    made.store.close()
