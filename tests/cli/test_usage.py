"""Usage: help, version, wrong arguments; and what a fresh process does: quick start, closed pipes, Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog
from epochlog import demo
from epochlog.__main__ import main
from epochlog.batch.policy_registry import BUILT_IN
from epochlog.cli import main as commands_by_name
from epochlog.cli.grammar import commands as arguments
from epochlog.cli.render import output


def test_the_help_of_a_read_describes_every_policy(run) -> None:
    text = " ".join(run("read", "--help").out.split())
    for name, policy in BUILT_IN.items():
        assert f"{name} ({policy.summary})" in text  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.medium
def test_version_and_help(run) -> None:
    assert run("--version").out == f"epochlog {epochlog.__version__}\n"
    done = run("--help")
    assert done.code == 0
    for name in (*commands_by_name.COMMAND_MODULES, "demo"):
        assert f"\n    {name} " in done.out
    for name in commands_by_name.COMMAND_MODULES:
        help_run = run(name, "--help")
        assert help_run.code == 0 and "--json" in help_run.out and "ROOT" in help_run.out


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("list",),
        ("ls",),
        ("ls", "a", "b"),
        ("read", "a", "t", "--epoch", "abc"),
        ("read", "a", "t", "--epoch", "-5"),
        ("read", "a", "t", "--epoch", "1.5"),
        ("read", "a", "t", "--limit", "0"),
        ("read", "a", "t", "--limit", "3", "--all"),
        ("read", "a", "t", "--columns", "a,,b"),
        ("read", "a", "t", "--timeout", "soon"),
        ("read", "a", "t", "--max-lag", "inf"),
        ("changes", "a"),
        ("changes", "a", "t", "--mode", "gross"),
        ("changes", "a", "t", "--after", "²"),
        ("status", "a", "--watch", "-1"),
        ("serve", "a"),
        ("serve", "a", "--token-file", "t", "--no-token"),
        ("serve", "a", "--no-token", "--read-token-file", "t"),
    ],
)
def test_wrong_usage_exits_2_and_touches_nothing(run, argv, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*argv)
    assert (done.code, done.out) == (2, "") and "usage: epochlog" in done.err
    assert list(tmp_path.iterdir()) == []


def test_serve_says_both_ways_to_name_who_may_call(run, tmp_path) -> None:
    errors = run("serve", tmp_path).err
    assert "--token-file FILE" in errors and "--no-token" in errors and "secrets.token_urlsafe" in errors


def test_every_command_of_the_grammar_has_a_home() -> None:
    grammar = arguments.parser()
    (commands,) = (action.choices for action in grammar._actions if isinstance(action.choices, dict))
    assert set(commands) == {*commands_by_name.COMMAND_MODULES, "demo"}


def test_demo_takes_all_that_follows(run, monkeypatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(demo, "main", lambda argv: seen.append(list(argv)) or 1)
    assert run("demo", "--quick", "--help").code == 1
    assert seen == [["--quick", "--help"]]


def test_demo_without_its_extras_says_what_to_install(run, monkeypatch) -> None:
    def missing(argv) -> int:
        raise ModuleNotFoundError("No module named 'duckdb'", name="duckdb")

    monkeypatch.setattr(demo, "main", missing)
    done = run("demo")
    assert (done.code, done.err) == (1, "epochlog: the demo needs duckdb: pip install 'epochlog[demo]'\n")


def test_a_defect_is_not_dressed_up_as_an_error(monkeypatch, lake) -> None:
    from epochlog.cli.commands import look

    monkeypatch.setattr(look, "ls", lambda session: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        main(["ls", lake.root])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_states_are_coloured_on_a_terminal_only(lake, monkeypatch, run) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    assert "\x1b" not in run("status", lake.root).out
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    assert main(["status", lake.root]) == 0
    assert "\x1b[1;31mfailed" in screen.getvalue()


def test_waiting_shows_on_a_terminal_and_only_after_a_while(monkeypatch) -> None:
    quick, slow = Terminal(), Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", quick)
    with output.Waiting("verify lake") as waiting:
        waiting.step(1, 2)
    assert quick.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", slow)
    with output.Waiting("verify lake") as waiting:
        waiting.step(1, 4)
        waiting._show()  # what the timer calls
        waiting.step(2, 4)
        waiting.end()
        waiting._show()
        assert waiting._bar is None
    assert "verify lake" in slow.getvalue()


def test_names_that_standard_output_cannot_spell_are_escaped(monkeypatch) -> None:
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", narrow)
    output.CommandOutput(output.Waiting("x"), True).document({"a": "é"})
    narrow.flush()
    assert json.loads(narrow.buffer.getvalue()) == {"a": "é"}  # pyright: ignore[reportAttributeAccessIssue]


# ---- in a process of its own ---------------------------------------------------------------------------------------


def test_the_start_loads_nothing_heavy() -> None:
    program = (
        "import sys, epochlog.__main__ as m\n"
        "codes = m.main(['--version']), m.main(['--help']), m.main(['read', '--help']), m.main(['ls'])\n"
        "assert codes == (0, 0, 0, 2), codes\n"
        "assert not {'pyarrow', 'numpy', 'rich', 'pyspark', 'lmdb'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_no_command_loads_spark(lake) -> None:
    program = (
        "import sys, epochlog.__main__ as m\n"
        f"for command in (['read', 'orders'], ['status'], ['verify', '--json']):\n"
        f"    assert m.main([command[0], {lake.root!r}, *command[1:]]) == 0\n"
        "assert not {'pyspark', 'pyarrow.flight', 'duckdb', 'polars', 'redis'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_process_says_the_same(spawn, lake, tmp_path) -> None:
    listed = spawn("ls", lake.root, "--json")
    assert listed.code == 0 and len(json.loads(listed.out)["tables"]) == 4
    missing = spawn("ls", tmp_path / "missing")
    assert (missing.code, missing.out) == (1, "") and missing.err.startswith("epochlog: there is no store at")
    assert spawn("ls").code == 2


@pytest.mark.medium
@pytest.mark.parametrize(
    "argv",
    [
        ("read", "orders", "--json"),
        pytest.param(("read", "orders", "--all"), marks=pytest.mark.slow),
        pytest.param(("status", "--json", "--watch", "0.01"), marks=pytest.mark.slow),
        pytest.param(("status", "--watch", "0.01"), marks=pytest.mark.slow),
    ],
)
def test_a_closed_pipe_is_a_quiet_end(lake, argv) -> None:
    with epochlog.open(lake.root) as store:
        many = 20_000
        store.table("orders").upsert(pa.table({"id": list(range(many)), "day": ["d"] * many, "cents": [0] * many}))
    command = [sys.executable, "-m", "epochlog", argv[0], lake.root, *argv[1:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline()
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == ("", 0)


@pytest.mark.slow
def test_a_pipe_closed_before_anything_is_said(lake) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "epochlog", "ls", lake.root]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_watching_ends_with_ctrl_c(lake) -> None:
    command = [sys.executable, "-m", "epochlog", "status", lake.root, "--json", "--watch", "3600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stderr
        facts = json.loads(process.stdout.readline())
        assert len(facts["jobs"]) == 2
        process.send_signal(signal.SIGINT)
        assert (process.stderr.read(), process.wait()) == ("", 130)


UNUSED = {
    *("pandas", "polars", "duckdb", "sqlglot", "pyspark", "asyncio", "http", "email", "importlib.metadata", "redis"),
    *("tarfile", "zipfile", "subprocess", "multiprocessing", "unittest", "xml", "pyarrow.dataset", "pyarrow.flight"),
}
"""Modules that take time to load, and that a command over a local store and the first rows of a process do not use."""
OF_FAR_STORES = {"pyarrow.fs", "ssl"}
"""Those of object stores, which Parquet's reader loads too."""


