"""The house rules as pure functions: a file's path and text go in, sentences about what is wrong come out."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from functools import cache, lru_cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import PurePosixPath

MAX_FUNCTION_LINES = 60
MAX_MODULE_LINES = 500
MAX_PAGE_WIDTH = 140

# Folders and modules, lowest first: a module imports from its own place and from those above it in this list. The demo
# uses the library as its users do.
LAYERS = (
    "version",
    "errors",
    "lazy",
    "store/env",
    "store/types",
    "store/catalog",
    "store/sst",
    "store/metadata",
    "checkpoint/manager/job_graph",
    "store/epochs",
    "store/session",
    "store/retention",
    "store/scan",
    "store/changelog",
    "store/compaction",
    "store/commit",
    "store/backup",
    "store/maintenance",
    "store/verify",
    "store",
    "exchange/transport",
    "exchange/stage_gate",
    "exchange/flight",
    "exchange/subscription",
    "exchange/staged",
    "exchange/server",
    "exchange/client",
    "exchange",
    "checkpoint/control_messages",
    "checkpoint/job",
    "checkpoint/log_source",
    "checkpoint/manager",
    "checkpoint/coordinator",
    "checkpoint/worker",
    "checkpoint/pipeline",
    "checkpoint",
    "batch",
    "views",
    "lineage",
    "spark",
    "src",
    "table",
    "transaction",
    "snapshot",
    "job",
    "view",
    "pipeline",
    "store_jobs",
    "api",
    "facts/text",
    "facts",
    "page",
    "serving",
    "demo",
    "__init__",
    "cli/grammar",
    "cli/render",
    "cli/session",
    "cli/confirmation",
    "cli/signals",
    "cli/commands",
    "cli",
    "__main__",
    "testing",
)
RANKS = {place: rank for rank, place in enumerate(LAYERS)}
PACKAGES = (
    "store",
    "exchange",
    "checkpoint",
    "batch",
    "views",
    "lineage",
    "spark",
    "facts",
    "page",
    "cli",
    "demo",
    "testing",
)
OUTSIDE = ("tests", "bench", "examples", "docs", "scripts", "typings")

# Variables and attributes that hold epochs, whatever they are of.
EPOCHS = re.compile(r"_?(\w+_)?(epoch|position|until|through)|safe|curr|prev|log_start|known_from")

# What may be imported only in some places (fnmatch patterns of paths); everywhere else in the library it is refused.
IMPORT_HOMES = {
    "pyspark": (
        "spark/*.py",
        "src/pyspark_*.py",
        "api.py",
        "store_jobs.py",
        "job.py",
        "view.py",
        "pipeline.py",
        "snapshot.py",
        "demo/*.py",
        "__main__.py",
    ),
    "pyarrow.flight": ("exchange/*.py",),
    "lmdb": ("store/catalog/lmdb/catalog.py",),
    "redis": ("store/catalog/redis/*.py", "exchange/*.py"),
    "duckdb": ("batch/*.py", "views/*.py", "demo/*.py"),
    "sqlglot": ("views/*.py",),
    "openlineage": ("lineage/*.py", "api.py"),
    "polars": ("batch/*.py", "table.py", "store/types/schema.py"),
    "matplotlib": ("demo/*.py",),
    "rich": ("demo/*.py", "cli/*.py"),
}

WALL_CLOCK = (
    "time.time",
    "time.time_ns",
    "time.gmtime",
    "time.localtime",
    "time.ctime",
    "time.clock_gettime*",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
)
CHANCE = ("random", "random.*", "secrets", "secrets.*", "uuid.uuid[14]", "os.urandom", "os.getrandom", "numpy.random*")
FILE_WORK = (
    "open",
    "io.open",
    "os.open",
    "os.rename*",
    "os.replace",
    "os.remove*",
    "os.unlink",
    "os.rmdir",
    "os.mkdir",
    "os.makedirs",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.ftruncate",
    "os.listdir",
    "os.scandir",
    "os.walk",
    "os.fsync",
    "os.fdatasync",
    "os.sync",
    "shutil",
    "shutil.*",
    "tempfile",
    "tempfile.*",
    "mmap.*",
    "pyarrow.OSFile",
    "pyarrow.memory_map",
    "pyarrow.create_memory_map",
)
UNTRUSTED = (
    "pickle",
    "pickle.*",
    "cloudpickle",
    "cloudpickle.*",
    "dill",
    "dill.*",
    "marshal",
    "marshal.*",
    "shelve",
    "shelve.*",
    "yaml",
    "yaml.*",
    "eval",
    "exec",
)


CHANCE_HOMES = (
    "exchange/staged/client.py",
    "exchange/staged/pull_client.py",
    "exchange/flight/tickets.py",
    "page/sessions.py",
    "store/env/local_folder.py",
    "store/session/bootstrap.py",
    "store/session/handle.py",
    "store/session/leases.py",
    "store/session/write_intents.py",
    "store/env/paths.py",
    "store/catalog/redis/*.py",
    "store/sst/segment_writer.py",
    "views/compiled_plan.py",
    "testing/*.py",
)
KEY_PREFIX = re.compile(rb"(consumer|gone|hist|hold|intent|job|lease|load|log|made|runs|table|trace|txn|txnapp|used)/")
VAGUE_NAMES = frozenset({"found", "one", "told"})
OTHER_WORDS = {
    "pace": ("checkpoint interval",),
    "stop": ("boundary",),
    "stand": ("position",),
    "made": ("staged segment",),
    "unfolded": ("log, L0 log",),
    "piece": ("subcompaction", "split", "backfill chunk"),
    "floor": ("safe epoch",),
    "upkeep": ("maintenance",),
    "gone": ("unreachable file",),
    "let go": ("unreachable file",),
    "door": ("table snapshot",),
    "rest": ("backoff",),
}
"""Words that no name of the library has, each with the glossary's terms for it: its column 'never'."""
OWN_WORDS = (
    ("*", "stop", "_stop", "stop_*", "_stop_*", "ends a process or a job, as `job.stop()`, or a Python range"),
    ("store/metadata/definitions.py", "pieces", "field of the stored cursor of a backfill"),
    ("store/compaction/trace.py", "pieces", "field of the stored trace of a compaction"),
    ("store/env/log_events.py", "door", "field of a log event"),
    ("docs/observability/README.md", "door", "label of two metrics, and field of a log event"),
)
"""Names that keep a word of OTHER_WORDS: a path, the names there (fnmatch patterns), and the reason."""
PROSE = re.compile(
    r"\b(doors?|pieces?|upkeep|unfolded|(?:let|lets|letting)(?: it| them)? go|(?<=\b(?:its|the) )stand)\b",
    re.IGNORECASE,
)
"""Words of OTHER_WORDS that texts do not have either. The others are plain English too: rows made by a commit."""
DECISION_HOMES = {
    "next_barrier": ("checkpoint/log_source/log_barriers.py",),
    "due_barrier": ("checkpoint/job/next_step.py", "checkpoint/job/wait_reasons.py"),
    "is_caught_up": ("checkpoint/job/next_step.py",),
    "failed": ("checkpoint/job/driver.py",),
    "JobCommit": ("checkpoint/job/runner.py",),
    "JobProtocol": ("checkpoint/manager/manager.py",),
    "CheckpointManager": (
        "checkpoint/__init__.py",
        "checkpoint/coordinator/decision_executor.py",
    ),
}
"""Functions that decide about the commits of jobs, and the files that may import them."""
BUILTINS = {"open": "open", "eval": "eval", "exec": "exec"}


