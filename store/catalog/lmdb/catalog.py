"""Embedded catalog: LMDB, many processes on one host.

Traps of LMDB that this module handles: one environment per process and file (`_Environments`), never used across a
fork; no read transaction that outlives a call; stale readers cleared at open; pages checked at open (a damaged or
missing page is a SIGBUS or an abort); one fixed map size, so that all processes can map the file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import lmdb

from epochlog.errors import (
    CatalogFull,
    CatalogLost,
    CatalogUnavailable,
    Corrupt,
    InvalidInput,
    OutcomeUnknown,
    StoreClosed,
    WriteFailed,
)
from epochlog.store.catalog.protocol import PackedReads, ReadTxn, Txn
from epochlog.store.catalog.records import Record, pack
from epochlog.store.env.local_folder import make_private_dir, sync_dir
from epochlog.store.env.paths import LMDB_DATA, LMDB_LOCK
from epochlog.store.env.read_only import cannot_write

from .page_check import check_metas, check_pages, is_unfinished

T = TypeVar("T")
Inode = tuple[int, int]
Items = Iterator[tuple[bytes, bytes]]

MAP_SIZE = 1 << 36  # address space, not disk: the file grows with its records
MAX_READERS = 1024
LOCK_BYTES = 64 * MAX_READERS + 128
_DAMAGE = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError)
"""LMDB's errors for a file that it cannot use. The last is for a meta page whose trees have unknown flags."""
PAGES_CHECKED_AT_OPEN = 512
"""Number of pages that opening checks, in a few ms whatever the size of the history. `verify` checks all."""


