"""Classification of read errors: a refusal by the system (EMFILE, ENOMEM, EACCES, …) is no evidence of a damaged file.

Every error of a file system or of Arrow that a read meets is judged here, so that a transient refusal is never told as
`Corrupt`. Arrow says an errno in the error's field, in its text ("[errno 24]"), or by its words alone.
"""

from __future__ import annotations

import errno
import os
import re

from epochlog.errors import Corrupt, ReadFailed

_IN_TEXT = re.compile(r"\[errno (\d+)\]", re.IGNORECASE)
_BY_WORDS = {os.strerror(code): code for code in sorted(errno.errorcode, reverse=True)}
_MISSING = (errno.ENOENT, errno.ENOTDIR)
_ADVICE = {
    errno.EMFILE: "Raise the limit of open files of this process (ulimit -n), or close some",
    errno.ENFILE: "This machine has no more open files to give; close some (fs.file-max is the limit)",
    errno.ENOMEM: "Give this process more memory, or ask for less at a time",
    errno.EACCES: "Let this user read it",
    errno.EPERM: "Let this user read it",
}


def errno_of(error: BaseException) -> int | None:
    """Return the errno of the system's refusal; None for an error about content."""
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    if not isinstance(error, OSError):
        return None
    if error.errno is not None:
        return error.errno
    text = str(error)
    told = _IN_TEXT.search(text)
    return int(told[1]) if told else _BY_WORDS.get(text.rpartition(": ")[2])


def is_missing(error: OSError) -> bool:
    """Return True if the error means that the file, or a folder above it, does not exist."""
    return errno_of(error) in _MISSING


def read_failed(path: str, error: BaseException) -> ReadFailed:
    """Return the ReadFailed for a read that the system refused: the path, the reason with its errno, and advice."""
    code = errno_of(error)
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if code is not None:
        reason = f"{reason} ({errno.errorcode.get(code, code)})"
    advice = _ADVICE.get(code or 0, "Mend that")
    return ReadFailed(f"{path} cannot be read: {reason}; nothing is known to be damaged. {advice}, then try again")


def undecodable(path: str, error: BaseException) -> Corrupt | ReadFailed:
    """Return the error for bytes that cannot be decoded: ReadFailed if the system refused memory, else Corrupt."""
    if errno_of(error) is not None:
        return read_failed(path, error)
    return Corrupt(path, f"it cannot be decoded ({error})")
