"""Settings of the whole test suite: random tests print the seed that repeats them."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from shown import COLLECTED

import epochlog as el
import far
import spark_needs
from epochlog.store.scan.result_cache import set_result_cache_bytes
from logged_events import missing_events, recorded_events
from python_fork import forking_python
from redis_server import redis_executable, touched
from s3_server import S3Server
from spark_limits import SPARK_LIMITS, raise_connect_limit
from stores import STORE, servers, watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.register_assert_rewrite("epochlog.testing")
# Processes that tests start find the helpers of tests/support, as this one does by `pythonpath` in pyproject.toml.
SUPPORT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "support")
ROOT = os.path.dirname(os.path.dirname(SUPPORT))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (SUPPORT, os.environ.get("PYTHONPATH"))))

# Options of each JVM that tests start, also in processes of their own.
if SPARK_LIMITS not in (options := os.environ.get("SPARK_SUBMIT_OPTS", "")):
    os.environ["SPARK_SUBMIT_OPTS"] = f"{options} {SPARK_LIMITS}".strip()

# A shell ignores SIGINT in what it starts in the background, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadlines: a slow machine is no failure. `thorough` is for long campaigns: HYPOTHESIS_PROFILE=thorough make test
SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]
COMMON = settings(deadline=None, print_blob=True, suppress_health_check=SLOW_IS_FINE)
settings.register_profile("default", COMMON, max_examples=40)
settings.register_profile("quick", COMMON, max_examples=5)
settings.register_profile("far", COMMON, max_examples=5, stateful_step_count=20)  # where each step is a request
settings.register_profile("deep", COMMON, max_examples=400)  # of every random test, in a campaign
settings.register_profile("thorough", COMMON, max_examples=5_000, stateful_step_count=100)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Chooses one seed for hypothesis in the whole run (xdist hands it to its workers) unless one is given."""
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))
    config.pluginmanager.register(spark_needs, "spark_needs")
    gc.disable()  # until all tests are collected


def pytest_collection_finish() -> None:
    """Set the garbage collector for a process that holds 400,000 objects of collected tests: it leaves these alone, and
    looks less often. Its looks took an eighth of the CPU time of `make check`.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def pytest_report_header(config: pytest.Config) -> str:
    return f"stores: {STORE}; hypothesis: repeat with --hypothesis-seed={config.getoption('hypothesis_seed')}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(pytest_report_header(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On Redis and S3 only those tests run again that differ there, and of several seeds the first."""
    config.stash[COLLECTED] = tuple(items)
    if STORE == "lmdb":
        return
    chosen = far.read()
    for item in items:
        if item.nodeid in chosen:
            item.add_marker("far")
    local = {item for item in items if _is_local(item)}
    config.hook.pytest_deselected(items=list(local))
    items[:] = [item for item in items if item not in local]


def _is_local(item: pytest.Item) -> bool:
    if any(item.get_closest_marker(name) for name in ("local_only", "spark")):
        return True
    call = getattr(item, "callspec", None)
    return call is not None and call.params.get("seed", 0) > 0


def pytest_sessionfinish() -> None:
    servers.stop()


@pytest.fixture(scope="session")
def s3() -> S3Server:
    """The S3 server of this test process, started when the first test asks for it."""
    return servers.s3


@pytest.fixture(scope="session")
def spark_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the JVM of `spark` begins. Spark resolves relative paths there."""
    return tmp_path_factory.mktemp("jvm")


@pytest.fixture(scope="session")
def spark(spark_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session for all tests of a process."""
    from spark_store import HOSTILE, HOSTILE_VALUE

    with forking_python(tmp_path_factory.mktemp("python")) as program, pytest.MonkeyPatch.context() as patched:
        patched.chdir(spark_folder)
        patched.setenv(HOSTILE, HOSTILE_VALUE)  # the JVM inherits it
        patched.setenv("PYTHONPATH", ROOT, prepend=os.pathsep)  # functions of test modules
        patched.setattr(sys, "executable", program)  # the library names this process's interpreter to Spark
        session = el.spark("epochlog tests", master="local[2]", spark__sql__session__timeZone="Europe/Berlin")
        patched.undo()
        session.sparkContext.setLogLevel("OFF")
        raise_connect_limit(session)
        yield session
        session.stop()


@pytest.fixture
def redis_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that look for redis-server themselves find the one of the tests."""
    folder = os.path.dirname(redis_executable())
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture(autouse=True)
def redis_is_marked(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that uses Redis without the marker fails: it would not run again with other versions of the server."""
    yield
    complaint = touched.complaint(marked=request.node.get_closest_marker("redis") is not None)
    assert not complaint or STORE != "lmdb", complaint


@pytest.fixture(autouse=True)
def events_are_logged(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test with the marker `logs` logs the events that it names, each in the form of the table."""
    marker = request.node.get_closest_marker("logs")
    if marker is None:
        yield
        return
    with recorded_events() as events:
        yield
    assert not missing_events(events, marker.args)


TESTS_OF_FILES = ("store", "faults", "crash")
"""Folders of tests in which a read must come to the files, and not to rows that an earlier read has kept."""


@pytest.fixture(autouse=True)
def reads_come_to_files(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests of files run without the result cache; all others have it as users do."""
    if request.path.relative_to(request.config.rootpath).parts[1] not in TESTS_OF_FILES:
        yield
        return
    before = set_result_cache_bytes(0)
    yield
    set_result_cache_bytes(before)


@pytest.fixture(autouse=True)
def plans_are_derived() -> None:
    """No test steps a view by a plan that an earlier one has derived, perhaps with a planted bug."""
    stored = sys.modules.get("epochlog.views.stored")
    if stored is not None:
        stored._derive.cache_clear()
        stored.compiled.cache_clear()


@pytest.fixture(autouse=True)
def spark_steps_views(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests of views on Spark have few rows, which the driver would step by itself, so they leave it no budget. A
    module with STEPS_IN_DRIVER does not.
    """
    if not request.node.get_closest_marker("spark") or getattr(request.module, "STEPS_IN_DRIVER", False):
        yield
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(import_module("epochlog.spark.local_steps"), "BUDGET_ROWS", 0)
        yield


@pytest.fixture(autouse=True)
def stores_are_whole(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every store that a test opened is verified at its end. Tests that damage theirs are marked `damages_store`."""
    watch.forget()
    yield
    damage = watch.damage()
    watch.close()
    if request.node.get_closest_marker("damages_store") is None:
        assert not damage, "\n".join(f"{root}\n{wrong}" for root, wrong in damage.items())
    else:
        assert damage, "this test leaves all its stores whole; take the marker damages_store away"
