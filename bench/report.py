"""The figures as tables in docs/PERFORMANCE.md: medians, ratios, targets, hit or miss, and what they ran on."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter

from pairs import Samples, ratio
from peers import PEERS
from plots import Panel, Plot, draw

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
PACKAGES = ("deltalake", "duckdb", "lmdb", "numpy", "pyarrow", "pylance", "pyspark", "rocksdict")
BASE, STRING, COMPOSITE, WIDE, LARGE = SHAPES = (
    "",
    "string key",
    "composite key (string, timestamp)",
    "wide rows (50 columns)",
    "20 M rows",
)
"""What the rows of a figure are like; the first is an int64, a float64 and a short string, of the usual number."""
_OF_ANY_SHAPE = {"P1": 1, "P2": 3, "P3": 2, "P4": 1, "P5": 1, "P7": 1, "P8": 6, "P10": 1}
_SEVERAL = {
    "P2": 4,
    "P3": 2,
    "P8": 6,
    "P9": 3,
    "P10": 3,
    "P14": 2,
    "P15": 3,
    "P16": 2,
    "P19": 2,
    "P20": 2,
    "P21": 8,
    "P22": 2,
    "P23": 4,
    "P24": 3,
    "P25": 2,
    "P26": 10,
    "P27": 13,
    "P28": 10,
}
_WHOLE = {
    BASE: {name: _SEVERAL.get(name, 1) for name in (f"P{number}" for number in (*range(1, 18), *range(19, 30)))},
    STRING: _OF_ANY_SHAPE,
    COMPOSITE: _OF_ANY_SHAPE,
    WIDE: {**_OF_ANY_SHAPE, "P7": 2},
    LARGE: {"P1": 1, "P2": 6, "P5": 3, "P7": 2, "P10": 2},
}
_AT_FULL_SIZE = {"P13": 1, "P14": 2, "P16": 2, "P18": 1, "P21": 16}
"""Further figures, of benches that start many Spark drivers or take long."""
PLOTS = "performance"
PAGE_WIDTH = 140
CONDITIONS = (
    'Whatever is timed and writes ran with `durability="disk"`. Checksums are on: of all that is written, '
    "and of a file when a process first reads it, which is before the clock starts where reads are repeated. "
    "Peers ran at their documented defaults."
)


def whole(scale: float) -> dict[tuple[str, str], int]:
    """Count the figures of each kind (shape and number) in a complete run; below the full size there are neither TPC-H
    nor jobs of Spark drivers.
    """
    rows = {(shape, each): count for shape, counts in _WHOLE.items() for each, count in counts.items()}
    if scale < 1:
        return rows
    return rows | {(BASE, each): rows.get((BASE, each), 0) + count for each, count in _AT_FULL_SIZE.items()}


@dataclass(frozen=True, slots=True)
class Target:
    """The median of paired ratios of `ours` to `peer` must be at most this; without a peer, the median of `ours`."""

    ours: str
    peer: str | None
    at_most: float
    says: str  # the target as people write it


@dataclass(frozen=True, slots=True)
class Figure:
    """Samples (in ms unless `unit` says otherwise) of everybody who took part, and what must be reached.

    absent: who could not take part, and why; their targets are not judged.
    """

    id: str
    what: str
    samples: Samples
    targets: tuple[Target, ...]
    unit: str = "ms"
    shape: str = BASE
    absent: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.shape in SHAPES, f"no such shape: {self.shape}"

    def judged(self, target: Target) -> float:
        """Return the figure that the target bounds: a median time, or a ratio to the peer's."""
        if target.peer is None:
            return statistics.median(self.samples[target.ours])
        return ratio(self.samples, target.ours, target.peer)


