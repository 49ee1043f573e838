"""Opening the Files of a root: a local folder, or the file system that its URI names."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from epochlog.errors import InvalidInput

from .files import Files
from .local_folder import LocalFiles
from .redact import redact_url, without_secrets

DURABILITIES = ("disk", "os")


def open_files(root: str | Path, durability: str = "disk", *, read_only: bool = False) -> Files:
    """Return the Files of a local path, a file:// URI, or a URI that pyarrow.fs knows (s3://, gs://, hdfs://…).

    It creates and reads no file. With durability "disk" a write survives power loss; with "os" it survives the end of
    the process. read_only: a write or a deletion raises StoreReadOnly.
    """
    if durability not in DURABILITIES:
        raise InvalidInput(f"durability must be one of {DURABILITIES}, not {durability!r}")
    text = os.fspath(root)
    if "://" not in text:
        return LocalFiles(os.path.abspath(os.path.expanduser(text)), durability, read_only)
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise InvalidInput(f"root {redact_url(text)!r} is no valid URI: {without_secrets(error, text)}") from None
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise InvalidInput(f"root {text!r}: a file:// URI cannot name another host; write file:///path")
        return LocalFiles(os.path.abspath(unquote(parts.path)), durability, read_only)
    import pyarrow.fs as pafs  # with it come the clients of S3 and of others, which a local root does not need

    from .arrow_files import ArrowFiles

    try:
        filesystem, base = pafs.FileSystem.from_uri(_with_less_requests(text))
    except (pa.ArrowException, ValueError, OSError) as error:  # pyarrow quotes the URI, secrets included
        reason = without_secrets(without_secrets(error, _with_less_requests(text)), text)
        raise InvalidInput(f"root {redact_url(text)!r} cannot be opened: {reason}") from None
    return ArrowFiles(filesystem, base.rstrip("/"), redact_url(text), read_only)


def _with_less_requests(uri: str) -> str:
    """Add an option to an S3 URI: pyarrow then writes a small object in one request."""
    if not uri.startswith("s3://") or "allow_delayed_open=" in uri:
        return uri
    return f"{uri}{'&' if urlsplit(uri).query else '?'}allow_delayed_open=true"
