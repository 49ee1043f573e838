"""Driver with Spark's UI: `ui_driver.py ROOT` steps the view `days`, and prints the executions that the UI shows."""

from __future__ import annotations

import json
import sys
import urllib.request
from typing import Any

import epochlog as el
from wait_until import wait_until


def main(root: str) -> None:
    spark = el.spark("ui", master="local[1]", **{"spark.ui.enabled": True, "spark.ui.port": 0})
    with el.open(root, create=False) as store:
        store.view("days").step(spark)
    url = f"{spark.sparkContext.uiWebUrl}/api/v1/applications/{spark.sparkContext.applicationId}/sql?length=1000"

    def shown() -> list[dict[str, Any]]:
        with urllib.request.urlopen(url) as answer:
            return json.load(answer)

    wait_until(lambda: any(each["description"].startswith("days: ") for each in shown()))
    print(json.dumps(shown()), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