@dataclass(slots=True)
class Book:
    """The figures of one run of `make bench`, written to the file of results as they come."""

    scale: float = 1.0
    results: Path | None = None
    figures: list[Figure] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)  # bench files, and what stopped them
    earlier: list[str] = field(default_factory=list)  # revisions of the runs that this one goes on with
    load_at_start: float = field(default_factory=lambda: os.getloadavg()[0])
    started_s: float = field(default_factory=perf_counter)

    def go_on(self, path: Path) -> None:
        """Begin with what a run has left that ended early, on the same machine and of the same scale; what is measured
        again takes its place. ValueError for any other file.
        """
        results = json.loads(path.read_text("utf-8"))
        here = list(environment())
        if results["scale"] != self.scale or results["environment"][::2] != here[::2]:
            there = f"{results['scale']:g}; {results['environment']}, not {self.scale:g}; {here}"
            raise ValueError(f"{path} is of another scale, machine or versions: {there}")
        self.earlier = [*results["earlier"], results["environment"][-1].removeprefix("Revision: ")]
        for kept in results["figures"]:
            self.figures.append(Figure(**{**kept, "targets": tuple(Target(**target) for target in kept["targets"])}))
        for kept in results["plots"]:
            self.plots.append(Plot(**{**kept, "panels": [Panel(**panel) for panel in kept["panels"]]}))

    def add(self, figure: Figure) -> None:
        kind = figure.shape, figure.id, figure.what
        others = [each for each in self.figures if (each.shape, each.id, each.what) != kind]
        self.figures = sorted([*others, figure], key=lambda each: (SHAPES.index(each.shape), int(each.id[1:])))
        self.save()

    def plot(self, plot: Plot) -> None:
        self.plots = [*(each for each in self.plots if each.name != plot.name), plot]
        self.save()

    def fail(self, file: str, why: str) -> None:
        """Keep the first reason; those that follow come of it."""
        self.failures.setdefault(file, why)
        self.save()

    def save(self) -> None:
        """All that is known by now, so that a run that ends early leaves what it measured."""
        if self.results is None:
            return
        results = {"scale": self.scale, "environment": environment(), "failures": self.failures}
        results |= {"missing": self.missing(), "figures": [asdict(figure) for figure in self.figures]}
        results |= {"plots": [asdict(plot) for plot in self.plots], "earlier": self.earlier}
        self.results.parent.mkdir(parents=True, exist_ok=True)
        partial = self.results.with_suffix(".tmp")
        partial.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")
        partial.replace(self.results)

    def missing(self) -> list[str]:
        """The rows that a whole run has and this one has not."""
        counts = Counter((figure.shape, figure.id) for figure in self.figures)
        lacking = {kind: count for kind, count in whole(self.scale).items() if counts[kind] < count}
        return [
            f"{each}{f' ({counts[shape, each]} of {count})' if count > 1 else ''}{f', {shape}' if shape else ''}"
            for (shape, each), count in lacking.items()
        ]

    def complaints(self) -> list[str]:
        """List the missing figures of a complete run, and the failures that stopped it."""
        missing = self.missing()
        lines = [f"missing: {'; '.join(missing)}"] if missing else []
        return [*lines, *(f"failed: {file}: {why}" for file, why in self.failures.items())]

    def verdicts(self) -> list[str]:
        """A table of what is judged, for each shape of rows."""
        head = ["| | what | epochlog | beside | its figure | ratio | target | |", "|---|---|--:|---|--:|--:|--:|---|"]
        return self._tables(head, _verdicts)

    def medians(self) -> list[str]:
        head = ["| | what | who | median | quartiles | samples |", "|---|---|---|--:|--:|--:|"]
        return self._tables(head, _medians)

    def _tables(self, head: list[str], rows: Callable[[Figure], Iterable[list[str]]]) -> list[str]:
        lines = []
        for shape in SHAPES:
            figures = [figure for figure in self.figures if figure.shape == shape]
            table_lines = [f"| {' | '.join(cells)} |" for figure in figures for cells in rows(figure)]
            if table_lines:
                lines += [*([""] if lines else []), *([f"**{shape}**", ""] if shape else []), *head, *table_lines]
        return lines

    def write(self, path: Path, command: str) -> None:
        """Everything between the file's markers, and the plots in the folder `performance` beside it."""
        for plot in self.plots:
            draw(plot, path.parent / PLOTS / plot.file)
        write_between(path, self.render(command))

    def render(self, command: str) -> str:
        size = "the full size" if self.scale == 1 else f"{self.scale:g} of the full size: no figures of record"
        took_s = perf_counter() - self.started_s
        took = f"{took_s / 60:.0f} minutes" if took_s >= 90 else f"{took_s:.0f} seconds"
        runs = f"in one run of {took}"
        if self.earlier:
            before = ", ".join(self.earlier)
            runs = f"in {len(self.earlier) + 1} runs, each going on where the one before had ended (revision {before})"
        return "\n".join(
            [
                *self.verdicts(),
                "",
                wrapped(f"Measured at {size}, {runs}. To measure again: `{command}`. {CONDITIONS}"),
                "",
                *(wrapped(f"- **Not a whole run**, {line}") for line in self.complaints()),
                *(wrapped(f"- {line}") for line in [*environment(), load(self.load_at_start)]),
                *(line for plot in self.plots for line in ("", f"![{plot.title}]({PLOTS}/{plot.file})")),
                "",
                "All medians of the same run:",
                "",
                *self.medians(),
            ]
        )


