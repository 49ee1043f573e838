"""Roots and catalogs as people may see them: without the passwords that their addresses carry."""

from __future__ import annotations

import re

_PASSWORD = re.compile(r"(?P<before>[a-z][a-z0-9+.-]*://[^:/?#@]*):(?P<secret>.*)@", re.IGNORECASE | re.DOTALL)
_PARAMETER = re.compile(
    r"(?P<before>[?&][^=&#]*(?:secret|token|password|key)[^=&#]*=)(?P<secret>[^&#]+)", re.IGNORECASE
)


def masked(address: str) -> str:
    """The address with *** for its password, and for query parameters that are named like secrets."""
    if "://" not in address or address.lower().startswith("file:"):
        return address
    return _PARAMETER.sub(r"\g<before>***", _PASSWORD.sub(r"\g<before>:***@", address))


def without_secrets(message: object, address: str) -> str:
    """A message that may quote the address, or the password in it, with *** there."""
    text = str(message).replace(address, masked(address))
    for pattern in (_PASSWORD, _PARAMETER):
        for found in pattern.finditer(address):
            text = text.replace(found["secret"], "***")
    return text
