"""Runner of all Spark tests on each version of Spark that epochlog supports, and writer of the table of docs/SPARK.md.

    python scripts/spark_versions.py [--write] [VERSION ...]

Each file of tests has a process, and so a JVM, of its own: a test that ends its JVM spoils no other file. Tests of a
feature that a version lacks are not run on it (the marker `needs`). tests/spark/test_features.py has a short case for
each way from Spark into a store and back; the table says which of them a version has, and --write puts it into the
page. The exit code is 1 if a test failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from passes import BRIEF_JVM, PYTEST, SPARK, Outcome, Pass, run, summary
from spark_environments import FEATURES, ROOT, VERSIONS, interpreter

PAGE = ROOT / "docs" / "SPARK.md"
BEGIN, END = "<!-- features of each version -->", "<!-- end of features -->"


def files_of(version: str) -> list[str]:
    """Return the files with a test that a version runs. Raises SystemExit if a file cannot be imported there."""
    command = [interpreter(version), *PYTEST[1:], "-m", SPARK, "--collect-only"]
    listed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    if listed.returncode:
        sys.exit(f"{listed.stdout}\nThe tests cannot be collected on Spark {version}.")
    names = (line.partition("::") for line in listed.stdout.splitlines() if line.startswith("tests/"))
    return list(dict.fromkeys(file for file, colons, _ in names if colons))


def run_version(version: str, folder: Path) -> tuple[Outcome, Path]:
    """Run all files on a version; return the outcome of all, and the JUnit report of the features."""
    outcomes, reports = list[Outcome](), dict[str, Path]()
    for number, file in enumerate(files_of(version)):
        reports[file] = folder / f"{version}-{number}.xml"
        command = (interpreter(version), *PYTEST[1:], file, "-m", SPARK)
        outcomes.append(run(Pass(f"Spark {version}: {file}", command, BRIEF_JVM), reports[file]))
    return merged(f"Spark {version}", outcomes), reports[FEATURES]


def merged(name: str, outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome of several runs as that of one."""
    return Outcome(
        name,
        sum(outcome.passed for outcome in outcomes),
        tuple(test for outcome in outcomes for test in outcome.failed),
        sum(outcome.seconds for outcome in outcomes),
        sum(outcome.cpu_seconds for outcome in outcomes),
    )


def features_of(report: Path) -> dict[str, str]:
    """Return by feature, in the order of the tests, "yes", or from which version on it is there."""
    features: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314  (pytest wrote it)
        properties = {item.get("name"): item.get("value", "") for item in case.iter("property")}
        failed = any(part.tag in ("failure", "error") for part in case)
        if properties:
            features[properties["feature"]] = "failed" if failed else properties["works"]
    return features


def table(results: Mapping[str, Mapping[str, str]]) -> str:
    """Return the table of a page. results: by version the answers of `features_of`."""
    names = list(dict.fromkeys(name for answers in results.values() for name in answers))
    lines = [f"| | {' | '.join(results)} |", f"|---|{'---|' * len(results)}"]
    lines += [f"| {name} | {' | '.join(answers.get(name, '') for answers in results.values())} |" for name in names]
    return "\n".join(lines)


def with_table(page: str, text: str, marks: tuple[str, str] = (BEGIN, END)) -> str:
    """Return the page with another table between two marks."""
    begin, end = marks
    before, _, rest = page.partition(begin)
    after = rest.partition(end)[2]
    return f"{before}{begin}\n{text}\n{end}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", choices=[*VERSIONS, []], help="all, without any")
    parser.add_argument("--write", action="store_true", help="write the table into docs/SPARK.md; of all versions")
    chosen = parser.parse_args(arguments)
    versions = VERSIONS if chosen.write else tuple(chosen.versions or VERSIONS)
    subprocess.run([ROOT / "scripts" / "setup_spark.sh", *versions], check=True)
    with tempfile.TemporaryDirectory(prefix="epochlog-spark-") as folder:
        results = {version: run_version(version, Path(folder)) for version in versions}
        text = table({version: features_of(report) for version, (_, report) in results.items()})
    outcomes = [outcome for outcome, _ in results.values()]
    passed = not any(outcome.failed for outcome in outcomes)
    print(text, summary(outcomes), sep="\n")
    if chosen.write and passed:
        PAGE.write_text(with_table(PAGE.read_text("utf-8"), text), "utf-8")
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())
