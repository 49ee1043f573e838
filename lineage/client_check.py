"""Check of the client of OpenLineage that a user gives; it loads no package that is missing."""

from __future__ import annotations

from epochlog.errors import DependencyMissing, InvalidInput


def check_client(client: object) -> None:
    """Raise InvalidInput unless it is an OpenLineageClient, and DependencyMissing without its package."""
    try:
        from openlineage.client import OpenLineageClient
    except ImportError as error:
        raise DependencyMissing(
            f"lineage= needs the package of OpenLineage: pip install 'epochlog[openlineage]' ({error})"
        ) from None
    if not isinstance(client, OpenLineageClient):
        raise InvalidInput(f"lineage= takes an openlineage.client.OpenLineageClient, not {client!r}")
