"""OpenLineage events of jobs and views that Spark refreshes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from openlineage.client import OpenLineageClient

import epochlog as el
from openlineage_schema import check_event
from spark_store import rows

pytestmark = pytest.mark.spark


def test_steps_with_spark_tell_their_runs(lake, tmp_path: Path) -> None:
    path = tmp_path / "events"
    client = OpenLineageClient(config={"transport": {"type": "file", "log_file_path": str(path), "append": True}})
    lake.orders.upsert(rows(0, 5))
    with el.open(lake.store.root, lineage=client) as store:
        store.create_view("large", "SELECT id, amount FROM orders WHERE id > 2", ["id"])
        job = store.create_job("copy", ["orders"], {"copied": (lake.orders.schema, ["id"])})
        store.checkpoint()
        assert store.view("large").step(lake.spark)
        with pytest.raises(Exception, match="nobody"):
            job.step(lake.spark, lambda ctx: ctx.upsert("copied", ctx.table("orders").select("nobody")))
        assert job.step(lake.spark, lambda ctx: ctx.upsert("copied", ctx.table("orders")))
    sent = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for event in sent:
        check_event(event)
    kinds = [(event["job"]["name"], event["eventType"]) for event in sent]
    copies = [("copy", kind) for kind in ("START", "FAIL", "START", "COMPLETE")]
    assert kinds == [("large", "START"), ("large", "COMPLETE"), *copies]
    assert "nobody" in sent[3]["run"]["facets"]["errorMessage"]["message"]
