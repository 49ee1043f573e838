"""Redaction of passwords and other secrets in roots, catalog URLs and messages."""

from __future__ import annotations

import json
import re
from urllib.parse import quote, quote_plus, unquote, unquote_plus

_PASSWORD = re.compile(r"(?P<before>[a-z][a-z0-9+.-]*:/{1,3}[^:/?#@]*):(?P<secret>.*)@", re.IGNORECASE | re.DOTALL)
"""User and password of a URL, also of one whose slashes were mistyped."""
_PARAMETER = re.compile(r"(?P<before>[?&;#](?P<name>[^=&;#?]*)=)(?P<secret>(?:[^&;#]|;(?![^=&;#?]*=))+)")
_OF_FILE_SYSTEMS = """
region scheme endpoint_override connect_timeout request_timeout retry_limit_seconds allow_bucket_creation
allow_bucket_deletion background_writes force_virtual_addressing buffer_size default_block_size replication
enable_tls credential_kind blob_storage_authority blob_storage_scheme dfs_storage_authority dfs_storage_scheme
"""
_OF_REDIS = """
db protocol timeout socket_timeout socket_connect_timeout socket_keepalive socket_read_size max_connections
health_check_interval retry_on_timeout ssl_check_hostname ssl_cert_reqs ssl_ca_certs
"""
_HARMLESS = frozenset([*_OF_FILE_SYSTEMS.split(), *_OF_REDIS.split()])
"""Names of parameters whose values are shown. Any other may be one of a service that gives rights to who has it."""
_NESTED = re.compile(r"[@?=]")
"""Signs of a value that is an address of its own, with a password or parameters."""
_INSIDE = re.compile(r"(?<=:)[^:@]+(?=@)|(?<==)[^&=]+")
"""Passwords and values of parameters within such a value."""
_SHORT_SECRET = 2
"""Longest secret that ordinary words may contain: it is replaced only as a word of its own."""


def redact_url(address: str) -> str:
    """Replace by *** the password of a URL, and the values of all query parameters but some that are known to be none
    that give rights.
    """
    if not _is_url(address):
        return address
    return _PARAMETER.sub(_without_value, _PASSWORD.sub(r"\g<before>:***@", address))


def _is_url(address: str) -> bool:
    return ":/" in address and not address.lower().startswith("file:")


def _is_secret(parameter: re.Match[str]) -> bool:
    name, value = unquote_plus(parameter["name"]).lower(), unquote_plus(parameter["secret"])
    return name not in _HARMLESS or _NESTED.search(value) is not None


def _without_value(parameter: re.Match[str]) -> str:
    return f"{parameter['before']}***" if _is_secret(parameter) else parameter[0]


def without_secrets(message: object, address: str) -> str:
    """Redact an address in a message, and replace its secrets by ***. Secrets are matched encoded and decoded, because
    libraries decode a password before they quote it.
    """
    text = str(message).replace(address, redact_url(address))
    secrets = [match["secret"] for match in _PASSWORD.finditer(address)]
    for match in _PARAMETER.finditer(address):
        if _is_secret(match):
            secrets += [match["secret"], *_INSIDE.findall(unquote_plus(match["secret"]))]
    forms = {form for secret in secrets for form in _spellings(secret)} - {""}
    for form in sorted(forms, key=len, reverse=True):
        text = _word_pattern(form).sub("***", text) if len(form) <= _SHORT_SECRET else text.replace(form, "***")
    return text


def _word_pattern(secret: str) -> re.Pattern[str]:
    """Return a pattern that matches the secret as a word of its own: quoted, in brackets, or inside a URL."""
    return re.compile(rf"(?<![^\s'\"`()\[\]<>{{}}:=,]){re.escape(secret)}(?=[\s'\"`()\[\]<>{{}}@&#:;,]|\.?(?:\s|\Z))")


def _spellings(secret: str) -> set[str]:
    """Return the spellings of the secret that a message may contain."""
    decoded = {secret, unquote(secret), unquote_plus(secret)}
    encoded = {code(form, safe="") for form in decoded for code in (quote, quote_plus)}
    return {*decoded, *encoded, *(repr(form)[1:-1] for form in decoded), *(json.dumps(form)[1:-1] for form in decoded)}
