"""Keeps the style by a test, and shows of each rule that it can fail."""

from __future__ import annotations

import ast
import gc
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidy import rules

ROOT = Path(__file__).resolve().parents[2]
NOT_TEXT = {".arrow", ".parquet", ".png", ".zip", ".mdb", ".bin", ".zst", ".dump"}


def project_files() -> list[str]:
    """List the files that git tracks or would track; without git (an unpacked archive), all but generated ones."""
    try:
        listing = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        names = [name for name in listing.stdout.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        names = [str(path.relative_to(ROOT)) for path in walk(ROOT)]
    return sorted(name for name in names if (ROOT / name).is_file() and Path(name).suffix not in NOT_TEXT)


def walk(folder: Path) -> Iterator[Path]:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            made = {"build", "dist", "site", "demo-output", "spark-warehouse", "metastore_db", "__pycache__"}
            hidden = entry.name.startswith(".") and entry.name != ".ci"
            if not hidden and entry.name not in made and entry.suffix != ".egg-info":
                yield from walk(entry)
        else:
            yield entry


def problems(path: str, text: str) -> str:
    return "\n".join(rules.check(path, text))


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Keep the garbage collector from going over all syntax trees again and again."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
def test_the_project_is_tidy() -> None:
    """Check all rules in one test: parsing the modules takes more time than the rules."""
    problems: list[str] = []
    trees: dict[str, ast.Module] = {}
    for name in project_files():
        text = (ROOT / name).read_text("utf-8")
        problems += rules.check(name, text)
        if name.endswith(".py"):
            trees[name] = rules.parse(name, text)
    problems += rules.import_cycles(trees)
    problems += rules.repeated_class_names(trees)
    problems += rules.shared_helpers(trees)
    assert not problems, "\n" + "\n".join(problems)


def test_two_classes_of_one_name_are_refused() -> None:
    lines = {"store/a.py": "class Handle: ...", "batch/b.py": "class Handle: ...\nclass _Own: ..."}
    (problem,) = rules.repeated_class_names({path: ast.parse(line) for path, line in lines.items()})
    assert "Handle" in problem and "batch/b.py" in problem
    lines["batch/b.py"], lines["bench/c.py"], lines["bench/d.py"] = "", "class Handle: ...", "class Peer: ..."
    lines["tests/e.py"] = "class Peer: ..."
    (problem,) = rules.repeated_class_names({path: ast.parse(line) for path, line in lines.items()})
    assert "Handle" in problem and "bench/c.py" in problem


def test_a_helper_that_another_folder_imports_is_refused() -> None:
    lines = {"tests/law/world.py": "", "tests/law/test_law.py": "from law.world import run", "tests/cli/test_a.py": ""}
    assert not list(rules.shared_helpers({path: ast.parse(line) for path, line in lines.items()}))
    lines["tests/cli/test_a.py"] = "from law.world import run"
    (problem,) = rules.shared_helpers({path: ast.parse(line) for path, line in lines.items()})
    assert "tests/cli/test_a.py:1: move tests/law/world.py to tests/support" in problem


def test_a_prefix_of_catalog_keys_is_refused_outside_of_their_module() -> None:
    text = '"""Scans."""\n\nPREFIX = b"log/%08x/"\n'
    assert "store/catalog/keys.py" in problems("store/a.py", text)
    assert not problems("store/catalog/keys.py", text)


def test_the_log_s_records_are_refused_outside_of_their_module() -> None:
    text = '"""Scans."""\n\nfrom epochlog.store.catalog.keys import {0}\n\n\ndef at(): return {0}\n'
    for name in ("log_key", "hist_key", "LOG_PREFIX", "HIST_PREFIX"):
        assert "commit_log.py reads and writes the log" in problems("spark/a.py", text.format(name))
        assert "commit_log.py" not in problems("store/metadata/commit_log.py", text.format(name))
    assert "commit_log.py" not in problems("spark/a.py", text.format("head_key"))


def test_a_second_place_that_decides_about_barriers_is_refused() -> None:
    text = '"""Steps."""\n\nfrom epochlog.checkpoint.job.next_barrier import due_barrier\n'
    assert "due_barrier decides for all runners" in problems("checkpoint/pipeline/a.py", text)
    assert "due_barrier decides" in problems("checkpoint/job/a.py", text.replace("epochlog.checkpoint.job", ""))
    assert not problems("checkpoint/job/next_step.py", text) and not problems("tests/a.py", text)


PLANTED = [
    ("upkeep", "def run_upkeep() -> int:\n    return 1"),
    ("stand", "def at(stand: int) -> int:\n    return 1"),
    ("stand", "async def stands() -> None: ..."),
    ("floor", "class LogFloor: ..."),
    ("floor", "store.floor = 1"),
    ("gone", "GONE_FILES = 1"),
    ("made", "for made_key in ():\n    pass"),
    ("piece", "pieces: int = 0"),
    ("piece", "from x import chunk as piece"),
    ("stop", "valid_stops = 1"),
    ("stop", "def is_stop() -> bool: ..."),
    ("door", "f = lambda door: 1"),
    ("rest", "first, *rest = ()"),
    ("pace", "with x as pace:\n    pass"),
    ("unfolded", "(unfolded := 1)"),
    ("let go", "def let_go() -> None: ..."),
    ("let go", "class LetGo: ..."),
    ("gone", "try:\n    pass\nexcept OSError as gone:\n    pass"),
    ("made", "match 1:\n    case made:\n        pass"),
]  # fmt: skip
"""Words of the glossary's column 'never', each in a name of each kind."""


@pytest.mark.parametrize("name, line", PLANTED)
def test_a_name_with_a_word_that_the_glossary_does_not_use_is_refused(name: str, line: str) -> None:
    text = f"{DOC}{line}\n"
    (problem,) = rules.check("store/a.py", text)
    assert re.match(r"store/a\.py:\d: ", problem)
    assert f"{name!r} is {' or '.join(rules.OTHER_WORDS[name])!r} in docs/GLOSSARY.md" in problem
    assert not problems("tests/a.py", text)


def test_each_word_that_no_name_has_is_planted() -> None:
    assert {name for name, _ in PLANTED} == rules.OTHER_WORDS.keys()


def test_a_module_named_by_a_word_that_the_glossary_does_not_use_is_refused() -> None:
    assert "'task_pieces': 'piece' is" in problems("store/task_pieces.py", DOC)


@pytest.mark.parametrize("path, line", [
    ("store/a.py", "import math\n\nLOW = math.floor(1.5)\nFLOORED = LOW"),
    ("store/a.py", "def stop() -> None: ...\n\n\ndef _stop_parts(stop: int) -> None: ..."),
    ("store/a.py", "stopped = restored = backdoor = mader = 1"),
    ("store/metadata/definitions.py", "pieces: int = 0"),
])  # fmt: skip
def test_names_that_keep_their_words_pass(path: str, line: str) -> None:
    assert not problems(path, f"{DOC}{line}\n")


TEXTS = [
    "by any door",
    "in pieces",
    "Upkeep is due",
    "an unfolded log",
    "it lets them go",
    "let go of",
    "its stand is 4",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_with_a_word_that_the_glossary_does_not_use_is_refused(text: str) -> None:
    for path, lines in {
        "store/a.py": f'"""A module.\n\nHere {text}."""\n',
        "store/b.py": f"{DOC}\nx = 1  # here {text}\n",
        "store/c.py": f'{DOC}\nraise InvalidInput(f"{{x}} {text}")\n',
        "docs/a.md": f"# A page\n\nHere {text}.\n",
        "README.md": f"# A page\n\nHere {text}.\n",
    }.items():
        (problem,) = rules.check(path, lines)
        assert problem.startswith(f"{path}:3: ") and "docs/GLOSSARY.md has another word" in problem


@pytest.mark.parametrize("text", [
    "rows made by a commit, which has gone; the rest of it", "job.stop() stops at the floor", "NULL stands for a null",
    "it stands still", "outdoor piecewise",
])  # fmt: skip
def test_plain_english_passes(text: str) -> None:
    assert not problems("store/a.py", f'"""{text}"""\n\nx = "{text}"  # {text}\n')
    assert not problems("docs/a.md", f"{text}\n`in pieces` is `door`\n```text\nby any door\n```\n")


def test_keys_and_labels_are_no_texts() -> None:
    assert not problems("store/a.py", f'{DOC}KEYS = ("door", "pieces", "let-go")\n')


def test_the_glossary_has_the_words_that_no_name_has() -> None:
    never: dict[str, tuple[str, ...]] = {}
    for line in (ROOT / "docs" / "GLOSSARY.md").read_text("utf-8").splitlines():
        if line.startswith("| "):
            term, _, _, _, words, _ = (cell.strip() for cell in line.strip("|").split("|"))
            for word in re.findall(r"`([^`]+)`", words):
                never[word] = (*never.get(word, ()), term)
    assert never == rules.OTHER_WORDS


def test_a_name_that_says_nothing_is_refused() -> None:
    text = '"""Sums."""\n\n\ndef found(told: list[int]) -> int:\n    return sum(one for one in told)\n'
    assert {"found", "told", "one"} <= set(problems("store/a.py", text).split("'"))
    assert "'told' says nothing" in problems("store/a.py", '"""Sums."""\n\nstore.told = 1\n')
    assert "says nothing" in problems("tests/a.py", text)


def test_a_circle_of_imports_is_found() -> None:
    """Also one through a base folder, and one that only type checkers see."""
    first = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from epochlog.store.b import B"
    lines = {"store/a.py": first, "store/b.py": "from . import c", "store/c.py": "from epochlog.store.a import A"}
    trees = {path: ast.parse(line) for path, line in lines.items()}
    (cycle,) = rules.import_cycles(trees)
    assert all(name in cycle for name in ("store.a", "store.b", "store.c"))
    assert not list(rules.import_cycles({path: trees[path] for path in ("store/a.py", "store/b.py")}))


def commit_subjects(root: Path, after: str) -> list[str]:
    """List the subjects after a commit; none without git, in an archive, or where a shallow clone lacks that commit."""
    command = ["git", "log", "--no-merges", "--format=%s", f"{after}..HEAD"]
    try:
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []


def test_commit_subjects_say_what_they_do() -> None:
    subjects = commit_subjects(ROOT, rules.FIRST_SUBJECT_AFTER)
    problems = [problem for subject in subjects for problem in rules.commit_subject(subject)]
    assert not problems, "\n" + "\n".join(problems)


def test_the_files_are_found() -> None:
    names = project_files()
    assert {"errors.py", "__init__.py", "pyproject.toml", "requirements.lock", "Makefile"} <= set(names)
    assert all(any(name.startswith(f"{package}/") for name in names) for package in rules.PACKAGES)


DOC = '"""A module."""\n'


@pytest.mark.parametrize("path, line, complaint", [
    ("store/a.py", "from epochlog.spark.stream_source import Reader", "of the higher layer spark"),
    ("store/a.py", "from epochlog import api", "store imports epochlog.api of the higher layer api"),
    ("store/a.py", "from epochlog import open", "store imports epochlog.open of the higher layer __init__"),
    ("store/a.py", "import epochlog as el", "store imports epochlog of the higher layer __init__"),
    ("store/a.py", "import epochlog.batch.policy", "higher layer batch"),
    ("store/env/a.py", "from epochlog.store.types.epoch import show_epoch", "of the higher layer store/types"),
    ("store/sst/a.py", "from epochlog.store.session.handle import Handle", "of the higher layer store/session"),
    ("store/sst/a.py", "if TYPE_CHECKING:\n    from epochlog.store.session.handle import Handle", "store/session"),
    ("errors.py", "from .store.types.epoch import to_unix_ms", "errors imports store.types.epoch.to_unix_ms"),
    ("checkpoint/a.py", "def f():\n    from epochlog.batch.snapshot import Snapshot", "a.py:3: checkpoint imports"),
    ("batch/a.py", "from epochlog.api import Store", "batch imports epochlog.api.Store"),
    ("api.py", "from .__main__ import main", "api imports __main__.main"),
    ("store/a.py", "from ..errors import Corrupt", "write `from epochlog.…`"),
    ("store/env/a.py", "from ..types import epoch", "write `from epochlog.…`"),
    ("helpers/a.py", "x = 1", "no layer is known"),
])  # fmt: skip
def test_imports_that_run_upward_are_refused(path: str, line: str, complaint: str) -> None:
    assert complaint in problems(path, DOC + line + "\n")


@pytest.mark.parametrize("path, line", [
    ("store/env/a.py", "from epochlog.errors import Corrupt"),
    ("store/types/a.py", "from .epoch import to_unix_ms"),
    ("store/types/a.py", "from . import epoch"),
    ("store/types/a.py", "from epochlog.store.env import clock"),
    ("batch/a.py", "from epochlog.store.types import epoch\nfrom epochlog.checkpoint.job.next_barrier import Barrier"),
    ("api.py", "from epochlog.batch.snapshot import Snapshot\nfrom . import errors"),
    ("demo/a.py", "import epochlog as el\nfrom epochlog import open\nfrom epochlog.api import Store"),
    ("__main__.py", "from .demo.run import main\nfrom . import api"),
    ("tests/store/test_a.py", "import epochlog\nfrom epochlog.store import epoch"),
])  # fmt: skip
def test_imports_that_run_downward_pass(path: str, line: str) -> None:
    assert problems(path, DOC + line + "\n") == ""


@pytest.mark.parametrize("path, line, complaint", [
    ("store/a.py", "import pyspark", "pyspark may be imported in"),
    ("checkpoint/job/runner.py", "from pyspark.sql import SparkSession", "pyspark may be imported in"),
    ("batch/a.py", "from pyarrow import flight", "pyarrow.flight may be imported in"),
    ("batch/a.py", "import pyarrow.flight as fl", "pyarrow.flight may be imported in"),
    ("store/commit/root_commit.py", "import lmdb", "lmdb may be imported in store/catalog/lmdb/catalog.py only"),
    ("store/sst/merge.py", "import polars as pl", "polars may be imported in"),
])  # fmt: skip
def test_packages_are_imported_at_home_only(path: str, line: str, complaint: str) -> None:
    assert complaint in problems(path, DOC + line + "\n")
    assert problems("tests/test_a.py", DOC + line + "\n") == ""


@pytest.mark.parametrize("path, lines, complaint", [
    ("store/a.py", "import time\nnow = time.time()", "time.time: the clock is injected"),
    ("store/a.py", "import time as t\ndef f(clock=t.time_ns): ...", "time.time_ns: the clock is injected"),
    ("store/a.py", "from time import time as now\nnow()", "time.time: the clock is injected"),
    ("batch/a.py", "from datetime import datetime as d, UTC\nd.now(UTC)", "datetime.datetime.now: the clock"),
    ("batch/a.py", "import datetime\ndatetime.date.today()", "datetime.date.today: the clock is injected"),
    ("store/a.py", "import time\ntime.monotonic()", "time.monotonic: real time is for timeouts"),
    ("checkpoint/a.py", "import time\ntime.sleep(1)", "time.sleep: wait for a condition"),
    ("batch/a.py", "import random", "random: chance"),
    ("batch/a.py", "from random import choice", "random.choice: chance"),
    ("batch/a.py", "import uuid\nuuid.uuid4()", "uuid.uuid4: chance"),
    ("batch/a.py", "import os\nos.urandom(8)", "os.urandom: chance"),
    ("batch/a.py", "import secrets\nsecrets.token_hex()", "secrets.token_hex: chance"),
    ("batch/a.py", "import numpy as np\nnp.random.default_rng()", "numpy.random.default_rng: chance"),
    ("store/a.py", "with open('x') as f: ...", "open: only store/env/local_folder.py opens"),
    ("store/a.py", "import os\nos.rename('a', 'b')", "os.rename: only store/env/local_folder.py"),
    ("store/a.py", "import os\nos.replace('a', 'b')", "os.replace: only store/env/local_folder.py"),
    ("store/a.py", "import os\nos.remove('a')", "os.remove: only store/env/local_folder.py"),
    ("store/a.py", "from os import fsync\nfsync(3)", "os.fsync: only store/env/local_folder.py"),
    ("store/a.py", "import shutil\nshutil.rmtree('a')", "shutil.rmtree: only store/env/local_folder.py"),
    ("store/a.py", "import pyarrow as pa\npa.memory_map('a')", "pyarrow.memory_map: only store/env/local_folder.py"),
    ("store/a.py", "from pyarrow import fs\nfs.LocalFileSystem()", "arrow_files.py speak to file systems"),
    ("store/env/local_folder.py", "import pickle", "pickle: bytes from disk or wire"),
    ("demo/a.py", "from pickle import loads", "pickle.loads: bytes from disk or wire"),
    ("tests/a.py", "import sqlglot\nsqlglot.transpile('')", "sqlglot.transpile: a view is judged"),
    ("store/a.py", "eval('1')", "eval: bytes from disk or wire"),
    ("store/a.py", "import yaml\nyaml.load('1')", "yaml.load: bytes from disk or wire"),
    ("tests/test_a.py", "exec('1')", "exec: bytes from disk or wire"),
    ("bench/bench_a.py", "import yaml", "yaml: bytes from disk or wire"),
])  # fmt: skip
def test_banned_names_are_found(path: str, lines: str, complaint: str) -> None:
    assert complaint in problems(path, DOC + lines + "\n")


@pytest.mark.parametrize("path, lines", [
    ("store/env/clock.py", "import time\ntime.time()"),
    ("store/env/local_folder.py", "import os, shutil, uuid\nopen('a')\nos.fsync(3)\nshutil.rmtree('a')\nuuid.uuid4()"),
    ("demo/a.py", "import time\ntime.perf_counter()\nopen('a')"),
    ("checkpoint/a.py", "import time\ntime.monotonic()"),
    ("store/a.py", "def f(store):\n    store.open()\n    store.time.time()"),
    ("__init__.py", "def open(root): ...\nopen('a')"),
    ("store/a.py", "from datetime import timedelta\ntimedelta(seconds=1)"),
    ("store/a.py", "import os\nos.path.realpath('a')\nos.getpid()"),
    ("tests/test_a.py", "import time, pickle, random\ntime.time()\nopen('a')\npickle.dumps(1)"),
])  # fmt: skip
def test_allowed_names_pass(path: str, lines: str) -> None:
    assert problems(path, DOC + lines + "\n") == ""


@pytest.mark.parametrize("shown", ["epoch", "self._epoch", "job.position", "version.safe_epoch", "barrier.curr"])
def test_errors_that_show_an_epoch_without_its_time_are_refused(shown: str) -> None:
    wrong = f"'''A.'''\nraise InvalidInput(f'at {{{shown}}}' f'and no later')\n"
    assert [problem for problem in rules.check("store/x.py", wrong) if "without its time" in problem]
    for line in (f"raise X(f'at {{show_epoch({shown})}}')", f"raise X(f'after={{{shown}}}')", f"log(f'{{{shown}}}')"):
        assert not rules.check("store/x.py", f"'''A.'''\n{line}\n")


def test_long_functions_and_modules_are_refused() -> None:
    body = "    x = 1\n"
    fits, long = (f"def f():\n{body * n}" for n in (rules.MAX_FUNCTION_LINES - 1, rules.MAX_FUNCTION_LINES))
    assert problems("store/a.py", DOC + fits) == ""
    assert "f has 61 lines" in problems("store/a.py", DOC + long)
    assert "f has 61 lines" in problems("store/a.py", DOC + "async " + long)
    assert "501 lines" in problems("store/a.py", DOC + "x = 1\n" * rules.MAX_MODULE_LINES)
    assert problems("tests/test_a.py", DOC + long + "x = 1\n" * rules.MAX_MODULE_LINES) == ""


def test_long_lines_of_pages_are_refused_but_for_tables_and_code() -> None:
    fits, long = "x" * rules.MAX_PAGE_WIDTH, "x" * (rules.MAX_PAGE_WIDTH + 1)
    text = f"{fits}\n| {long} |\n```python\n{long}\n```\n"
    assert problems("docs/a.md", text) == ""
    assert problems("docs/a.md", text + long) == "docs/a.md:6: 141 characters; a line of a page has at most 140"


@pytest.mark.parametrize("text", ["", "x = 1\n", '""" """\n', "# a comment\nimport os\n"])
def test_a_module_without_a_docstring_is_refused(text: str) -> None:
    assert "no docstring" in problems("store/a.py", text)
    assert "no docstring" in problems("tests/test_a.py", text)


@pytest.mark.parametrize("word", rules.MACHINE_WORDS)
@pytest.mark.parametrize("path", ["README.md", "Makefile", "store/a.py", "tests/test_a.py"])
def test_places_outside_the_clone_are_refused(path: str, word: str) -> None:
    assert f":2: names {word}" in problems(path, f'"""A module.\n\nSee {word}x."""\n'.replace("\n\n", "\n"))


@pytest.mark.parametrize("text, complaint", [
    ("--index-url https://example.org/simple\n", "names a place"),
    ("a==1 --hash=sha256:00\n    # via x\n# by hand\n", "names a place"),
    ("a @ file:///a.whl --hash=sha256:00\n", "names a place"),
    ("a==1\n", "not pinned"),
    ("a>=1 --hash=sha256:00\n", "not pinned"),
    ("a==1 \\\n    --hash=sha256:00\nb\n", "'b' is not pinned"),
])  # fmt: skip
def test_a_lock_that_names_places_or_lacks_hashes_is_refused(text: str, complaint: str) -> None:
    assert complaint in problems("requirements.lock", text)


@pytest.mark.parametrize("subject, complaint", [
    ("Makers of one store at once", "a subject is `area: imperative`"),
    ("store: Treat a marker as absent", "a subject is `area: imperative`"),
    ("store:treat a marker as absent", "a subject is `area: imperative`"),
    ("store: treat", "a subject is `area: imperative`"),
    ("Store: treat a marker as absent", "a subject is `area: imperative`"),
    ("store: treats a marker as absent", "'treats' is no imperative"),
    ("store: treated a marker as absent", "'treated' is no imperative"),
    ("store: treating a marker as absent", "'treating' is no imperative"),
    ("store: the marker is absent", "'the' is no imperative"),
    ("store: whoever makes a store looks for a marker", "'whoever' is no imperative"),
    ("store: treat a half-written marker as absent, as is one that is being written", "77 characters"),
    ("", "a subject is `area: imperative`"),
])  # fmt: skip
def test_subjects_that_name_no_area_or_deed_are_refused(subject: str, complaint: str) -> None:
    assert complaint in "\n".join(rules.commit_subject(subject))


@pytest.mark.parametrize("subject", [
    "store: treat a half-written marker as absent",
    "exchange/staged: pass a stage that has no channels",
    "store, cli: feed the reader before the writer",
    "docs: bring the guide up to date",
    "tests/tidy: count docstrings",
    "store: " + "x" * 20 + " " + "y" * (rules.MAX_SUBJECT - 28),
])  # fmt: skip
def test_subjects_that_follow_the_rule_pass(subject: str) -> None:
    assert not list(rules.commit_subject(subject))


def test_subjects_are_read_where_the_history_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(folder: Path, *words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        return subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True).stdout

    full, shallow, archive = tmp_path / "whole", tmp_path / "shallow", tmp_path / "archive"
    for folder in (full, archive):
        folder.mkdir()
    if shutil.which("git") is None:  # a bare machine, where there is nothing to read
        assert commit_subjects(full, "first") == []
        return
    git(full, "init", "-q")
    for subject in ("first", "second", "store: add a third"):
        git(full, "commit", "-q", "--allow-empty", "-m", f"{subject}\n\nBecause.")
    first = git(full, "rev-list", "--max-parents=0", "HEAD").strip()
    git(tmp_path, "clone", "-q", "--depth=1", full.as_uri(), str(shallow))

    assert commit_subjects(full, first) == ["store: add a third", "second"]
    assert commit_subjects(shallow, first) == []
    assert commit_subjects(archive, first) == []
    monkeypatch.setenv("PATH", str(archive))
    assert commit_subjects(full, first) == []


def test_docstrings_that_begin_indirectly_or_say_nothing_are_refused() -> None:
    text = '''"Whose module."
class A:
    "Whoever asks."
    def f(self):
        "Whether it is."
async def g():
    """
    The same, later."""
def h():
    "Whatsoever, or wholly: begin with a word that is none of these."
def i():
    """Return the keys,
    and no more."""
'''
    problems = list(rules.indirect_docstrings("store/a.py", ast.parse(text)))
    assert sorted(problems, key=lambda problem: int(problem.split(":")[1])) == [
        "store/a.py:1: the docstring of the module begins with 'Whose'; begin with a verb or a noun",
        "store/a.py:2: the docstring of A begins with 'Whoever'; begin with a verb or a noun",
        "store/a.py:4: the docstring of f begins with 'Whether'; begin with a verb or a noun",
        "store/a.py:6: the docstring of g begins with 'The same'; begin with a verb or a noun",
        "store/a.py:11: the docstring of i says 'and no more'; say what is meant",
    ]
