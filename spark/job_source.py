"""Source of a job's query: a stream of one row a micro-batch, with what the job's steps did as its metrics.

The rows come from one of Spark's own sources and nobody reads them. The metrics are in each progress of the query, for
`lastProgress` and for listeners: Spark asks the source for them at the end of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JNetworkError

from .java_class import PACKAGE, java_class, static_map, warn_without_class

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "EpochlogJob"
_WITHOUT_METRICS = "rate-micro-batch"
_JOB = "job"
"""Option of the source, its key in the map of metrics."""

_SOURCE = f"""
package {PACKAGE};

import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.*;
import org.apache.spark.sql.connector.read.streaming.*;
import org.apache.spark.sql.execution.streaming.sources.RatePerMicroBatchProvider;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

public class {NAME} implements TableProvider, SupportsRead, ScanBuilder, Scan, MicroBatchStream,
        SupportsTriggerAvailableNow, ReportsSourceMetrics {{
    /** Lines of names and values, by job. */
    public static final Map METRICS = new java.util.concurrent.ConcurrentHashMap();
    private final TableProvider provider = new RatePerMicroBatchProvider();
    private SupportsRead table;
    private Scan scan;
    private SupportsTriggerAvailableNow stream;
    private String job;

    public StructType inferSchema(CaseInsensitiveStringMap options) {{ return provider.inferSchema(options); }}
    public Table getTable(StructType schema, Transform[] partitioning, Map properties) {{
        table = (SupportsRead) provider.getTable(schema, partitioning, properties);
        return this;
    }}
    public String name() {{ return "epochlog job"; }}
    public StructType schema() {{ return table.schema(); }}
    public Set capabilities() {{ return table.capabilities(); }}
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {{
        job = options.get("{_JOB}");
        scan = table.newScanBuilder(options).build();
        return this;
    }}
    public Scan build() {{ return this; }}
    public StructType readSchema() {{ return scan.readSchema(); }}
    public String description() {{ return name() + " " + job; }}
    public String toString() {{ return description(); }}
    public MicroBatchStream toMicroBatchStream(String checkpoint) {{
        stream = (SupportsTriggerAvailableNow) scan.toMicroBatchStream(checkpoint);
        return this;
    }}
    private MicroBatchStream inner() {{ return (MicroBatchStream) stream; }}
    public Map metrics(Optional latest) {{
        Map metrics = new java.util.TreeMap();
        String[] lines = String.valueOf(METRICS.getOrDefault(job, "")).split("\\n");
        for (int i = 0; i < lines.length; i++) {{
            int end = lines[i].indexOf('=');
            if (end > 0) metrics.put(lines[i].substring(0, end), lines[i].substring(end + 1));
        }}
        return metrics;
    }}
    public Offset initialOffset() {{ return stream.initialOffset(); }}
    public Offset deserializeOffset(String json) {{ return stream.deserializeOffset(json); }}
    public Offset latestOffset() {{ return inner().latestOffset(); }}
    public Offset latestOffset(Offset start, ReadLimit limit) {{ return stream.latestOffset(start, limit); }}
    public ReadLimit getDefaultReadLimit() {{ return stream.getDefaultReadLimit(); }}
    public Offset reportLatestOffset() {{ return stream.reportLatestOffset(); }}
    public void prepareForTriggerAvailableNow() {{ stream.prepareForTriggerAvailableNow(); }}
    public InputPartition[] planInputPartitions(Offset start, Offset end) {{
        return inner().planInputPartitions(start, end);
    }}
    public PartitionReaderFactory createReaderFactory() {{ return inner().createReaderFactory(); }}
    public void commit(Offset end) {{ stream.commit(end); }}
    public void stop() {{ METRICS.remove(job); stream.stop(); }}
}}
"""


class JobSource:
    """Source of the query of one job. Where the JVM does not let it be made, Spark's own source takes its place,
    without metrics, and a RuntimeWarning says so.

    job: a text that no other running query of this Spark application has.
    """

    def __init__(self, session: SparkSession, job: str) -> None:
        self._session = session
        self._job = job
        self._metrics: Any = None
        inner: Any = session.sparkContext
        self._jvm: Any = inner._jvm

    def rows(self) -> DataFrame:
        """Return the stream: one row a micro-batch."""
        reader = self._session.readStream.option("rowsPerBatch", 1)
        try:
            self._metrics = static_map(java_class(self._jvm, NAME, lambda _loader: _SOURCE), "METRICS")
        except Py4JNetworkError:  # the session is lost
            raise
        except Py4JError as error:
            lost = f"the progress of the query of job {self._job} has no metrics of its steps, since their source"
            warn_without_class(lost, "; the job itself is not affected", error)
            return reader.format(_WITHOUT_METRICS).load()
        return reader.format(f"{PACKAGE}.{NAME}").option(_JOB, self._job).load()

    def show(self, metrics: Mapping[str, str]) -> None:
        """Set the metrics that the progress of the running micro-batch has."""
        if self._metrics is not None:  # as one text: each call into the JVM costs a quarter of a millisecond
            self._metrics.put(self._job, "\n".join(f"{name}={value}" for name, value in metrics.items()))
