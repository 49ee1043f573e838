"""List of all that the tests show, in tests/docs/shown.tsv: no line is lost, and none moves to a later make target."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import passes
import pytest
import shown
from passes import Selection, selection_of, selections
from shown import COLLECTED, TARGETS, Collected, Line, collected_test, is_whole, lines_of, losses, shown_by

pytestmark = pytest.mark.local_only


def test_all_that_was_shown_is_shown_by_the_same_target_or_an_earlier_one(request: pytest.FixtureRequest) -> None:
    """A run of all tests has collected them already; any other one collects them in a process of its own."""
    items = request.config.stash[COLLECTED]
    if is_whole(items):
        complaints, _ = shown.problems(items)
        assert not complaints, "\n" + "\n".join(complaints)
    else:
        done = subprocess.run([sys.executable, shown.__file__], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_promise_names_files_of_tests() -> None:
    promises = shown.promises_of(shown.PAGE.read_text("utf-8"))
    assert len(promises) >= 25
    for number, places in promises.items():
        assert places, f"{number} names no file or folder of tests"
        assert all((shown.TESTS / place).exists() for place in places), f"{number} names files that are not there"


# ---- a small suite ---------------------------------------------------------------------------------------------------

PAGE = """
| | promise | tests |
|---|---|---|
| G1 | One \\| two | a way (`law/`, `store/test_kill.py`); `faults/mutants.py` |
| G2 | Three | the tests of G1 |
"""
SUITE = (
    Collected("store/test_kill.py::test_killed", "first", (1,)),
    Collected("store/test_kill.py::test_killed", "second", (2,), markers=frozenset({"medium"})),
    Collected("law/test_law.py::test_law", variant=(), markers=frozenset({"rule", "long"}), rules=frozenset({"1.1"})),
    Collected("store/test_rows.py::test_rows", markers=frozenset({"rule"}), rules=frozenset({"1.1", "1.10"})),
    Collected(
        "store/test_rows.py::test_mutants", "blind", (1,), frozenset({"mutant"}), frozenset({"planted", "spark"})
    ),
    Collected("store/test_rows.py::test_mutants", "deaf", (2,), frozenset({"mutant"}), frozenset({"planted", "spark"})),
    Collected("store/test_rows.py::test_of_a_night", markers=frozenset({"planted", "campaign"})),
    Collected("store/test_rows.py::test_of_no_cases", "NOTSET", markers=frozenset({"planted", "skip"})),
)
LINES = [
    Line("promise G1", "long", 1, "law/test_law.py::test_law"),
    Line("promise G1", "check", 1, "store/test_kill.py::test_killed"),
    Line("promise G1", "test", 2, "store/test_kill.py::test_killed"),
    Line("promise G2", "long", 1, "law/test_law.py::test_law"),
    Line("promise G2", "check", 1, "store/test_kill.py::test_killed"),
    Line("promise G2", "test", 2, "store/test_kill.py::test_killed"),
    Line("rule 1.1", "long", 1, "law/test_law.py::test_law"),
    Line("rule 1.1", "check", 1, "store/test_rows.py::test_rows"),
    Line("rule 1.10", "check", 1, "store/test_rows.py::test_rows"),
    Line("planted bug", "test", 1, "store/test_rows.py::test_mutants[blind]"),
    Line("planted bug", "test", 1, "store/test_rows.py::test_mutants[deaf]"),
]


def shown_now(suite: Sequence[Collected], page: str = PAGE) -> shown.Shown:
    return shown_by(suite, [selections(target) for target in TARGETS], shown.promises_of(page))


def marked(number: int, *markers: str) -> Callable[[], list[Collected]]:
    """Return the suite with other markers on one of its tests."""
    return lambda: [
        replace(test, markers=frozenset(markers)) if test is SUITE[number] else test for test in SUITE
    ]  # fmt: skip


def without(number: int) -> list[Collected]:
    return [test for test in SUITE if test is not SUITE[number]]


def test_each_line_has_the_target_that_shows_it() -> None:
    assert lines_of(shown_now(SUITE)) == LINES
    assert shown.read(shown.written(LINES)) == LINES
    assert shown.summary(LINES).splitlines() == [
        "               check    test    long",
        "promises           2       0       0",
        "rules              2       0       0",
        "planted bugs       0       2       0",
        "4 tests in 11 lines",
    ]


@pytest.mark.planted
@pytest.mark.parametrize(("suite", "lost"), [
    (lambda: without(0), 4),  # of two cases one: those of check, and of test
    (lambda: without(2), 3),
    (lambda: without(5), 1),
    (marked(0, "medium"), 2),
    (marked(1, "slow", "long"), 2),
    (marked(2, "rule", "campaign"), 3),
    (marked(3, "rule", "spark"), 2),
    (marked(3, "rule", "skip"), 2),
    (marked(4, "planted", "spark", "long"), 1),
    (marked(4, "spark"), 1),
    (lambda: [replace(test, name=test.name.replace("killed", "dead")) for test in SUITE], 4),
    (lambda: [replace(test, rules=test.rules - {"1.1"}) for test in SUITE], 2),
], ids=[
    "a case of two is deleted", "a test is deleted", "a mutant is deleted",
    "a case of check moves to test", "a case of test moves to long", "a test of long moves to the campaign",
    "a test of check moves to Spark", "a list of parameters is empty", "a mutant moves to long", "a mutant is unmarked",
    "a test is renamed", "a rule is unmarked",
])  # fmt: skip
def test_a_loss_is_found(suite: Callable[[], list[Collected]], lost: int) -> None:
    assert len(losses(LINES, shown_now(suite()))) == lost


@pytest.mark.planted
def test_a_promise_that_names_fewer_tests_is_found() -> None:
    messages = losses(LINES, shown_now(SUITE, PAGE.replace("`law/`, ", "")))
    assert messages == [
        f"promise {number}: law/test_law.py::test_law has 1 cases in make long, and now make check: 0, make test: 0, "
        "make long: 0"
        for number in ("G1", "G2")
    ]


@pytest.mark.planted
@pytest.mark.parametrize(("target", "selection"), [
    ("check", Selection((), "not spark and not slow and not medium and not long and not rule")),
    ("check", Selection(("tests/law", "tests/store/test_kill.py"), passes.QUICK)),
    ("test", Selection((), "spark and planted and not slow and not long and not redis and not planted")),
], ids=["other markers", "fewer places", "nothing of Spark"])  # fmt: skip
def test_a_pass_that_leaves_tests_out_is_found(target: str, selection: Selection) -> None:
    chosen = [[selection] if name == target else selections(name) for name in TARGETS]
    assert losses(LINES, shown_by(SUITE, chosen, shown.promises_of(PAGE)))


def test_tests_may_come_and_move_to_an_earlier_target() -> None:
    new = Collected("store/test_new.py::test_x", markers=frozenset({"planted", "long"}))
    suite = [replace(test, markers=test.markers - {"medium", "long", "spark"}) for test in SUITE]
    assert not losses(LINES, shown_now([*suite, new]))
    assert len(lines_of(shown_now([*suite, new]))) == len(LINES) + 1 - 2


def test_only_what_is_dropped_by_name_may_be_lost() -> None:
    left = shown_now(SUITE[:4])
    assert len(losses(LINES, left)) == 2
    assert len(losses(LINES, left, ["store/test_rows.py::test_mutants[deaf]"])) == 1
    assert not losses(LINES, left, ["store/test_rows.py::test_mutants"])


def test_a_list_that_would_lose_lines_is_not_written(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(suite: Sequence[Collected], *options: str) -> int:
        monkeypatch.setattr(shown, "collect", lambda: suite)
        monkeypatch.setattr(sys, "argv", ["shown.py", *options])
        return shown.main()

    (tmp_path / "page.md").write_text(PAGE)
    monkeypatch.setattr(shown, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(shown, "LIST", file := tmp_path / "shown.tsv")
    monkeypatch.setattr(shown, "collected_test", lambda test: test)
    assert run(SUITE, "--write") == 0 and shown.read(file.read_text()) == LINES
    assert run(without(5), "--write") == 1 and shown.read(file.read_text()) == LINES
    assert "test_mutants[deaf] has 1 cases in make test" in capsys.readouterr().out
    assert run(without(5), "--drop", LINES[-1].test) == 0 and shown.read(file.read_text()) == LINES
    assert run(without(5), "--write", "--drop", LINES[-1].test) == 0 and shown.read(file.read_text()) == LINES[:-1]


# ---- tests and passes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize("kind", ["a", "b"])
def test_a_test_is_read_without_its_seeds(request: pytest.FixtureRequest, kind: str, seed: int) -> None:
    test = collected_test(request.node)
    assert test == Collected(
        f"docs/test_shown.py::{request.node.originalname}",
        kind,
        (id(kind),),
        frozenset({"kind", "seed"}),
        frozenset({"parametrize", "local_only"}),
    )
    assert not is_whole([request.node])


def test_a_test_that_plants_bugs_without_the_marker_is_told() -> None:
    assert shown.unmarked(SUITE) == []
    for test in (
        replace(SUITE[4], markers=frozenset()),
        Collected("store/test_a.py::test_a_planted_error_is_found"),
        Collected("store/test_a.py::test_x", parameters=frozenset({"bug"})),
    ):
        assert shown.unmarked([test]) == [f"{test.name} plants bugs: mark it `planted`"]


def test_selections_are_read_from_the_commands_of_passes() -> None:
    assert selection_of(
        (*passes.PYTEST, "tests/law", "-m", "not spark", "-n", "2", "--dist", "worksteal")
    ) == Selection(("tests/law",), "not spark")
    for option in ("-k", "--deselect=x", "--ignore"):
        with pytest.raises(ValueError, match=f"^{option}: selection_of does not know"):
            selection_of((*passes.PYTEST, option, "x"))
    again = [test_pass for test_pass in passes.test(()) if test_pass.environment.get("EPOCHLOG_TEST_STORE")]
    assert again and not {selection_of(test_pass.command) for test_pass in again} & set(selections("test"))
