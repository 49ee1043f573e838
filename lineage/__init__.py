"""OpenLineage: events about the runs of jobs, sent by the user's OpenLineageClient."""
