"""Registry of the kinds of catalog, by the scheme of a URL and by the name in a marker.

A new kind needs a class with the calls of `CatalogKind`, and a line in KINDS (docs/howto/add-a-catalog.md).
"""

from __future__ import annotations

from epochlog.errors import InvalidInput
from epochlog.store.catalog.kind import CatalogKind
from epochlog.store.catalog.lmdb.kind import LmdbKind
from epochlog.store.catalog.redis.kind import RedisKind

KINDS: list[CatalogKind] = [
    LmdbKind(),
    RedisKind(),
]
EMBEDDED = KINDS[0]


def kind_of_url(url: str | None) -> CatalogKind:
    """Return the kind for a catalog's URL; None is the embedded one. Raise InvalidInput, without quoting the URL."""
    if url is None:
        return EMBEDDED
    scheme = url.split("://", 1)[0].lower() if isinstance(url, str) and "://" in url else ""
    for kind in KINDS:
        if scheme in kind.schemes:
            return kind
    shapes = ", or ".join(kind.url for kind in KINDS if kind.schemes)
    raise InvalidInput(f"catalog must be a URL like {shapes}; leave it out for the embedded catalog")


def kind_named(name: object) -> CatalogKind | None:
    """Return the kind with the name in a marker; None if there is none."""
    return next((kind for kind in KINDS if kind.name == name), None)
