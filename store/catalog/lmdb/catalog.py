"""The embedded catalog: LMDB, many processes on one host.

Traps handled here (they are LMDB's, not ours): one environment per process and file (`_Environments`), never used
across a fork, no read transaction that outlives a call, stale readers cleared at open, pages checked at open (one that
is damaged or missing is a SIGBUS or an abort), one fixed map size so that no process outgrows another.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from epochlog.store.catalog.protocol import Txn, View
from epochlog.store.catalog.records import Record, pack, unpack
from epochlog.store.env.local_folder import make_private_dir, sync_dir
from epochlog.store.env.paths import LMDB_DATA, LMDB_LOCK

from .page_check import PAGE, check_metas, check_pages, has_metas

T = TypeVar("T")
Inode = tuple[int, int]
Items = Iterator[tuple[bytes, bytes]]

MAP_SIZE = 1 << 36  # address space, not disk: the file grows as records come
MAX_READERS = 1024
LOCK_BYTES = 64 * MAX_READERS + 128
PAGES_CHECKED_AT_OPEN = 512
"""Opening must not cost what history holds: so many pages are checked then (some ms), all of them by `verify`."""


class LmdbView:
    """Records as one LMDB transaction sees them."""

    def __init__(self, txn: lmdb.Transaction) -> None:
        self._txn = txn

    def end(self) -> None:
        """Let go of the transaction: an error that is kept keeps its frames, and a reader's slot would stay taken."""
        del self._txn

    @property
    def version(self) -> int:
        return self._txn.id()

    def get(self, key: bytes) -> Record | None:
        value = cast("bytes | None", self._txn.get(key))  # without `buffers` LMDB gives bytes
        return None if value is None else unpack(key, value)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, Record]]:
        with self._txn.cursor() as cursor:
            if reverse:
                found = cursor.set_range(stop)
                if not (cursor.prev() if found else cursor.last()):
                    return
                for key, value in cast("Items", cursor.iterprev()):
                    if key < start:
                        return
                    yield key, unpack(key, value)
            elif cursor.set_range(start):
                for key, value in cast("Items", cursor.iternext()):
                    if key >= stop:
                        return
                    yield key, unpack(key, value)

    def put(self, key: bytes, record: Record) -> None:
        self._txn.put(key, pack(key, record))

    def delete(self, key: bytes) -> None:
        self._txn.delete(key)


@dataclass(slots=True)
class _Opened:
    """An environment with those who use it: open catalogs, and calls that are under way."""

    env: lmdb.Environment
    durability: str
    users: int = 0


class _Environments:
    """The process's open environments by the inode of their file; a forked child starts with none."""

    def __init__(self) -> None:
        self._gate = threading.Condition()
        self._open: dict[Inode, _Opened] = {}
        self._inherited: list[_Opened] = []
        self._calls = 0  # calls under way, in all threads
        self._own = threading.local()  # .calls: those of this thread
        self._forking = False
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._after_fork_in_child
        )

    def _before_fork(self) -> None:
        """Let the other threads end their calls: what they hold in LMDB at a fork is held for ever in the child."""
        self._gate.acquire()
        self._forking = True
        self._gate.wait_for(lambda: self._calls == getattr(self._own, "calls", 0))

    def _after_fork(self) -> None:
        self._forking = False
        self._gate.notify_all()
        self._gate.release()

    def _after_fork_in_child(self) -> None:
        """Set the parent's environments aside: they must not be used in the child."""
        self._gate, self._forking, self._calls, self._own = threading.Condition(), False, 0, threading.local()
        self._inherited += self._open.values()
        self._open = {}

    def acquire(self, folder: Path, durability: str) -> Inode:
        """Add a user to the environment of the folder, and open it if it is not open."""
        with self._gate:
            while self._inherited:  # lets go of this process's copy; the parent's readers and locks stay as they are
                self._inherited.pop().env.close()
            inode = _inode(folder)
            opened = self._open.get(inode) if inode else None
            if opened is None:
                opened = _Opened(_open_environment(folder, durability), durability)
                inode = _inode(folder)
            elif (opened.durability, durability) == ("os", "disk"):
                raise InvalidInput(
                    f"this process has the store of {folder} open with durability='os', which does not sync its "
                    "catalog; close that store before it is opened with durability='disk'"
                )
            assert inode is not None
            opened.users += 1
            self._open[inode] = opened
            return inode

    def enter(self, inode: Inode) -> lmdb.Environment | None:
        """Return the environment for one call, which `leave` ends; None when no catalog has it open any more."""
        with self._gate:
            own = getattr(self._own, "calls", 0)
            self._gate.wait_for(lambda: own or not self._forking)
            opened = self._open.get(inode)
            if opened is None:
                return None
            opened.users += 1
            self._calls, self._own.calls = self._calls + 1, own + 1
            return opened.env

    def leave(self, inode: Inode) -> None:
        """End a call that `enter` began."""
        with self._gate:
            self._calls, self._own.calls = self._calls - 1, self._own.calls - 1
            self._gate.notify_all()
            self.release(inode)

    def release(self, inode: Inode) -> None:
        """Remove a user of the environment; the last one closes it."""
        with self._gate:
            opened = self._open.get(inode)
            if opened is None:
                return
            opened.users -= 1
            if not opened.users:
                del self._open[inode]
                opened.env.close()


