"""Redaction of passwords and other secrets in roots, catalog URLs and messages."""

from __future__ import annotations

import json
import re
from urllib.parse import quote, quote_plus, unquote, unquote_plus

_PASSWORD = re.compile(r"(?P<before>[a-z][a-z0-9+.-]*://[^:/?#@]*):(?P<secret>.*)@", re.IGNORECASE | re.DOTALL)
_PARAMETER = re.compile(
    r"(?P<before>[?&][^=&#]*(?:secret|token|password|key)[^=&#]*=)(?P<secret>[^&#]+)", re.IGNORECASE
)
_SHORT = 2
"""Characters of a secret that words have too: it is looked for only where it stands as a word of its own."""


def redact_url(address: str) -> str:
    """Replace by *** the password of a URL, and query parameters that are named like secrets."""
    if "://" not in address or address.lower().startswith("file:"):
        return address
    return _PARAMETER.sub(r"\g<before>***", _PASSWORD.sub(r"\g<before>:***@", address))


def without_secrets(message: object, address: str) -> str:
    """Replace the address by its redacted form in a message, and its secrets by ***, encoded or decoded: libraries
    decode a password before they quote it.
    """
    text = str(message).replace(address, redact_url(address))
    found = [match["secret"] for pattern in (_PASSWORD, _PARAMETER) for match in pattern.finditer(address)]
    forms = {form for secret in found for form in _forms(secret)} - {""}
    for form in sorted(forms, key=len, reverse=True):
        text = _standing(form).sub("***", text) if len(form) <= _SHORT else text.replace(form, "***")
    return text


def _standing(secret: str) -> re.Pattern[str]:
    """Return a pattern for the secret as a word of its own: in quotes or brackets, or as a password or parameter of a
    URL.
    """
    return re.compile(rf"(?<![^\s'\"`()\[\]<>{{}}:=,]){re.escape(secret)}(?=[\s'\"`()\[\]<>{{}}@&#:;,]|\.?(?:\s|\Z))")


def _forms(secret: str) -> set[str]:
    """List the spellings of the secret that a message may have."""
    meant = {secret, unquote(secret), unquote_plus(secret)}
    encoded = {code(form, safe="") for form in meant for code in (quote, quote_plus)}
    return {*meant, *encoded, *(repr(form)[1:-1] for form in meant), *(json.dumps(form)[1:-1] for form in meant)}