class LmdbView(PackedReads):
    """ReadTxn and Txn of one LMDB transaction."""

    def __init__(self, txn: lmdb.Transaction) -> None:
        self._txn = txn

    def end(self) -> None:
        """Drop the reference to the transaction. A stored exception keeps its frames, and would keep a reader slot."""
        del self._txn

    @property
    def version(self) -> int:
        return self._txn.id()

    def get_packed(self, key: bytes) -> bytes | None:
        return cast("bytes | None", self._txn.get(key))  # without `buffers` LMDB returns bytes

    def scan_packed(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        with self._txn.cursor() as cursor:
            if reverse:
                positioned = cursor.set_range(stop)
                if not (cursor.prev() if positioned else cursor.last()):
                    return
                for item in cast("Items", cursor.iterprev()):
                    if item[0] < start:
                        return
                    yield item
            elif cursor.set_range(start):
                for item in cast("Items", cursor.iternext()):
                    if item[0] >= stop:
                        return
                    yield item

    def put(self, key: bytes, record: Record) -> None:
        self._txn.put(key, pack(key, record))

    def delete(self, key: bytes) -> None:
        self._txn.delete(key)


@dataclass(slots=True)
class _Opened:
    """Open environment with its number of users: open catalogs and running calls; and the largest size of its file."""

    env: lmdb.Environment
    durability: str
    users: int = 0
    bytes: int = 0


class _Environments:
    """Registry of the process's open environments by the inode of their file. A forked child starts with none."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._open: dict[Inode, _Opened] = {}
        self._inherited: list[_Opened] = []
        self._calls = 0  # running calls of all threads
        self._thread_state = threading.local()  # .calls: running calls of this thread
        self._forking = False
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._after_fork_in_child
        )

    def _before_fork(self) -> None:
        """Wait for the calls of other threads: a lock that they hold in LMDB at the fork stays locked in the child."""
        self._condition.acquire()
        self._forking = True
        self._condition.wait_for(lambda: self._calls == getattr(self._thread_state, "calls", 0))

    def _after_fork(self) -> None:
        self._forking = False
        self._condition.notify_all()
        self._condition.release()

    def _after_fork_in_child(self) -> None:
        """Set the parent's environments aside: the child must not use them."""
        self._condition, self._forking, self._calls, self._thread_state = (
            threading.Condition(),
            False,
            0,
            threading.local(),
        )
        self._inherited += self._open.values()
        self._open = {}

    def acquire(self, folder: Path, durability: str) -> Inode:
        """Add a user to the environment of the folder, and open it if it is not open."""
        with self._condition:
            while self._inherited:  # closes this process's copy only; the parent's readers and locks stay valid
                self._inherited.pop().env.close()
            inode = _inode(folder)
            opened = self._open.get(inode) if inode else None
            if opened is None:
                opened = _Opened(_open_environment(folder, durability), durability)
                inode = _inode(folder)
            elif (opened.durability, durability) == ("os", "disk"):
                raise InvalidInput(
                    f"this process has the store of {folder} open with durability='os', which does not sync the "
                    "catalog; close that store before you open it with durability='disk'"
                )
            assert inode is not None
            opened.users += 1
            self._open[inode] = opened
            return inode

    def enter(self, inode: Inode) -> lmdb.Environment | None:
        """Return the environment for one call, which `leave` ends; None if every catalog has closed it."""
        with self._condition:
            calls_thread_state = getattr(self._thread_state, "calls", 0)
            self._condition.wait_for(lambda: calls_thread_state or not self._forking)
            opened = self._open.get(inode)
            if opened is None:
                return None
            opened.users += 1
            self._calls, self._thread_state.calls = self._calls + 1, calls_thread_state + 1
            return opened.env

    def largest_size(self, inode: Inode, size: int) -> int:
        """Note a size of the file, and return the largest one that any catalog of this process has noted."""
        with self._condition:
            opened = self._open.get(inode)
            if opened is None:
                return size
            opened.bytes = max(opened.bytes, size)
            return opened.bytes

    def leave(self, inode: Inode) -> None:
        """End a call that `enter` has begun."""
        with self._condition:
            self._calls, self._thread_state.calls = self._calls - 1, self._thread_state.calls - 1
            self._condition.notify_all()
            self.release(inode)

    def release(self, inode: Inode) -> None:
        """Remove a user of the environment; the last one closes it."""
        with self._condition:
            opened = self._open.get(inode)
            if opened is None:
                return
            opened.users -= 1
            if not opened.users:
                del self._open[inode]
                opened.env.close()


def _inode(folder: Path) -> Inode | None:
    return _inode_and_size(folder)[0]


def _inode_and_size(folder: Path) -> tuple[Inode | None, int]:
    """Return device and inode of the data file, and its size; None if it is missing. The inode of an open file is not
    reused, that of a deleted folder may be.
    """
    try:
        status = (folder / LMDB_DATA).stat()
    except FileNotFoundError:
        return None, 0
    return (status.st_dev, status.st_ino), status.st_size


_environments = _Environments()


class LmdbCatalog:
    """Catalog in the folder `<root>/catalog`. `clock` gives Unix milliseconds."""

    def __init__(
        self, folder: Path, clock: Callable[[], int], *, durability: str = "disk", create: bool = False
    ) -> None:
        if create:
            make_private_dir(folder)
        elif not _has_content(folder / LMDB_DATA):
            raise CatalogLost(
                f"the catalog {folder} is gone. Restore it from a copy; the store cannot be opened without it"
            )
        self.on_commit: Callable[[], None] = lambda: None
        self._folder = folder
        self._clock = clock
        self._durability = durability
        self._closed = False
        self._pid = os.getpid()
        with _creating(folder) if create else nullcontext():
            self._inode = _environments.acquire(folder, durability)

    def read(self, body: Callable[[ReadTxn], T]) -> T:
        with self._environment() as env, _typed_errors(env, self._folder), env.begin(buffers=False) as txn:
            view = LmdbView(txn)
            del txn
            try:
                return body(view)
            finally:
                view.end()

    def transact(self, body: Callable[[Txn], T]) -> T:
        with self._environment() as env, _typed_errors(env, self._folder), env.begin(write=True) as txn:
            result = body(LmdbView(txn))
        self._note_size()
        self.on_commit()
        return result

    def now_ms(self) -> int:
        return self._clock()

    def verify_storage(self) -> None:
        """Check every page in use and raise Corrupt for a damaged one. Opening checks only the first pages."""
        with self._environment() as env, _typed_errors(env, self._folder):
            try:
                _check_pages(env, self._folder / LMDB_DATA)
            except OSError as error:
                raise _unavailable(self._folder, error) from error

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._pid == os.getpid():
                _environments.release(self._inode)

    def _require_file(self) -> None:
        """Raise CatalogLost unless the folder still has the file that is open: a commit to a deleted one is lost. Raise
        Corrupt if the file is shorter than it was: to read a lost page of its map ends the process.
        """
        largest = _environments.largest_size(self._inode, 0)  # before the file's size: another thread may write to it
        try:
            inode, size = _inode_and_size(self._folder)
        except OSError as error:
            raise _unavailable(self._folder, error) from error
        if inode == self._inode and size < largest:
            raise Corrupt(
                str(self._folder / LMDB_DATA),
                f"it was cut from {largest} bytes to {size} while this process had it open. Close the store in "
                "every process, move the folder of the catalog away, and restore the catalog from a copy or an export",
            )
        if inode != self._inode:
            raise CatalogLost(
                f"the catalog {self._folder} was removed or replaced while this process had it open; nothing was "
                "committed. Close the store, restore the catalog from a copy if it is gone, and open the store again"
            )
        _environments.largest_size(self._inode, size)

    def _note_size(self) -> None:
        """Note the size of the file after a commit, which may have made it longer."""
        with suppress(OSError):
            inode, size = _inode_and_size(self._folder)
            if inode is not None:
                _environments.largest_size(inode, size)

    @contextmanager
    def _environment(self) -> Iterator[lmdb.Environment]:
        """Yield the environment for one call. Another thread may close this catalog during the call."""
        if not self._closed and self._pid != os.getpid():
            self._inode, self._pid = _environments.acquire(self._folder, self._durability), os.getpid()
        env = None if self._closed else _environments.enter(self._inode)
        if env is None:
            raise StoreClosed("this store was closed; open it again with epochlog.open")
        try:
            self._require_file()
            yield env
        finally:
            _environments.leave(self._inode)


@contextmanager
def _typed_errors(env: lmdb.Environment, folder: Path) -> Iterator[None]:
    """Translate the LMDB errors of one call to errors of epochlog."""
    try:
        yield
    except lmdb.MapFullError as error:
        raise CatalogFull(
            f"the catalog {folder} has reached its limit of {MAP_SIZE >> 30} GiB; nothing was committed. Shorten the "
            "retention of tables, or drop some"
        ) from error
    except _DAMAGE as error:
        raise Corrupt(str(folder), str(error)) from error
    except lmdb.PanicError as error:
        raise WriteFailed(
            f"this process cannot use the catalog {folder} any more, because a write to it failed: {error}. Close "
            "every store of this root that the process has open, then open it again"
        ) from error
    except lmdb.Error as error:
        if _has_panicked(env):  # the failed write was the last step of a commit, which makes it visible
            raise OutcomeUnknown(
                f"the outcome of this commit in the catalog {folder} is unknown: {error}. Close every store of this "
                "root that the process has open, open it again, and retry with the same txn"
            ) from error
        if isinstance(error, lmdb.MemoryError | lmdb.ReadersFullError | lmdb.LockError):
            raise _unavailable(folder, error) from error
        raise WriteFailed(
            f"the catalog {folder} failed: {error}. Nothing was committed; fix the cause, then retry"
        ) from error


def _has_panicked(env: lmdb.Environment) -> bool:
    try:
        env.begin().abort()
    except lmdb.PanicError:
        return True
    except lmdb.Error:
        return False
    return False


def _has_content(data: Path) -> bool:
    """Return True if the data file exists and is not empty. LMDB would initialize an empty file as a new catalog."""
    return data.is_file() and data.stat().st_size > 0


@contextmanager
def _creating(folder: Path) -> Iterator[None]:
    """Lock the folder while its catalog is created or opened, as a context manager: another process writes LMDB's first
    pages meanwhile, and a file without them would count as one of a creation that failed.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        _truncate_unfinished(folder / LMDB_DATA)
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)  # also where a forked child has the handle too
        os.close(handle)


def _truncate_unfinished(data: Path) -> None:
    """Truncate the file of a creation that lost power before LMDB's first pages were durable. It has no record yet."""
    if _has_content(data) and is_unfinished(data):
        os.truncate(data, 0)


def _open_environment(folder: Path, durability: str) -> lmdb.Environment:
    """Open the environment with typed errors: CatalogUnavailable, not CatalogLost, if the system refuses."""
    if not _has_content(folder / LMDB_DATA):
        return _open_env(folder, durability, is_new=True)
    try:
        return _open_env(folder, durability, is_new=False)
    except OSError as error:
        raise _unavailable(folder, error) from error


def _unavailable(folder: Path, error: Exception) -> CatalogUnavailable:
    reason = getattr(error, "strerror", None) or error
    return CatalogUnavailable(
        f"the catalog {folder} cannot be read now: {reason}. This is no sign of damage, and this call wrote nothing; "
        "fix the cause, then try again"
    )


def _open_env(folder: Path, durability: str, *, is_new: bool) -> lmdb.Environment:
    data = folder / LMDB_DATA
    if not is_new:
        check_metas(data, MAP_SIZE)
    _allocate_lock_file(folder / LMDB_LOCK)
    try:
        env = lmdb.open(
            str(folder),
            map_size=MAP_SIZE,
            max_readers=MAX_READERS,
            sync=durability == "disk",
            metasync=durability == "disk",
            mode=0o600,
        )
    except lmdb.DiskError as error:
        raise WriteFailed(
            f"the catalog {folder} was not created: the disk is full ({error}); free some space, then open it again"
        ) from error
    except _DAMAGE as error:
        raise Corrupt(str(data), str(error)) from error
    except lmdb.Error as error:
        if is_new:
            raise WriteFailed(
                f"the catalog {folder} was not created: {error}; fix the cause, then open it again"
            ) from error
        raise _unavailable(folder, error) from error
    try:
        with _typed_errors(env, folder):
            _prepare(env, folder, durability)
    except BaseException:
        env.close()
        raise
    return env


def _prepare(env: lmdb.Environment, folder: Path, durability: str) -> None:
    env.reader_check()
    if durability == "disk":  # the process that created the file may have died before its sync
        env.sync(True)
        sync_dir(folder)
    _check_pages(env, folder / LMDB_DATA, PAGES_CHECKED_AT_OPEN)


def _allocate_lock_file(lock: Path) -> None:
    """Allocate the disk space of the lock file before LMDB maps it: a page without disk space is a SIGBUS.

    Call it only while this process has no environment of the file open: closing a file releases the process's locks
    on it.
    """
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise cannot_write(str(lock.parent.parent), f"{lock}: {error.strerror}") from error
        raise
    try:
        if os.fstat(handle).st_blocks * 512 < LOCK_BYTES:
            os.posix_fallocate(handle, 0, LOCK_BYTES)
    except OSError as error:
        raise WriteFailed(
            f"{lock} was not written: {error.strerror}; free some space on its disk, then try again. To read a store "
            "on a full disk, open it with epochlog.open(root, read_only=True)"
        ) from error
    finally:
        os.close(handle)


def _check_pages(env: lmdb.Environment, data: Path, limit: int | None = None) -> None:
    checked = False
    while not checked:
        with env.begin() as txn:  # LMDB itself has read only the meta pages so far
            checked = check_pages(data, txn.id(), limit)
