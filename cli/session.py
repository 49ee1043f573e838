"""Session of a command: the open store, the options and the output."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from typing import Any

from epochlog.api import Store
from epochlog.store.session.handle import Handle

from .render.output import CommandOutput


@dataclass(frozen=True, slots=True)
class CommandSession:
    """Session of one run of one command."""

    handle: Handle
    store: Store
    options: Namespace
    out: CommandOutput

    def spark(self) -> Any:
        """Return a Spark session of this process for `--engine spark`, else None."""
        if self.options.engine != "spark":
            return None
        from epochlog.spark.local_session import spark

        return spark()