@pytest.mark.medium
def test_the_first_rows_of_a_new_process_load_what_they_use(tmp_path: Path) -> None:
    """Reads of commits, of one run, and of commits over a run; pandas, with which pyarrow begins its own conversions,
    is half of such a process.
    """
    keys = {"commit": ["id"], "commits": ["id"], "pairs": ["v", "id"], "run": ["id"], "over": ["id"]}
    with epochlog.open(tmp_path) as store:
        for name, key in keys.items():
            columns = [("id", pa.int64()), ("v", pa.string()), ("l", pa.list_(pa.float64()))]
            table = store.create_table(name, pa.schema(columns), key)
            if name not in ("commit", "run"):
                table.upsert([{"id": n, "v": "b", "l": [2.0]} for n in (2, 3)])
            if name == "over":
                store.compact("over", full=True)
            table.upsert([{"id": 1, "v": "a", "l": [1.0]}, {"id": 2, "v": "b", "l": None}])
            if name not in ("commit", "run"):
                table.delete([{"id": 3, "v": "b"}] if name == "pairs" else [3])
        store.compact("run", full=True)
    for name in keys:
        unused = UNUSED if name in ("run", "over") else UNUSED | OF_FAR_STORES
        key, key_list, row = 1, [1, 2], {"id": 2}
        if name == "pairs":
            key, key_list, row = ("a", 1), [("a", 1), ("b", 2)], {"v": "b", "id": 2}
        program = (
            f"import sys, epochlog\nstore = epochlog.open({str(tmp_path)!r})\ntable = store.table({name!r})\n"
            "assert table.to_arrow()['id'].to_pylist() == [1, 2] and table.scan().read_all().num_rows == 2\n"
            "with store.snapshot() as moment: assert table.count() == moment[table.name].count() == 2\n"
            f"assert [table.get(keys).num_rows for keys in ({key!r}, {key_list!r}, [{row!r}], [])] == [1, 2, 1, 0]\n"
            "for mode in ('epochs', 'net'):\n"
            "    for images in (False, True):\n"
            "        rows = table.changes(0, mode=mode, pre_images=images).read_all()\n"
            "        assert rows.num_rows >= 2 and rows['_commit_version'].to_pylist()[-1] <= store.last_epoch\n"
            f"loaded = {unused!r} & sys.modules.keys()\nassert not loaded, loaded"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (name, done.stderr)


@pytest.mark.medium
def test_a_short_command_loads_no_pandas(tmp_path: Path) -> None:
    """It is half of the CPU time of such a command, and its rows need none."""
    with epochlog.open(tmp_path / "lake") as store:
        table = store.create_table(
            "t", pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())]), ["id"]
        )
        table.upsert(pa.table({"id": [1, 2], "v": ["a", None]}))
    for command in (["ls"], ["read", "t", "--json"], ["describe", "t"], ["compact", "--full"], ["verify"]):
        name, *rest = command
        unused = UNUSED | (set() if name in ("compact", "verify") else OF_FAR_STORES)  # others read no run here
        program = (
            f"import sys; sys.argv = ['epochlog', {name!r}, {str(tmp_path / 'lake')!r}, *{rest!r}]\n"
            "from epochlog.__main__ import main\ncode = main()\n"
            f"loaded = {unused!r} & sys.modules.keys()\nassert not loaded, loaded\nsys.exit(code)"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stderr)
        assert command[0] != "read" or ('"id": 1, "v": "a"' in done.stdout and '"id": 2, "v": null' in done.stdout)


def test_the_examples_of_the_help_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run) -> None:
    """They named a command that does not exist."""
    monkeypatch.chdir(tmp_path)
    with epochlog.open("lake") as store:
        columns = pa.schema([pa.field("id", pa.int64(), nullable=False), ("cents", pa.int64())])
        store.create_table("orders", columns, ["id"]).upsert(pa.table({"id": [1, 2], "cents": [400, 600]}))
        view = store.create_view("revenue", "SELECT id, SUM(cents) AS cents FROM orders GROUP BY id", ["id"])
        store.checkpoint()
        view.step(until="newest")
    lines = arguments._EXAMPLES.partition("examples:\n")[2].partition("\n\n")[0].splitlines()
    examples = [shlex.split(line.strip().partition("   ")[0]) for line in lines]
    assert len(examples) == 9 and all(words[0] == "epochlog" for words in examples)
    for _, *words in examples:
        if words[0] == "tail":  # it has no end
            arguments.parser().parse_args(words)
        else:
            done = run(*words)
            assert done.code == 0, (words, done.err)
