"""Driver that hosts a Spark Connect server, and a client of it in a process of its own: `connect_host.py ROOT`.

The driver installs the store as the catalog `pond` in all sessions. The client imports PySpark alone; it prints what it
sees as one line of JSON.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys

CLIENT = """
import json, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
def first(text): return spark.sql(text).collect()[0][0]
seen = {"tables": [row["tableName"] for row in spark.sql("SHOW TABLES IN pond").collect()]}
seen["count"] = first("SELECT count(*) FROM pond.orders")
spark.sql("INSERT INTO pond.orders VALUES (7, 'd9', 1.5)")
spark.sql("DELETE FROM pond.orders WHERE id = 0")
seen["after"] = first("SELECT count(*) FROM pond.orders")
spark.sql("CREATE TABLE pond.made (id BIGINT, n INT) TBLPROPERTIES (primary_key = 'id')")
spark.sql("INSERT INTO pond.made SELECT id, 1 FROM pond.orders")
seen["made"] = first("SELECT count(*) FROM pond.made")
seen["source"] = spark.read.format("epochlog").options(path=sys.argv[2], table="orders").load().count()
seen["modules"] = [name for name in sys.modules if name.startswith("epochlog")]
print(json.dumps(seen), flush=True)
spark.stop()
"""


def main(root: str) -> None:
    import epochlog as el

    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    session = el.spark(
        "host",
        catalogs={"pond": root},
        master="local[2]",
        **{
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": port,
        },
    )
    client = subprocess.run(
        [sys.executable, "-c", CLIENT, f"sc://127.0.0.1:{port}", root], capture_output=True, text=True, check=False
    )
    session.stop()
    if client.returncode:
        sys.exit(client.stdout + client.stderr)
    print(json.dumps(json.loads(client.stdout.splitlines()[-1])), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
