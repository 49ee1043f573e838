"""One whole read of a large table in a process of its own: prints the memory that it took at most, as JSON.

    large_driver.py to_arrow | scan  ROOT  TABLE

Counted are anonymous pages above those before; the result of `to_arrow`, or the largest batch of `scan`, is taken off.
"""

from __future__ import annotations

import json
import sys

from memory_driver import Watch, drained

import epochlog as el


def main() -> None:
    work, root, name = sys.argv[1:]
    with el.open(root) as store, Watch() as watch:
        table = store.table(name)
        if work == "scan":
            rows, given_mib = drained(table.scan())
        else:
            result = table.to_arrow()
            rows, given_mib = result.num_rows, result.nbytes / 2**20
    anonymous_mib = watch.peak[0] - watch.start[0]
    print(json.dumps({"rows": rows, "mib": max(0.0, anonymous_mib - given_mib)}))


if __name__ == "__main__":
    main()