class Ban:
    """Names that may be used only in the listed files, and why."""

    def __init__(self, why: str, names: tuple[str, ...], homes: tuple[str, ...] = ()) -> None:
        self.why = why
        self.names = names
        self.homes = homes

    def is_home(self, path: str) -> bool:
        return any(fnmatch(path, home) for home in self.homes)


BANS = (
    Ban("the clock is injected; only store/env/clock.py asks the machine", WALL_CLOCK, ("store/env/clock.py",)),
    Ban(
        "real time is for timeouts and displays",
        ("time.monotonic*", "time.perf_counter*", "time.process_time*"),
        ("store/env/clock.py", "checkpoint/*.py", "demo/*.py"),
    ),
    Ban("wait for a condition, with a timeout, not for time to pass", ("time.sleep",)),
    Ban("chance makes names, ids, keys and tests, nothing else", CHANCE, CHANCE_HOMES),
    Ban(
        "only store/env/local_folder.py opens, syncs, renames, lists and deletes files",
        FILE_WORK,
        (
            "store/env/local_folder.py",
            "store/catalog/lmdb/catalog.py",
            "store/catalog/lmdb/reader.py",
            "exchange/transport/tokens.py",
            "demo/*.py",
            "cli/main.py",
            "cli/render/out_file.py",
            "testing/*.py",
        ),
    ),
    Ban(
        "only store/env/filesystem.py and arrow_files.py speak to file systems (store/sst/guarantees.py hands pyarrow "
        "one, to ask it about statistics)",
        ("pyarrow.fs", "pyarrow.fs.*"),
        ("store/env/filesystem.py", "store/env/arrow_files.py", "store/sst/guarantees.py"),
    ),
    Ban("bytes from disk or wire are never executed", UNTRUSTED, ("testing/filesystem_conformance.py",)),
    Ban(
        "only store/metadata/commit_log.py reads and writes the log and the remembered commits",
        tuple(f"epochlog.store.catalog.keys.{name}" for name in ("log_key", "hist_key", "LOG_PREFIX", "HIST_PREFIX")),
        ("store/metadata/commit_log.py",),
    ),
)
BANS_OUTSIDE = (
    Ban("bytes from disk or wire are never executed", ("marshal.*", "shelve.*", "yaml*", "eval", "exec")),
    Ban("a view is judged by its text as it was given (tests/support/spark_text.py)", ("sqlglot.transpile",)),
)

