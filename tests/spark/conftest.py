"""Small stores to use Spark on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_store import Lake


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Iterator[Lake]:
    made = Lake(tmp_path, spark)
    yield made
    made.store.close()
