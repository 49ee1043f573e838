"""pypaimon, driven in the environment that EPOCHLOG_BENCH_PYPAIMON names the Python of."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
from data import PLAIN, Shape
from pairs import Took
from peers import PAIMON, PEERS

DRIVER = Path(__file__).with_name("pypaimon_driver.py")


class Paimon:
    """Rows come and go as Arrow IPC files, off the clock; the times are those of the library's own calls.

    It merges in Python, row by row: a whole read takes as long as all other contenders' rounds.
    """

    name = PAIMON

    def __init__(self, folder: Path, shape: Shape = PLAIN) -> None:
        folder.mkdir()
        self._folder, self._shape, self._files = folder, shape, 0
        self._log = folder / "driver.log"
        command = [os.environ[PEERS[PAIMON].variable], str(DRIVER), str(folder / "warehouse"), *shape.primary_key]
        with self._log.open("w") as errors:
            self._driver = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._waits = False

    def load(self, base: pa.Table) -> None:
        """Begun only, so that others load meanwhile; what comes next waits for it."""
        self._send("load", self.prepare(base))
        self._waits = True

    def prepare(self, rows: pa.Table) -> str:
        self.ready()
        self._files += 1
        path = str(self._folder / f"rows-{self._files}.arrow")
        with pa.ipc.new_file(path, rows.schema) as writer:
            writer.write_table(rows)
        return path

    def ready(self) -> None:
        if self._waits:
            self._waits = False
            self._read_answer()

    def commit(self, prepared: str) -> Took:
        return self._ask("commit", prepared)

    def read(self) -> Took:
        return self._ask("read", None)

    def as_arrow(self, result: Took) -> pa.Table:
        return self.last_read()

    def last_read(self) -> pa.Table:
        """Return the rows of the last read, in key order."""
        path = str(self._folder / "read.arrow")
        self._ask("keep", path)
        with pa.OSFile(path) as file:
            return self._shape.in_key_order(pa.ipc.open_file(file).read_all())

    def compact(self) -> None: ...

    def close(self) -> None:
        assert self._driver.stdin is not None
        self._driver.stdin.close()
        self._driver.wait()

    def _ask(self, work: str, given: Any) -> Took:
        self.ready()
        self._send(work, given)
        return self._read_answer()

    def _send(self, work: str, given: Any) -> None:
        assert self._driver.stdin is not None
        print(json.dumps({work: given}), file=self._driver.stdin, flush=True)

    def _read_answer(self) -> Took:
        assert self._driver.stdout is not None
        answer = self._driver.stdout.readline()
        if not answer:
            raise RuntimeError(f"the pypaimon driver has ended:\n{self._log.read_text()[-4000:]}")
        return Took(json.loads(answer)["ms"])
