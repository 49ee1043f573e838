"""Documents of the page without paths of the server, for browsers that sign in: Flight tells them none either."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from epochlog.exchange.transport.errors import names_paths
from epochlog.store.session.handle import Handle

A_FILE = b"a file of the server"
_BELOW_ROOT = rb"(?P<below>(?:/[^\s'\"\\,;()]*)?)"


class PrivatePaths:
    """Replacement of the root by its last name, and of all paths in it, or relative to it, by words."""

    def __init__(self, handle: Handle) -> None:
        place = handle.files.place
        names = {place, os.path.realpath(place)} if os.path.isabs(place) else {place}
        beginnings = [_in_json(name) for name in sorted(names, key=len, reverse=True) if name.strip("/")]
        self._name = _in_json(os.path.basename(place.rstrip("/")) or "store")
        self._pattern = re.compile(
            b"(?P<root>" + b"|".join(map(re.escape, beginnings)) + b")" + _BELOW_ROOT
            + b"|" + re.escape(handle.store_id.encode()) + rb"/[^\s'\"\\,;()]+"
        )  # fmt: skip

    def hidden(self, content: bytes) -> bytes:
        """Return a document's JSON without paths."""
        return self._pattern.sub(self._replaced, content)

    def _replaced(self, match: re.Match[bytes]) -> bytes:
        return self._name if match["root"] is not None and not match["below"].strip(b"/") else A_FILE


def without_details(error: dict[str, Any]) -> dict[str, Any]:
    """Return an error of the page without the text of one that names files of the server."""
    if not names_paths(error["type"]):
        return error
    return {**error, "text": "the server's store failed; the server's own log says where and why"}


def _in_json(text: str) -> bytes:
    return json.dumps(text)[1:-1].encode("ascii")