def wrapped(line: str) -> str:
    """Wrap a line of a page at its widest, with the later lines of an item indented."""
    indent = "  " if line.startswith("- ") else ""
    return textwrap.fill(line, PAGE_WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _verdicts(figure: Figure) -> Iterator[list[str]]:
    for target in figure.targets:
        what = figure.what if target.ours == "epochlog" else f"{figure.what} ({target.ours})"
        if why := figure.absent.get(target.peer or ""):
            ours = shown(figure, target.ours)
            yield [figure.id, what, ours, target.peer or "–", why, "–", target.says, "not judged"]
            continue
        reached = figure.judged(target)
        ours, theirs = (shown(figure, name) for name in (target.ours, target.peer))
        verdict = "hit" if reached <= target.at_most else "**miss**"
        compared = "–" if target.peer is None else f"{reached:.3g}"
        yield [figure.id, what, ours, target.peer or "–", theirs, compared, target.says, verdict]


def _medians(figure: Figure) -> Iterator[list[str]]:
    for name, samples in figure.samples.items():
        low, middle, high = (_number(cut) for cut in quartiles(samples))
        yield [figure.id, figure.what, name, f"{middle} {figure.unit}", f"{low} – {high}", str(len(samples))]
    for name, why in figure.absent.items():
        yield [figure.id, figure.what, name, why, "–", "0"]


def quartiles(samples: list[float]) -> tuple[float, float, float]:
    if len(samples) < 2:
        return samples[0], samples[0], samples[0]
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, middle, high


def _number(figure: float) -> str:
    digits = next((digits for top, digits in ((1, 3), (10, 2), (100, 1)) if figure < top), 0)
    return f"{figure:.{digits}f}"


def shown(figure: Figure, name: str | None) -> str:
    """Return the median of a contender with its unit; a dash without one."""
    return "–" if name is None else f"{_number(statistics.median(figure.samples[name]))} {figure.unit}"


def write_between(path: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Put the text between the file's markers; what stands around them stays."""
    old = path.read_text("utf-8") if path.exists() else f"{begin}\n{end}\n"
    if old.count(begin) != 1 or old.count(end) != 1:
        raise ValueError(f"{path} must hold the lines {begin} and {end} once each")
    path.parent.mkdir(parents=True, exist_ok=True)
    before, rest = old.split(begin)
    path.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}", "utf-8")


# ---- what it ran on ------------------------------------------------------------------------------------------------


@cache
def write_from_results(write: Callable[[Path, Iterable[Figure]], None], results: Path, page: Path) -> None:
    """Write a part of a page of a file of results. Raises ValueError for results of another machine."""
    book = Book()
    book.go_on(results)
    write(page, book.figures)


def environment() -> tuple[str, ...]:
    """Machine, disk, versions and revision, a line each."""
    packages = [f"{name} {version}" for name in PACKAGES if (version := _version(name))]
    versions = [
        f"Python {platform.python_version()}",
        *packages,
        *(peer.versions() for peer in PEERS.values()),
        _java(),
    ]
    disk = _file_system(tempfile.gettempdir())
    lines = (
        f"Machine: {len(os.sched_getaffinity(0))} cores of {_cpu()}, {_memory()}, {_os()}",
        f"Disk: {disk}; a synced write of 4 KiB takes {_sync_ms():.2f} ms (median of 50)",
        f"Versions: {', '.join(filter(None, versions))}",
    )
    revision = _revision()
    return (*lines, f"Revision: {revision}") if revision else lines


def load(at_start: float) -> str:
    """Describe the load of the machine, with a warning if other programs used it too."""
    line = f"Load average (1 minute): {at_start:.1f} at the start, {os.getloadavg()[0]:.1f} at the end"
    if at_start > 1:
        line += (
            ". **Other work was running**: times are longer than on a quiet machine, "
            "most of all those that use every core"
        )
    return line


def _cpu() -> str:
    models = re.findall(r"^model name\s*:\s*(.+)$", text_of("/proc/cpuinfo"), re.MULTILINE)
    return models[0] if models else platform.processor() or platform.machine()


def _memory() -> str:
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB memory"


def _os() -> str:
    match = re.search(r'^PRETTY_NAME="?([^"\n]+)', text_of("/etc/os-release"), re.MULTILINE)
    return f"{match.group(1) if match else platform.system()}, kernel {platform.release().split('-')[0]}"


def _file_system(folder: str) -> str:
    """The type of the file system that the folder lies on."""
    best = ("", "unknown file system")
    for line in text_of("/proc/mounts").splitlines():
        _, mount, kind, *_ = line.split()
        inside = Path(folder).is_relative_to(mount)
        if inside and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1]


def _sync_ms() -> float:
    took = []
    with tempfile.TemporaryFile() as file:
        for _ in range(50):
            start = perf_counter()
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
            took.append((perf_counter() - start) * 1000)
    return statistics.median(took)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _java() -> str | None:
    try:
        printed = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        return None
    match = re.search(r'version "([^"]+)"', printed)
    return f"Java {match.group(1)}" if match else None


def _revision() -> str | None:
    try:
        process = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            capture_output=True, text=True, check=False, cwd=Path(__file__).parent,
        )  # fmt: skip
    except OSError:
        return None
    return process.stdout.strip() or None


def text_of(path: str | Path) -> str:
    """Return the text of a file, or "" if the file is missing."""
    try:
        return Path(path).read_text("utf-8")
    except OSError:
        return ""


def command_line(scale: float) -> str:
    """Return the command that repeats these figures."""
    named = {1: ["make", "bench"], 0.1: ["make", "bench-quick"]}
    return shlex.join(named.get(scale, [f"EPOCHLOG_BENCH_SCALE={scale:g}", "make", "bench"]))
