"""Tells the story while strace makes calls of this process fail. Arguments: root, ledger's file.

Exit code 0: all went well, or what failed was told and the same again worked; 3: the catalog was given up, as it said.
The ledger is written with writev, for strace to leave it alone.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import epochlog as el
from faults.power import Again
from faults.workload import LedgerWriter, run_workload


def main(root: Path, ledger: Path) -> int:
    handle = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    again = Again()
    try:
        run_workload(root, LedgerWriter(lambda line: os.writev(handle, [line.encode()])), attempt=again)
    except el.OutcomeUnknown:
        return 3
    except el.WriteFailed as error:
        return 3 if "given up" in str(error) else 1
    return 0


if __name__ == "__main__":
    os._exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
