"""Options of `format("epochlog.exchange")`, and the channels and consumers that they name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from epochlog.errors import InvalidInput
from epochlog.exchange.staged.client import ExchangeClient
from epochlog.exchange.staged.state import check_name

from .options import Options, OptionSet, bool_option, int_option, names_option, refuse_unknown_options, text_option

SERVER = ("location", "token", "tlsRoots", "insecure")
LAYOUT = ("query", "stages", "channels", "consumers")
PUSH = ("stage", "partitionBy", "broadcast")
PULL_OPTIONS = OptionSet("a read of format('epochlog.exchange')", (*SERVER, *LAYOUT), ("path", *PUSH))
PUSH_OPTIONS = OptionSet("a write of format('epochlog.exchange')", (*SERVER, *LAYOUT, *PUSH), ("path",))
"""Options that are let pass without being listed are refused with advice of their own."""
DEFAULT_CHANNELS = 16


@dataclass(frozen=True, slots=True)
class ExchangeLayout:
    """Query of a staged exchange as its producers and consumers in Spark see it, picklable.

    Partition `p` of the frame pushed to a stage has one channel to each consumer. `channels` is the number of these
    partitions, of which some may be empty. Consumer `c` is task `c` of a frame that reads the query.
    """

    location: str
    token: str | None
    tls_roots: str | None
    insecure: bool
    query: str
    stages: tuple[int, ...]
    channels: int
    consumers: int

    @classmethod
    def from_options(cls, options: Options, known: OptionSet = PULL_OPTIONS) -> ExchangeLayout:
        """Parse the server and the query. Raises InvalidInput, also for an unknown option."""
        refuse_unknown_options(options, known)
        for name in ("location", "query"):
            if not text_option(options, name):
                raise InvalidInput(f'format("epochlog.exchange") needs .option("{name}", …)')
        if text_option(options, "path"):
            raise InvalidInput(
                'format("epochlog.exchange") takes no path: call load() or save() without one, and set '
                '.option("location", …) to the server of the store'
            )
        stages = tuple(sorted(_stage("stages", text) for text in names_option(options, "stages") or ("0",)))
        if len(set(stages)) != len(stages):
            raise InvalidInput(f"option stages names a stage twice: {options['stages']!r}")
        return cls(
            options["location"],
            text_option(options, "token"),
            text_option(options, "tlsRoots"),
            bool_option(options, "insecure", False),
            check_name("a query", options["query"]),
            stages,
            int_option(options, "channels", 1) or DEFAULT_CHANNELS,
            int_option(options, "consumers", 1) or 1,
        )

    def connect(self) -> ExchangeClient:
        """Return a client of the query. Close it after use."""
        return ExchangeClient(
            self.location, query=self.query, token=self.token, tls_roots=self.tls_roots, insecure=self.insecure
        )

    def declare(self, client: ExchangeClient) -> None:
        """Declare all consumers; a repeat changes nothing, so producers and consumers may come in any order. Raises
        InvalidInput when the query was declared with other stages, channels or consumers.
        """
        for consumer in range(self.consumers):
            client.declare(str(consumer), self.channels_of(consumer))

    def channels_of(self, consumer: int) -> dict[int, list[str]]:
        """Return the channels of a consumer: {stage: channels}."""
        return {
            stage: [self.channel(stage, producer, consumer) for producer in range(self.channels)]
            for stage in self.stages
        }

    def cursor(self, consumer: int, offset: Mapping[str, int]) -> dict[str, int]:
        """Return the part of an offset, {channel: next sequence}, that is of a consumer; 0 for other channels of it."""
        return {name: offset.get(name, 0) for names in self.channels_of(consumer).values() for name in names}

    def channel(self, stage: int, producer: int, consumer: int) -> str:
        """Return the name of a channel. It has the number of consumers, so that `declare` refuses another number."""
        return f"s{stage}.p{producer}.c{consumer}of{self.consumers}"


@dataclass(frozen=True, slots=True)
class PushTarget:
    """Stage to which a frame is pushed, and the distribution of its rows over the consumers: by the hash of columns, or
    all rows to each.
    """

    layout: ExchangeLayout
    stage: int
    partition_by: tuple[str, ...]

    @classmethod
    def from_options(cls, options: Options) -> PushTarget:
        """Parse the target of a write. Raises InvalidInput."""
        layout = ExchangeLayout.from_options(options, PUSH_OPTIONS)
        stage_text = text_option(options, "stage")
        if stage_text is None:
            raise InvalidInput('set .option("stage", …): the stage of the query to which the frame is pushed')
        stage = _stage("stage", stage_text)
        if stage not in layout.stages:
            raise InvalidInput(
                f"stage {stage} is not among the stages of query {layout.query!r}, {_join(layout.stages)}; "
                "set option stages to all stages of the query, in each of its frames"
            )
        partition_by, broadcast = names_option(options, "partitionBy") or (), bool_option(options, "broadcast", False)
        if broadcast and partition_by:
            raise InvalidInput("options partitionBy and broadcast exclude each other; set one of them")
        if layout.consumers > 1 and not broadcast and not partition_by:
            raise InvalidInput(
                f"query {layout.query!r} has {layout.consumers} consumers: set option partitionBy to the columns whose "
                "hash chooses the consumer of a row, or broadcast to true, so that each consumer gets all rows"
            )
        return cls(layout, stage, partition_by)


def refuse_push_options(options: Mapping[str, str]) -> None:
    """Raise InvalidInput for an option of a write among those of a read."""
    for name in PUSH:
        if text_option(options, name):
            raise InvalidInput(
                f"option {name} is for writing; a read gets all stages of its query in order, and the column _stage of "
                "its schema names the stage of a row"
            )


def _stage(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidInput(f"option {option} takes whole numbers such as -1 and 0, not {text!r}") from None


def _join(stages: tuple[int, ...]) -> str:
    return ", ".join(map(str, stages))