def _inode(folder: Path) -> Inode | None:
    """Return device and inode of the data file; None if it is missing. (A folder's inode may be reused soon; that of an
    open file is not.)
    """
    try:
        status = (folder / LMDB_DATA).stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


_environments = _Environments()


class LmdbCatalog:
    """Catalog in the folder `<root>/catalog`. `clock` gives Unix milliseconds."""

    def __init__(
        self, folder: Path, clock: Callable[[], int], *, durability: str = "disk", create: bool = False
    ) -> None:
        if create:
            make_private_dir(folder)
            _forget_unfinished(folder / LMDB_DATA)
        elif not _has_content(folder / LMDB_DATA):
            raise CatalogLost(
                f"the catalog {folder} is gone. Restore it from a copy; the data files alone are no store"
            )
        self.landed: Callable[[], None] = lambda: None
        self._folder = folder
        self._clock = clock
        self._durability = durability
        self._closed = False
        self._pid = os.getpid()
        self._inode = _environments.acquire(folder, durability)

    def read(self, body: Callable[[View], T]) -> T:
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
        self.landed()
        return result

    def now_ms(self) -> int:
        return self._clock()

    def check(self) -> None:
        """Check every page that is in use; opening checks the first ones alone. Raise Corrupt for a damaged one."""
        with self._environment() as env, _typed_errors(env, self._folder):
            try:
                _check_pages(env, self._folder / LMDB_DATA)
            except OSError as error:
                raise _refused(self._folder, error) from error

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._pid == os.getpid():
                _environments.release(self._inode)

    @contextmanager
    def _environment(self) -> Iterator[lmdb.Environment]:
        """Yield the environment for one call; another thread may close this catalog meanwhile."""
        if not self._closed and self._pid != os.getpid():
            self._inode, self._pid = _environments.acquire(self._folder, self._durability), os.getpid()
        env = None if self._closed else _environments.enter(self._inode)
        if env is None:
            raise StoreClosed("this store was closed; open it again with epochlog.open")
        try:
            yield env
        finally:
            _environments.leave(self._inode)


@contextmanager
def _typed_errors(env: lmdb.Environment, folder: Path) -> Iterator[None]:
    """Translate LMDB's errors within one call into this library's."""
    try:
        yield
    except lmdb.MapFullError as error:
        raise CatalogFull(f"the catalog {folder} has reached {MAP_SIZE >> 30} GiB; nothing was committed") from error
    except (lmdb.CorruptedError, lmdb.PageNotFoundError) as error:
        raise Corrupt(str(folder), str(error)) from error
    except lmdb.PanicError as error:
        raise WriteFailed(
            f"the catalog {folder} is given up in this process, after a write to it that failed: {error}. Close every "
            "store of this root that the process has open, then open it again"
        ) from error
    except lmdb.Error as error:
        if _is_given_up(env):  # it was the last step, the one that makes a commit visible
            raise OutcomeUnknown(
                f"the catalog {folder} may have taken this change or not: {error}. Close every store of this root that "
                "the process has open, open it again, and retry with the same txn"
            ) from error
        if isinstance(error, lmdb.MemoryError | lmdb.ReadersFullError | lmdb.LockError):
            raise _refused(folder, error) from error
        raise WriteFailed(
            f"the catalog {folder} failed: {error}. Nothing was committed; mend it, then retry"
        ) from error


