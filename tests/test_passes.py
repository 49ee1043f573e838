"""The summary of `make check` and `make test`: every pass runs, whatever others do, and the last line is true."""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path

import passes
import pytest
from _pytest.mark.expression import Expression
from passes import Pass, run_all

pytestmark = [pytest.mark.local_only, pytest.mark.medium]

MIXED = """
import pytest

def test_good(): pass

@pytest.mark.parametrize("n", [1, 2])
def test_bad(n): assert n == 1

class TestOf:
    def test_inside(self): assert False

@pytest.fixture
def broken():
    yield
    raise ValueError

def test_whose_end_breaks(broken): pass

def test_skipped(): pytest.skip()
"""


@pytest.fixture(autouse=True)
def without_options_of_this_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


def pytest_of(folder: Path, name: str, code: str) -> Pass:
    (folder / f"test_{name}.py").write_text(code)
    options = (
        "-p",
        "no:xdist",
        "-p",
        "no:hypothesispytest",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        "-c",
        "/dev/null",
    )
    return Pass(name, (*passes.PYTEST, *options, str(folder / f"test_{name}.py")))


def command(name: str, code: str) -> Pass:
    return Pass(name, (sys.executable, "-c", code))


def ended(capfd: pytest.CaptureFixture[str], *all_passes: Pass) -> tuple[int, list[str]]:
    code = run_all(all_passes)
    return code, capfd.readouterr().out.splitlines()


def test_all_passes_run_and_one_summary_tells_what_failed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, output = ended(
        capfd,
        command("lint", "exit(3)"),
        pytest_of(tmp_path, "mixed", MIXED),
        pytest_of(tmp_path, "fine", "def test_fine(): pass\ndef test_too(): pass"),
        command("types", "print('types were looked at')"),
    )
    assert code == 1 and "types were looked at" in output
    start = next(number for number, line in enumerate(output) if line.split()[:3] == ["pass", "passed", "failed"])
    table = {line.split()[0]: line.split()[1:3] for line in output[start + 1 : start + 5]}
    assert table == {"lint": ["0", "1"], "mixed": ["2", "3"], "fine": ["2", "0"], "types": ["1", "0"]}
    assert float(output[start + 5].removeprefix("CPU time of all passes: ").removesuffix(" s")) > 0
    assert output[start + 6 :] == [
        "FAILED lint: exit code 3  (lint)",
        "FAILED test_mixed.py::test_bad[2]  (mixed)",
        "FAILED test_mixed.py::TestOf::test_inside  (mixed)",
        "FAILED test_mixed.py::test_whose_end_breaks  (mixed)",
        "5 passed, 4 failed",
    ]


def test_a_run_that_breaks_off_or_finds_nothing_has_failed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, output = ended(
        capfd,
        pytest_of(tmp_path, "dies", "import os, signal\ndef test_last(): os.kill(os.getpid(), signal.SIGKILL)"),
        pytest_of(tmp_path, "unreadable", "import nothing_of_that_name"),
        pytest_of(tmp_path, "empty", ""),
    )
    assert code == 1
    assert output[-4:] == [
        "FAILED dies: exit code -9  (dies)",
        "FAILED test_unreadable.py  (unreadable)",
        "FAILED empty: exit code 5  (empty)",
        "0 passed, 3 failed",
    ]


def test_what_runs_beside_is_told_when_it_has_ended_and_counted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It waits for a file that the pass after it makes."""
    made = tmp_path / "made"
    wait = (
        f"from pathlib import Path\nwhile not Path({str(made)!r}).exists(): pass\nprint('one', flush=True)\nexit('two')"
    )
    beside = Pass("beside", (sys.executable, "-c", wait), beside=True)
    code, output = ended(capfd, beside, command("main", f"open({str(made)!r}, 'w')"))
    assert code == 1 and output[-1] == "1 passed, 1 failed"
    assert output.index("== main ==") < output.index("== beside ==") < output.index("one")
    assert {"two", "FAILED beside: exit code 1  (beside)"} <= set(output)


def test_when_all_is_well_the_exit_code_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, output = ended(capfd, pytest_of(tmp_path, "fine", "def test_fine(): pass"), command("lint", ""))
    assert (code, output[-1]) == (0, "2 passed, 0 failed")


def test_a_command_that_is_not_there_has_failed_and_the_others_run(capfd: pytest.CaptureFixture[str]) -> None:
    code, output = ended(capfd, Pass("gone", ("/no/such/command",)), command("main", ""))
    assert (code, output[-1]) == (1, "1 passed, 1 failed")
    assert any(line.startswith("FAILED gone: ") and line.endswith("(gone)") for line in output)


def test_where_there_is_nothing_to_run_nothing_has_passed(capfd: pytest.CaptureFixture[str]) -> None:
    code, output = ended(capfd)
    assert (code, output[-1]) == (1, "0 passed, 0 failed")


def chosen_by(test_pass: Pass, marks: set[str]) -> bool:
    given = list(test_pass.command)
    return Expression.compile(given[given.index("-m", 3) + 1]).evaluate(lambda name, **_: name in marks)


def test_every_test_but_the_campaigns_is_in_one_pass_of_make_test_or_make_long() -> None:
    whole = [test_pass for test_pass in (*passes.test(()), *passes.long(())) if test_pass.counts_tests]
    first = [test_pass for test_pass in whole if not set(passes.AGAIN) & set(test_pass.command)]
    again = {
        test_pass.environment["EPOCHLOG_TEST_STORE"]: test_pass
        for test_pass in passes.long(())
        if test_pass not in first and test_pass.counts_tests
    }
    assert set(again) == {"redis", "s3"}
    for count in range(6):
        for marks in map(set, combinations(("spark", "slow", "medium", "long", "redis"), count)):
            assert sum(chosen_by(test_pass, marks) for test_pass in first) == 1, marks
            assert all(chosen_by(test_pass, marks) == ("spark" not in marks) for test_pass in again.values()), marks
            assert not any(chosen_by(test_pass, marks | {"campaign"}) for test_pass in whole)


def test_make_test_has_every_test_of_make_check_so_that_lint_is_the_rest_of_it() -> None:
    tested = [test_pass for test_pass in passes.test(()) if test_pass.counts_tests]
    checked = [test_pass for test_pass in passes.check(()) if test_pass.counts_tests]
    for count in range(7):
        for marks in map(set, combinations(("spark", "slow", "medium", "long", "redis", "campaign"), count)):
            if any(chosen_by(test_pass, marks) for test_pass in checked):
                assert any(chosen_by(test_pass, marks) for test_pass in tested), marks
    rest = [test_pass.command for test_pass in passes.check(()) if not test_pass.counts_tests]
    assert [test_pass.command for test_pass in passes.lint(())] == rest
