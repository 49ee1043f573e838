"""Spark integration: data source, sinks, streams, and the refreshes of jobs."""
