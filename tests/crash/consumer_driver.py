"""A process that has a consumer open. Arguments: root, catalog ("" for the root's own), the consumer's name.

It says `open <incarnation> <position>`, then obeys lines: `ack <epoch>` is answered with `acked <position>` or with the
name of the error.
"""

from __future__ import annotations

import sys

import epochlog as el
from epochlog.store.changelog.consumers import open_consumer


def main(root: str, catalog: str, name: str) -> None:
    store = el.open(root, catalog or None, create=False, volatile=True)
    consumer = open_consumer(store._handle, name, ["t"])
    print(f"open {consumer.incarnation} {consumer.position}")
    for line in sys.stdin:
        try:
            consumer.ack(int(line.split()[1]))
            print(f"acked {consumer.position}")
        except el.EpochlogError as error:
            print(type(error).__name__)


if __name__ == "__main__":
    main(*sys.argv[1:])
