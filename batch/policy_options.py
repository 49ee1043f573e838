"""Options that a policy declares. The command line offers them and knows no policy by name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OptionKind(StrEnum):
    """Kind of an option: the words that it takes, and the value that the policy gets."""

    EPOCH = "epoch"  # int
    SECONDS = "seconds"  # float, from a number with its unit
    TIMESTAMP = "timestamp"  # str, ISO 8601
    SNAPSHOT = "snapshot"  # str, a token; the name of a tag stands for its token
    FLAG = "flag"  # True


@dataclass(frozen=True, slots=True)
class PolicyOption:
    """Option of a policy: `max_lag` is `--max-lag` on the command line. Policies that share its name share its kind."""

    name: str
    kind: OptionKind
    help: str
    keyword: str = ""
    """Argument of the policy's class, if its name differs."""
    each_table: bool = False
    """True if the argument is a dict with the value for each named table."""
    implies: bool = False
    """True if the option selects the policy when none is named."""

    @property
    def argument(self) -> str:
        return self.keyword or self.name
