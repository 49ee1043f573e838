"""Everything that speaks Spark: data source, sinks, streams, and the refreshes of jobs."""