# The subjects of commits after this one follow the rule of CONTRIBUTING.md; those before it are left as they are.
FIRST_SUBJECT_AFTER = "e5a8db795adb22a7b55f1c77daf25db76d41c496"
MAX_SUBJECT = 72
SUBJECT = re.compile(r"(?P<area>[a-z0-9][\w./-]*(, [\w./-]+)*): (?P<verb>[a-z][a-z-]*) \S.*")
# Forms of verbs that are no imperatives (adds, added, adding), and words that are no verbs.
NOT_IMPERATIVE = re.compile(
    r"(?!(bring|ring|string|embed|shed|shred|focus|bias|alias)\b)"
    r"(\w*([^s]s|[^e]ed|ing)|an?|the|this|that|these|no|not|now|one|some|all|each|every|it|its|what|who\w*|how|where|when|which)"
)

# Words that a docstring does not begin with: a function's begins with a verb, a class's and a module's with a noun.
INDIRECT = re.compile(
    r"(what|whatever|who|whoever|whom|whose|whether|how|where|when|which|why|nothing|the same)\b", re.IGNORECASE
)
# Words that a docstring says nowhere: they send the reader back, or say nothing.
EMPTY = re.compile(r"\b(as above|and no more)\b", re.IGNORECASE)

# Written in pieces, so that this file does not break its own rule.
MACHINE_WORDS = tuple(
    a + b
    for a, b in (
        ("/wo", "rk/"),
        ("../sha", "red"),
        ("/ro", "ot/"),
        ("/ho", "me/"),
        ("/opt/py", "pi"),
        ("/tmp/ve", "nv"),
        ("/tmp/pl", "an"),
        ("/tmp/e", "pl"),
    )
)


def layer(path: str) -> str | None:
    """The layer of a library file ("store", "api", ...); None for tests, bench and the like."""
    top, _, subfolders = path.partition("/")
    if top in OUTSIDE or top.startswith("."):
        return None
    return top if subfolders else PurePosixPath(path).stem


