"""Peers that run in environments of their own, as they pin other packages or bring a system of their own."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

PAIMON, FLINK, PATHWAY = "pypaimon", "Flink SQL", "pathway"


@dataclass(frozen=True, slots=True)
class Peer:
    """Peer that takes part if a variable names the Python of an environment of scripts/setup_peer.sh.

    imports: the modules that it needs; packages: those whose versions are named.
    """

    name: str
    variable: str
    imports: str
    packages: tuple[str, ...]

    def why_absent(self) -> str | None:
        """Explain the absence; None if it can run. Why the environment could not be made is in a file there."""
        named = os.environ.get(self.variable)
        failed = Path(named).parents[1] / "failed" if named else None
        if failed and failed.exists():
            return f"could not be installed: {failed.read_text('utf-8').strip()}"
        if not named or not Path(named).is_file():
            return f"left out: {self.variable} does not name the Python of an environment with {self.name}"
        process = subprocess.run([named, "-c", f"import {self.imports}"], capture_output=True, text=True, check=False)
        return f"cannot be imported: {process.stderr.strip().splitlines()[-1]}" if process.returncode else None

    def versions(self) -> str | None:
        """Return its packages with their versions; None if it is absent."""
        shown = f"(f'{{each}} {{version(each)}}' for each in {self.packages})"
        ask = f"from importlib.metadata import version; print(*{shown}, sep=' on ')"
        try:
            process = subprocess.run(
                [os.environ.get(self.variable, ""), "-c", ask], capture_output=True, text=True, check=False
            )
        except OSError:
            return None
        return process.stdout.strip() or None


PEERS = {
    peer.name: peer
    for peer in (
        Peer(PAIMON, "EPOCHLOG_BENCH_PYPAIMON", "pypaimon", ("pypaimon", "pyarrow")),
        Peer(FLINK, "EPOCHLOG_BENCH_FLINK", "pyflink.version, py4j", ("apache-flink-libraries",)),
        Peer(PATHWAY, "EPOCHLOG_BENCH_PATHWAY", "pathway, pyarrow", ("pathway",)),
    )
}
