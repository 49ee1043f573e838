"""Classification of read errors: a refusal by the system (EMFILE, ENOMEM, EACCES, …) is no evidence of a damaged file.

Every read passes its errors of the file system and of Arrow through this module, so that a transient refusal is never
reported as `Corrupt`. Arrow gives an errno in the error's field, in its text ("[errno 24]"), or only as its message.
"""

from __future__ import annotations

import errno
import os
import re

from epochlog.errors import Corrupt, ReadFailed

_IN_TEXT = re.compile(r"\[errno (\d+)\]", re.IGNORECASE)
_CODE_OF_TEXT = {os.strerror(code): code for code in sorted(errno.errorcode, reverse=True)}
_MISSING = (errno.ENOENT, errno.ENOTDIR)
_DENIED = ("ACCESS_DENIED", "AccessDenied", "PERMISSION_DENIED", "HTTP status 403")
"""Words for a refused right in the errors of object stores, which have no errno."""
_ADVICE = {
    errno.EMFILE: "Raise the limit of open files of this process (ulimit -n), or close some",
    errno.ENFILE: "Close some open files on this machine, or raise its limit (fs.file-max)",
    errno.ENOMEM: "Give this process more memory, or read less at a time",
    errno.EACCES: "Give this user the right to read it",
    errno.EPERM: "Give this user the right to read it",
}


def errno_of(error: BaseException) -> int | None:
    """Return the errno of a refusal by the system; None for an error about the file's content."""
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    if not isinstance(error, OSError):
        return None
    if error.errno is not None:
        return error.errno
    text = str(error)
    match = _IN_TEXT.search(text)
    return int(match[1]) if match else _CODE_OF_TEXT.get(text.rpartition(": ")[2])


def is_forbidden(error: BaseException) -> bool:
    """Return True if the error means that this user, or this mount, may not write."""
    denied = isinstance(error, OSError) and any(word in str(error) for word in _DENIED)
    return denied or errno_of(error) in (errno.EACCES, errno.EPERM, errno.EROFS)


def is_missing(error: OSError) -> bool:
    """Return True if the error means that the file, or a folder above it, does not exist."""
    return errno_of(error) in _MISSING


def read_failed(path: str, error: BaseException) -> ReadFailed:
    """Return the ReadFailed for a read that the system refused. It names the path, the reason, the errno and a cure."""
    code = errno_of(error)
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if code is not None:
        reason = f"{reason} ({errno.errorcode.get(code, code)})"
    advice = _ADVICE.get(code or 0, "Fix the cause")
    return ReadFailed(f"{path} cannot be read: {reason}; this is no sign of damage. {advice}, then try again")


def undecodable(path: str, error: BaseException) -> Corrupt | ReadFailed:
    """Return the error for bytes that cannot be decoded: ReadFailed if memory was refused, else Corrupt."""
    if errno_of(error) is not None:
        return read_failed(path, error)
    return Corrupt(path, f"it cannot be decoded ({error})")