@lru_cache(maxsize=1)
def parse(path: str, text: str) -> ast.Module:
    return ast.parse(text, filename=path)


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return a tree's nodes but for contexts; each rule goes over all of them, and walking is what takes the time."""
    walked = [tree]
    for node in walked:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                walked += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                walked.append(value)
    return tuple(walked)


def place(path: str) -> str | None:
    """Find the place in LAYERS that a path without its ending lies in: the longest that begins it."""
    parts = PurePosixPath(path).parts
    return next((at for n in range(len(parts), 0, -1) if (at := "/".join(parts[:n])) in RANKS), None)


def imports(path: str, tree: ast.AST) -> Iterator[tuple[int, str | None, str, int]]:
    """List every import as (line, place in LAYERS that it reaches or None, dotted name, dots that it was written with).

    An import of the root package itself (`from epochlog import open`) reaches `__init__`.
    """
    folder = PurePosixPath(path).parts[:-1]
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, reached(alias.name.split(".")), alias.name, 0
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                names = [*(node.module or "").split("."), alias.name]
                yield node.lineno, reached(names), ".".join(names), 0
        elif isinstance(node, ast.ImportFrom):
            base = (*folder[: len(folder) - (node.level - 1)], *(node.module.split(".") if node.module else ()))
            for alias in node.names:
                names = ["epochlog", *base, alias.name]
                yield node.lineno, reached(names), ".".join(names[1:]), node.level


def reached(names: list[str]) -> str | None:
    """Find the place in LAYERS that an import by these names reaches; None outside the library."""
    return (place("/".join(names[1:])) or "__init__") if names[0] == "epochlog" else None


def import_direction(path: str, tree: ast.Module) -> Iterator[str]:
    """Refuse imports of what lies higher, and relative ones that leave the module's own folder."""
    if layer(path) is None:
        return
    importer = place(path.removesuffix(".py"))
    if importer is None:
        yield f"{path}: no layer is known for it; add it to LAYERS with its rank"
        return
    for line, at, name, dots in imports(path, tree):
        if dots > 1:
            yield f"{path}:{line}: write `from epochlog.…`; relative imports stay in their own folder"
        if at is not None and RANKS[at] > RANKS[importer] and not (importer == "demo" and at == "__init__"):
            yield f"{path}:{line}: {importer} imports {name} of the higher layer {at}"


def import_cycles(trees: dict[str, ast.Module]) -> Iterator[str]:
    """Refuse modules of the library that import each other in a circle, those for type checkers alone counted too."""
    modules = {path.removesuffix(".py").replace("/", "."): path for path in trees if layer(path) is not None}
    graph: dict[str, set[str]] = {
        module: {
            imported
            for _, at, name, _ in imports(path, trees[path])
            if at is not None
            for target in (name.removeprefix("epochlog."),)
            for imported in (target, target.rpartition(".")[0])
            if imported in modules and imported != module
        }
        for module, path in modules.items()
        if not path.endswith("__init__.py")
    }
    sorter = TopologicalSorter(graph)
    try:
        sorter.prepare()
    except CycleError as error:
        yield f"these import each other: {' <- '.join(error.args[1])}"


def repeated_class_names(trees: dict[str, ast.Module]) -> Iterator[str]:
    """Refuse two public classes of the library with one name, and a public class elsewhere with a library's name."""
    homes: dict[str, str] = {}

    def in_library(path: str) -> bool:
        return layer(path) is not None or path.startswith("testing/")

    for path, tree in sorted(trees.items(), key=lambda item: (not in_library(item[0]), item[0])):
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                if path.startswith("src/") and node.name == "DefaultSource":  # so Spark wants it
                    continue
                if node.name in homes:
                    yield f"{path}:{node.lineno}: {homes[node.name]} has a class {node.name} too; rename one of them"
                elif in_library(path):
                    homes[node.name] = path


