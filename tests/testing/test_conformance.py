"""The conformance suites fail for a catalog or a file system that breaks a promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from catalog_makers import LmdbMaker
from epochlog.store.catalog.lmdb.catalog import LmdbView
from epochlog.store.env.arrow_files import ArrowFiles
from epochlog.store.env.files import FileInfo
from epochlog.testing import catalog_conformance, filesystem_conformance

pytestmark = pytest.mark.local_only


class Swapped:
    """A catalog with a method of its own."""

    def __init__(self, real: Any, **methods: Callable[..., Any]) -> None:
        self._real, self._methods = real, methods

    def __getattr__(self, name: str) -> Any:
        method = self._methods.get(name)
        return getattr(self._real, name) if method is None else lambda *args: method(self._real, *args)


def keeps_writes_of_a_failed_body(real: Any, body: Callable[[Any], Any]) -> Any:
    def run_body(tx: Any) -> Any:
        try:
            return body(tx), None
        except ZeroDivisionError as error:
            return None, error

    result, error = real.transact(run_body)
    if error is not None:
        raise error
    return result


def asks_each_time_anew(real: Any, body: Callable[[Any], Any]) -> Any:
    """Read each record in a transaction of its own."""

    def scan(*bounds: bytes, reverse: bool = False) -> Iterator[Any]:
        return iter(real.read(lambda view: list(view.scan(*bounds, reverse=reverse))))

    class Apart:
        version = property(lambda _: real.read(lambda view: view.version))
        get = staticmethod(lambda key: real.read(lambda view: view.get(key)))

    Apart.scan = staticmethod(scan)  # pyright: ignore[reportAttributeAccessIssue]
    return body(Apart())


@pytest.mark.planted
@pytest.mark.parametrize("methods, case", [
    ({"transact": keeps_writes_of_a_failed_body}, "a_body_that_raises_has_no_effect"),
    ({"read": asks_each_time_anew}, "a_body_sees_one_state_however_often_it_asks"),
    ({"now_ms": lambda _: 0}, "the_clock_that_is_given_is_the_one_that_is_asked"),
    ({"close": lambda _: None}, "a_closed_catalog_says_so_and_its_neighbour_goes_on"),
])  # fmt: skip
def test_a_catalog_that_breaks_a_promise_fails(methods: dict[str, Any], case: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        maker = LmdbMaker(stack, tmp_path / "c")
        with pytest.raises(AssertionError):
            getattr(catalog_conformance, case)(lambda clock=None: Swapped(maker.open(clock), **methods))


@pytest.mark.planted
def test_a_scan_out_of_order_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = LmdbView.scan
    monkeypatch.setattr(
        LmdbView, "scan", lambda view, *bounds, **options: iter(sorted(scan(view, *bounds, **options), key=str))
    )
    with ExitStack() as stack, pytest.raises(AssertionError):
        catalog_conformance.ranges_run_in_byte_order_whatever_the_bytes(LmdbMaker(stack, tmp_path / "c").open)


class WritesOver(ArrowFiles):
    def write(self, path: str, data: pa.Buffer | bytes) -> None:
        self.delete(path)
        super().write(path, data)


class ListsTooMuch(ArrowFiles):
    def list(self, prefix: str = "") -> list[FileInfo]:
        return super().list()


class CutsOff(ArrowFiles):
    def read(self, path: str) -> pa.Buffer:
        data = super().read(path)
        return data.slice(0, min(data.size, 1 << 16))


@pytest.mark.planted
@pytest.mark.parametrize("kind, failing", [
    (ArrowFiles, set()),
    (WritesOver, {"nothing_is_written_over"}),
    (ListsTooMuch, {"a_file_is_read_as_it_was_written", "no_path_leaves_the_root"}),
    (CutsOff, {"a_large_file_comes_back_whole"}),
])  # fmt: skip
def test_a_file_system_that_breaks_a_promise_fails(kind: type[ArrowFiles], failing: set[str], tmp_path: Path) -> None:
    failed, numbers = set(), count()
    for case in filesystem_conformance.CASES:
        try:
            case(kind(pafs.LocalFileSystem(), str(tmp_path / str(next(numbers)))))
        except Exception:
            failed.add(case.__name__)
    assert failing <= failed and bool(failing) == bool(failed)


def test_each_function_of_a_suite_is_in_its_list() -> None:
    """A case takes what its suite is called with, and nothing else does."""
    for module, given in ((catalog_conformance, "OpenCatalog"), (filesystem_conformance, "Files")):
        functions = [member for member in vars(module).values() if getattr(member, "__module__", "") == module.__name__]
        cases = [
            member for member in functions if list(getattr(member, "__annotations__", {}).values()) == [given, "None"]
        ]
        assert set(cases) == set(module.CASES) and len(cases) == len(module.CASES)