def _is_given_up(env: lmdb.Environment) -> bool:
    try:
        env.begin().abort()
    except lmdb.PanicError:
        return True
    except lmdb.Error:
        return False
    return False


def _has_content(data: Path) -> bool:
    """Return True if the data file is there and not empty. LMDB would initialize an empty file as a new catalog."""
    return data.is_file() and data.stat().st_size > 0


def _forget_unfinished(data: Path) -> None:
    """Begin a creation anew that lost power before LMDB's first pages were durable: no record can be in them."""
    if _has_content(data) and data.stat().st_size <= 2 * PAGE and not has_metas(data):
        os.truncate(data, 0)


def _open_environment(folder: Path, durability: str) -> lmdb.Environment:
    """Open the environment with typed errors: CatalogUnavailable if the system refuses, for the catalog is not lost
    then.
    """
    if not _has_content(folder / LMDB_DATA):
        return _open_env(folder, durability, is_new=True)
    try:
        return _open_env(folder, durability, is_new=False)
    except OSError as error:
        raise _refused(folder, error) from error


def _refused(folder: Path, error: Exception) -> CatalogUnavailable:
    reason = getattr(error, "strerror", None) or error
    return CatalogUnavailable(
        f"the catalog {folder} cannot be read now: {reason}. It is not known to be damaged, this call wrote nothing; "
        "mend that, then try again"
    )


def _open_env(folder: Path, durability: str, *, is_new: bool) -> lmdb.Environment:
    data = folder / LMDB_DATA
    if not is_new:
        check_metas(data, MAP_SIZE)
    _reserve(folder / LMDB_LOCK)
    try:
        env = lmdb.open(
            str(folder),
            map_size=MAP_SIZE,
            max_readers=MAX_READERS,
            sync=durability == "disk",
            metasync=durability == "disk",
            mode=0o600,
        )
    except lmdb.InvalidError as error:
        raise Corrupt(str(data), "it is no LMDB file") from error
    except lmdb.VersionMismatchError as error:
        raise Corrupt(str(data), str(error)) from error
    except lmdb.DiskError as error:
        raise WriteFailed(f"the catalog {folder} was not made: the disk is full ({error}); make room") from error
    except lmdb.Error as error:
        if is_new:
            raise WriteFailed(f"the catalog {folder} was not made: {error}; mend that, then open it again") from error
        raise _refused(folder, error) from error
    try:
        with _typed_errors(env, folder):
            _make_ready(env, folder, durability)
    except BaseException:
        env.close()
        raise
    return env


def _make_ready(env: lmdb.Environment, folder: Path, durability: str) -> None:
    env.reader_check()
    if durability == "disk":  # whoever made the file may not have lived to do it
        env.sync(True)
        sync_dir(folder)
    _check_pages(env, folder / LMDB_DATA, PAGES_CHECKED_AT_OPEN)


def _reserve(lock: Path) -> None:
    """Have room for the lock file before LMDB maps it: a page that the disk has no room for is a SIGBUS.

    Only while this process has no environment of it open: closing a file ends the locks that the process has on it.
    """
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(handle).st_blocks * 512 < LOCK_BYTES:
            os.posix_fallocate(handle, 0, LOCK_BYTES)
    except OSError as error:
        raise WriteFailed(
            f"{lock} was not written: {error.strerror}; make room on that disk, then try again"
        ) from error
    finally:
        os.close(handle)


def _check_pages(env: lmdb.Environment, data: Path, most: int | None = None) -> None:
    good = False
    while not good:
        with env.begin() as txn:  # it has looked at the meta pages alone so far
            good = check_pages(data, txn.id(), most)