def shared_helpers(trees: dict[str, ast.Module]) -> Iterator[str]:
    """Refuse a helper of one folder of tests that another folder imports: it belongs to tests/support."""
    parts = {path: path.split("/") for path in trees if path.startswith("tests/") and path.count("/") > 1}
    folders = {folder for _, folder, *_ in parts.values()}
    for path, (_, own_folder, *_) in sorted(parts.items()):
        for node in nodes(trees[path]):
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                folder, _, module = node.module.partition(".")
                if module and folder in folders - {own_folder}:
                    yield f"{path}:{node.lineno}: move tests/{folder}/{module}.py to tests/support, which all tests use"


def decision_homes(path: str, tree: ast.Module) -> Iterator[str]:
    """Refuse a second place that decides about the commits of jobs: all runners go through the first one."""
    if layer(path) is None:
        return
    for node in nodes(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
        for name in DECISION_HOMES.keys() & names:
            homes = DECISION_HOMES[name]
            if not any(fnmatch(path, home) for home in homes):
                assert isinstance(node, ast.ImportFrom)
                yield f"{path}:{node.lineno}: {name} decides for all runners, from {' and '.join(homes)} only"


def vague_names(path: str, tree: ast.Module) -> Iterator[str]:
    """Refuse names of variables, parameters, attributes and functions that say nothing."""
    fields = {ast.Name: "id", ast.arg: "arg", ast.Attribute: "attr", ast.FunctionDef: "name"}
    for node in nodes(tree):
        name = getattr(node, fields.get(type(node), ""), None)
        if name in VAGUE_NAMES:
            assert isinstance(node, ast.expr | ast.arg | ast.FunctionDef)
            yield f"{path}:{node.lineno}: {name!r} says nothing; name the thing that it holds"


def keeps_word(path: str, name: str) -> bool:
    """Return True if a name keeps a word of OTHER_WORDS there."""
    return any(fnmatch(path, place) and any(fnmatch(name, own) for own in names) for place, *names, _ in OWN_WORDS)


@cache
def other_words(name: str) -> frozenset[str]:
    """Return the words of OTHER_WORDS in a name, by whole words of snake_case and CamelCase, plurals too."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    both = (*words, *map(" ".join, pairwise(words)))
    return frozenset(both).union(word.removesuffix("s") for word in both) & OTHER_WORDS.keys()


def given_names(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the names that a module gives, with their lines: its own, and those of definitions and variables."""
    yield 1, PurePosixPath(path).stem
    fields = {ast.arg: "arg", ast.FunctionDef: "name", ast.AsyncFunctionDef: "name", ast.ClassDef: "name"}
    fields |= {ast.alias: "asname", ast.Name: "id", ast.Attribute: "attr"}
    fields |= {ast.ExceptHandler: "name", ast.MatchAs: "name", ast.MatchStar: "name", ast.MatchMapping: "rest"}
    for node in nodes(tree):
        name = getattr(node, fields.get(type(node), ""), None)
        if name and not isinstance(getattr(node, "ctx", None), ast.Load):
            assert isinstance(node, ast.expr | ast.arg | ast.stmt | ast.alias | ast.excepthandler | ast.pattern)
            yield node.lineno, name


def words_of_names(path: str, tree: ast.Module) -> Iterator[str]:
    """Refuse names that the library gives with a word for which the glossary has another."""
    if layer(path) is None:
        return
    for line, name in given_names(path, tree):
        for word in other_words(name):
            if not keeps_word(path, name):
                yield f"{path}:{line}: {name!r}: {word!r} is {' or '.join(OTHER_WORDS[word])!r} in docs/GLOSSARY.md"


def texts_of_module(text: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the comments, docstrings and messages of a module, with the lines at which they begin. A string without a
    space is no text: it is a key, a label or a field.
    """
    for node in nodes(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    for number, line in enumerate(text.splitlines(), start=1):
        yield number, line.partition("# ")[2]


def texts_of_page(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page without its code."""
    fenced = False
    for number, line in enumerate(text.splitlines(), start=1):
        fenced ^= line.lstrip().startswith("```")
        if not fenced:
            yield number, re.sub(r"`[^`]*`", "", line)


def words_of_texts(path: str, texts: Iterable[tuple[int, str]]) -> Iterator[str]:
    """Refuse words of PROSE in the texts of the library and in pages."""
    if (layer(path) is None and not path.startswith("docs/")) or path == "CHANGELOG.md":
        return
    for line, text in texts:
        for match in PROSE.finditer(text):
            if not keeps_word(path, match[0]):
                at = line + text[: match.start()].count("\n")
                yield f"{path}:{at}: {match[0]!r}: docs/GLOSSARY.md has another word for it"


def catalog_prefixes(path: str, tree: ast.Module) -> Iterator[str]:
    """Refuse prefixes of catalog keys that are written out of `store/catalog/keys.py`."""
    if layer(path) is None or path == "store/catalog/keys.py":
        return
    for node in nodes(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, bytes) and KEY_PREFIX.match(node.value):
            yield f"{path}:{node.lineno}: take the prefix {node.value!r} from store/catalog/keys.py"


def import_homes(path: str, tree: ast.Module) -> Iterator[str]:
    """Some packages are known to some modules only: the store knows nothing of Spark or Flight."""
    if layer(path) is None:
        return
    for line, at, name, _ in imports(path, tree):
        if at is not None:
            continue
        for package, homes in IMPORT_HOMES.items():
            inside = f"{name}.".startswith(f"{package}.")
            if inside and not any(fnmatch(path, home) for home in homes):
                yield f"{path}:{line}: {package} may be imported in {', '.join(homes)} only"


def banned_names(path: str, tree: ast.Module) -> Iterator[str]:
    """Names used outside their one module, whether called, passed on or renamed by an import."""
    bans = BANS_OUTSIDE if layer(path) is None else BANS
    for line, name in used_names(tree):
        for ban in bans_of(name, bans):
            if not ban.is_home(path):
                yield f"{path}:{line}: {name}: {ban.why}"


@cache
def bans_of(name: str, bans: tuple[Ban, ...]) -> tuple[Ban, ...]:
    """List the bans of a name. Few names are used many times, and matching them is slow."""
    return tuple(ban for ban in bans if any(fnmatch(name, banned) for banned in ban.names))


def used_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each name that is used, seen through `import a as b` and `from a import b as c`."""
    known = dict(BUILTINS)
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                known[alias.asname or top] = alias.name if alias.asname else top
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node in tree.body:
            known.pop(node.name, None)
    for node in nodes(tree):
        if isinstance(node, ast.Attribute | ast.Name) and (name := dotted(node, known)):
            yield node.lineno, name


def dotted(node: ast.AST, known: dict[str, str]) -> str | None:
    """`t.time` with t = time -> "time.time"; None when the expression does not begin with an imported name."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute) and (head := dotted(node.value, known)):
        return f"{head}.{node.attr}"
    return None


def lengths(path: str, text: str, tree: ast.Module) -> Iterator[str]:
    """Functions fit on a screen; a module has one reason to exist."""
    if layer(path) is None:
        return
    count = text.count("\n")
    if count > MAX_MODULE_LINES:
        yield f"{path}: {count} lines; above {MAX_MODULE_LINES} a module is two"
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > MAX_FUNCTION_LINES:
                location = f"{path}:{node.lineno}: {node.name}"
                yield f"{location} has {size} lines; above {MAX_FUNCTION_LINES} a function is two"


def page_width(path: str, text: str) -> Iterator[str]:
    """Refuse long lines of a page, but for tables and blocks of code, which cannot be broken."""
    fenced = False
    for number, line in enumerate(text.splitlines(), start=1):
        fenced ^= line.lstrip().startswith("```")
        if len(line) > MAX_PAGE_WIDTH and not fenced and not line.startswith("|"):
            yield f"{path}:{number}: {len(line)} characters; a line of a page has at most {MAX_PAGE_WIDTH}"


def docstring(path: str, tree: ast.Module) -> Iterator[str]:
    """Every module says in its first line why it exists."""
    if not (ast.get_docstring(tree) or "").strip():
        yield f"{path}: the module has no docstring; its first line says its one reason to exist"


def bare_epochs(path: str, tree: ast.Module) -> Iterator[str]:
    """An error that names an epoch tells its time too, but where it shows code (`after=…`)."""
    if layer(path) is None:
        return
    for raised in (node for node in nodes(tree) if isinstance(node, ast.Raise)):
        for text in (node for node in ast.walk(raised) if isinstance(node, ast.JoinedStr)):
            before = ""
            for part in text.values:
                shown = part.value if isinstance(part, ast.FormattedValue) and part.conversion == -1 else None
                name = shown.id if isinstance(shown, ast.Name) else getattr(shown, "attr", "")
                if EPOCHS.fullmatch(name) and not before.endswith("="):
                    yield f"{path}:{text.lineno}: {name} is shown without its time; write show_epoch({name})"
                before = str(part.value) if isinstance(part, ast.Constant) else ""


def machine_words(path: str, text: str) -> Iterator[str]:
    """List the lines that name a path of the machine on which they were written."""
    for number, line in enumerate(text.splitlines(), start=1):
        for word in MACHINE_WORDS:
            if word in line:
                yield f"{path}:{number}: names {word}, a place outside the clone"


def lock_lines(path: str, text: str) -> Iterator[str]:
    """A lock file pins versions and hashes and names no registry: that is the installing machine's choice."""
    for number, line in enumerate(text.splitlines(), start=1):
        if re.search(r"https?:|file:|--(index|extra-index|find-links|trusted)|@ |^#", line):
            yield f"{path}:{number}: {line.strip()!r} names a place; only `name==version` and hashes belong here"
    for pin in re.split(r"\n(?=\S)", text.strip()):
        if not re.match(r"[a-z0-9][a-z0-9._-]*==\S+", pin) or "--hash=sha256:" not in pin:
            yield f"{path}: {pin.splitlines()[0]!r} is not pinned by version and hash"


def commit_subject(subject: str) -> Iterator[str]:
    """Refuse the subject of a commit that is not `area: imperative` in at most MAX_SUBJECT characters."""
    if len(subject) > MAX_SUBJECT:
        yield f"{subject!r}: {len(subject)} characters; a subject has at most {MAX_SUBJECT}, the why goes into the body"
    match = SUBJECT.fullmatch(subject)
    if match is None:
        yield f"{subject!r}: a subject is `area: imperative`, as in `store: refuse a key that is null`"
    elif NOT_IMPERATIVE.fullmatch(match["verb"]):
        yield f"{subject!r}: {match['verb']!r} is no imperative; say what the commit does: `add`, `refuse`, `name`"


def indirect_docstrings(path: str, tree: ast.Module) -> Iterator[str]:
    """Refuse docstrings that begin with a word of INDIRECT, or have words of EMPTY."""
    for node in nodes(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            line, name = (1, "the module") if isinstance(node, ast.Module) else (node.lineno, node.name)
            if match := INDIRECT.match(text):
                yield f"{path}:{line}: the docstring of {name} begins with {match[0]!r}; begin with a verb or a noun"
            if match := EMPTY.search(text):
                yield f"{path}:{line}: the docstring of {name} says {match[0]!r}; say what is meant"


TREE_RULES: tuple[Callable[[str, ast.Module], Iterator[str]], ...] = (
    import_direction,
    import_homes,
    banned_names,
    vague_names,
    words_of_names,
    catalog_prefixes,
    docstring,
    indirect_docstrings,
    bare_epochs,
    decision_homes,
)


def check(path: str, text: str) -> list[str]:
    """Everything that is wrong with one file; `path` is relative to the root of the repository, with slashes."""
    problems = list(machine_words(path, text))
    if path.endswith(".md"):
        problems += page_width(path, text)
        problems += words_of_texts(path, texts_of_page(text))
    if path.endswith(".lock"):
        problems += lock_lines(path, text)
    if path.endswith(".py"):
        tree = parse(path, text)
        problems += [problem for rule in TREE_RULES for problem in rule(path, tree)]
        problems += words_of_texts(path, texts_of_module(text, tree))
        problems += lengths(path, text, tree)
    return problems
