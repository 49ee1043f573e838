"""Runner of the Spark tests on each version of Spark that epochlog supports, and writer of the table of docs/SPARK.md.

    python scripts/spark_versions.py [--write] [VERSION ...]

Each version has its environment (scripts/setup_spark.sh); 4.3 is that of .venv. On each, tests/spark/test_features.py
runs a short case for each way from Spark into a store and back. The table says which of them a version has; --write
puts it into the page. The exit code is 1 if a test failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("4.0", "4.1", "4.2", "4.3")
FEATURES = "tests/spark/test_features.py"
PAGE = ROOT / "docs" / "SPARK.md"
BEGIN, END = "<!-- features of each version -->", "<!-- end of features -->"


def interpreter(version: str) -> str:
    """Return the Python of a version's environment."""
    return sys.executable if version == VERSIONS[-1] else str(ROOT / ".venv-spark" / version / "bin" / "python")


def run(version: str, report: Path) -> bool:
    """Run the features on a version; return True if all passed."""
    print(f"== Spark {version} ==", flush=True)
    command = [interpreter(version), "-m", "pytest", "-q", FEATURES, f"--junitxml={report}"]
    return subprocess.run(command, check=False, cwd=ROOT).returncode == 0


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


def with_table(page: str, text: str) -> str:
    """Return the page with another table."""
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", choices=[*VERSIONS, []], help="all, without any")
    parser.add_argument("--write", action="store_true", help="write the table into docs/SPARK.md; of all versions")
    chosen = parser.parse_args(arguments)
    versions = VERSIONS if chosen.write else tuple(chosen.versions or VERSIONS)
    subprocess.run([ROOT / "scripts" / "setup_spark.sh", *versions], check=True)
    with tempfile.TemporaryDirectory(prefix="epochlog-spark-") as folder:
        reports = {version: Path(folder) / f"{version}.xml" for version in versions}
        passed = [run(version, report) for version, report in reports.items()]
        text = table({version: features_of(report) for version, report in reports.items()})
    print(text)
    if chosen.write and all(passed):
        PAGE.write_text(with_table(PAGE.read_text("utf-8"), text), "utf-8")
    return int(not all(passed))


if __name__ == "__main__":
    sys.exit(main())
