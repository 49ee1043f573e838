"""Cutting a read into key ranges of like bytes: every cut against the bytes that are really read, on skewed tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import epochlog as el
from epochlog.spark.options import Tasks
from epochlog.spark.partitions import ReadPartition, cut
from epochlog.store.changelog.plan_ranges import sources_of
from epochlog.store.scan import size_splits
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.scan.size_splits import estimate_sizes, split_evenly
from epochlog.store.sst import segment, sorted_run
from epochlog.store.sst.segment import SegmentReader
from epochlog.store.sst.sorted_run import RunFile, read_part
from epochlog.store.types.key_codec import KeyCodec
from epochlog.store.types.key_range import ALL_KEYS, KeyRange
from epochlog.store.types.read_options import ReadOptions
from epochlog.store.types.row_size import Sizes, block_sizes, row_bytes, split_widths
from row_sets import WIDE, wide_rows

pytestmark = pytest.mark.local_only

BLOCK_ROWS = 500
SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string()), ("n", pa.int64()), ("text", pa.string())])
KEYS = {"int": ["k"], "string": ["s"], "composite": ["s", "k"]}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (size_splits, "BATCH_ROWS"),
        (segment, "BATCH_ROWS"),
        (sorted_run, "ROW_GROUP_ROWS"),
        (sorted_run, "MOST_ROW_GROUP_ROWS"),
    ):
        monkeypatch.setattr(module, name, BLOCK_ROWS)


def table_of(numbers: np.ndarray, widths: np.ndarray) -> pa.Table:
    """A row for each number: its keys rise with it, its text is so wide."""
    texts = ["x" * width for width in widths.tolist()]
    names = [f"{number:012d}" + "y" * (number % 7) for number in numbers.tolist()]
    return pa.table([pa.array(numbers), names, pa.array(numbers * 2), texts], schema=SCHEMA)


SPREADS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "even": lambda chance, count: chance.choice(10**9, count, replace=False),
    "crowded": lambda chance, count: np.unique((10**9 * chance.random(2 * count) ** 8).astype(np.int64))[:count],
    "one end": lambda chance, count: np.append(np.arange(count - 1), 10**9),
}
WIDTHS: dict[str, Callable[[np.random.Generator, np.ndarray], np.ndarray]] = {
    "alike": lambda _, numbers: np.full(len(numbers), 20),
    "wide at the beginning": lambda _, numbers: np.where(np.argsort(np.argsort(numbers)) < len(numbers) // 20, 400, 2),
    "wide at the end": lambda _, numbers: np.where(np.argsort(np.argsort(numbers)) > len(numbers) * 0.9, 300, 2),
    "heavy tail": lambda chance, numbers: np.minimum(2000, chance.pareto(1.1, len(numbers)) * 20).astype(int),
}


def bytes_read(store: el.Store, plan: ScanPlan, columns: list[str], keys: KeyRange) -> float:
    """Sum the bytes in memory of these keys over all files."""
    codec, files = plan.codec, store._handle.files
    wanted = list(dict.fromkeys([*columns, *plan.table.primary_key]))
    total = 0
    for source in sources_of(plan):
        if isinstance(source, RunFile):
            rows = read_part(files, source, plan.table, codec, ReadOptions(wanted, None, keys))
        else:
            rows = SegmentReader(files, source, plan.table, codec).read(wanted, keys)
        total += rows.data.nbytes
    return total


def plan_of(store: el.Store, epoch: int | None = None) -> ScanPlan:
    with store.snapshot(["t"], consistency="latest") as newest:
        if epoch is None:
            return newest["t"].plan
    with store.snapshot(["t"], consistency="exact", epochs_or_token={"t": epoch}) as past:
        return past["t"].plan


def check(store: el.Store, plan: ScanPlan, count: int, columns: list[str]) -> list[float]:
    spans = estimate_sizes(plan.table, sources_of(plan), columns)
    ranges = split_evenly(store._handle.files, plan.table, spans, columns, count, ALL_KEYS)
    assert ranges[0][0] is None and ranges[-1][1] is None
    assert all(before[1] == after[0] for before, after in pairwise(ranges))
    sizes = [bytes_read(store, plan, columns, keys) for keys in ranges]
    assert sum(
        plan.read(store._handle.files, ReadOptions(["k"], None, keys)).num_rows for keys in ranges
    ) == plan.count(store._handle.files)
    assert len(sizes) == count
    mean = sum(sizes) / count
    assert max(sizes) <= 1.2 * mean and min(sizes) >= 0.8 * mean, [round(size / mean, 2) for size in sizes]
    return sizes


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.long] if seed else []) for seed in range(8)])
@pytest.mark.parametrize("key", KEYS)
def test_pieces_are_of_like_bytes(tmp_path: Path, key: str, seed: int) -> None:
    """A huge run under many small segments, or segments alone, or a past epoch, with every skew there is."""
    chance = np.random.default_rng([seed, len(key)])
    print(f"seed {seed}, key {key}")
    spread = SPREADS[str(chance.choice(list(SPREADS)))]
    width = WIDTHS[str(chance.choice(list(WIDTHS)))]
    with el.open(tmp_path, durability="os") as store:
        table = store.create_table("t", SCHEMA, KEYS[key])
        numbers = spread(chance, int(chance.integers(4_000, 12_000)))
        if chance.random() < 0.7:
            first = table.upsert(table_of(numbers, width(chance, numbers)))
        else:
            first = 0
            for part in np.array_split(chance.permutation(numbers), int(chance.integers(2, 20))):
                first = table.upsert(table_of(part, width(chance, part)))
        if chance.random() < 0.5:
            store.compact("t", full=True)
        for _ in range(int(chance.integers(0, 30))):
            some = chance.choice(numbers, int(chance.integers(1, 150)), replace=False)
            table.upsert(table_of(some, width(chance, some)))
        table.delete(table_of(numbers[::17], np.zeros(len(numbers[::17]), int)).select(KEYS[key]))
        if chance.random() < 0.5:
            store.compact("t", full=True)
        columns = [["k", "text"], ["n"], ["k", "s", "n", "text"]][int(chance.integers(0, 3))]
        for epoch in (None, first):
            check(store, plan_of(store, epoch), int(chance.integers(2, 9)), columns)


def test_columns_that_are_not_read_count_for_nothing(tmp_path: Path) -> None:
    with el.open(tmp_path, durability="os") as store:
        numbers = np.arange(10_000)
        store.create_table("t", SCHEMA, ["k"]).upsert(table_of(numbers, np.where(numbers < 1000, 1000, 0)))
        plan = plan_of(store)
        for columns in (["n"], ["text"]):
            check(store, plan, 4, columns)


class Looks:
    """Counter of the blocks that the splitter reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        plain = size_splits._slices

        def counted(*args: object) -> Iterator[size_splits.Span]:
            self.count += 1
            return plain(*args)  # pyright: ignore[reportArgumentType]

        monkeypatch.setattr(size_splits, "_slices", counted)


@pytest.mark.medium
def test_where_the_catalog_tells_enough_no_file_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    with el.open(tmp_path, durability="os") as store:
        numbers = np.arange(50_000)  # a hundred blocks
        store.create_table("t", SCHEMA, ["k"]).upsert(table_of(numbers, np.where(numbers < 5000, 200, 2)))
        for _ in range(20):
            store.table("t").upsert(table_of(numbers[::5000], np.full(10, 3)))
        check(store, plan_of(store), 4, ["k", "text"])
    assert looks.count == 0


@pytest.mark.medium
def test_of_many_small_segments_a_few_stand_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    chance = np.random.default_rng(5)
    with el.open(tmp_path, durability="os") as store:
        table = store.create_table(
            "t", SCHEMA, ["k"], options=el.TableOptions(compact_segments=1000, max_segments=1000)
        )
        for _ in range(100):
            numbers = SPREADS["crowded"](chance, 300)
            table.upsert(table_of(numbers, np.full(len(numbers), 30)))
        check(store, plan_of(store), 6, ["k", "text"])
    assert 0 < looks.count < 50


def test_one_key_is_one_piece_and_no_rows_are_none(tmp_path: Path) -> None:
    with el.open(tmp_path, durability="os") as store:
        table = store.create_table("t", SCHEMA, ["k"])
        empty = plan_of(store)
        assert cut(ReadPartition(store._handle.files, empty, SCHEMA, ReadOptions(("k",))), Tasks(8, 8)) == []
        table.upsert(table_of(np.array([7]), np.array([3])))
        piece = ReadPartition(store._handle.files, plan_of(store), SCHEMA, ReadOptions(("k",)))
        assert [part.options.key_range for part in cut(piece, Tasks(8, 8))] == [ALL_KEYS]
        table.upsert(table_of(np.array([9]), np.array([3])))
        piece = ReadPartition(store._handle.files, plan_of(store), SCHEMA, ReadOptions(("k",)))
        assert [part.options.key_range for part in cut(piece, Tasks(8, 8))] == [(None, 9), (9, None)]


def test_the_number_of_pieces_goes_by_bytes_and_by_what_the_session_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from epochlog.spark import partitions

    monkeypatch.setattr(partitions, "SMALLEST_SPLIT_BYTES", 10_000)
    monkeypatch.setattr(partitions, "LARGEST_SPLIT_BYTES", 50_000)
    with el.open(tmp_path, durability="os") as store:
        numbers = np.arange(2_000)
        store.create_table("t", SCHEMA, ["k"]).upsert(table_of(numbers, np.full(2_000, 80)))  # 96 bytes with k
        piece = ReadPartition(store._handle.files, plan_of(store), SCHEMA, ReadOptions(("k", "text")))

        def count(*tasks: int) -> int:
            return len(cut(piece, Tasks(*tasks)))

        assert count(64) == 18  # pieces of 10 kB are worth a task
        assert count(8) == 8
        assert count(1) == 4  # none larger than 50 kB
        assert count(1, 7) == 7
        narrow = ReadPartition(store._handle.files, plan_of(store), SCHEMA, ReadOptions(("k",)))
        assert len(cut(narrow, Tasks(64))) == 1


def test_what_a_block_takes_is_told_by_its_descriptor(tmp_path: Path) -> None:
    """For all column types: the sum of the rows' widths is what Arrow says the block has, and the catalog too."""
    data = wide_rows(list(range(1200)))
    starts = [0, 500, 1000]
    fixed, varying = split_widths(data.schema)
    sizes = block_sizes(data, starts)
    for place, (low, end) in enumerate(pairwise([*starts, 1200])):
        part = data.slice(low, end - low)
        for name in varying:
            assert sizes[name][place] == part.column(name).nbytes, name
            widths = row_bytes(part.select([name]))
            assert widths.min() >= 0 and widths.sum() == pytest.approx(sizes[name][place], rel=0.1)
        assert row_bytes(part.drop_columns(varying)).tolist() == [fixed] * len(part)
    with el.open(tmp_path, durability="os") as store:
        table = store.create_table("wide", WIDE.schema, ["id"])
        table.upsert(data)
        assert is_nearly(plan_of_table(store, "wide")[0].sizes, sizes)
        store.compact("wide", full=True)
        assert is_nearly(plan_of_table(store, "wide")[0].sizes, sizes)


def is_nearly(sizes: Sizes, expected: Sizes) -> bool:
    """Return True if the sizes differ by at most the padding of null bits to bytes."""
    return sizes.keys() == expected.keys() and all(
        abs(size - other) <= 2 for name in expected for size, other in zip(sizes[name], expected[name], strict=True)
    )


def plan_of_table(store: el.Store, name: str) -> list[size_splits.Source]:
    with store.snapshot([name], consistency="latest") as snapshot:
        return list(sources_of(snapshot[name].plan))


def test_files_of_the_first_builds_are_cut_by_their_sizes_on_disk(tmp_path: Path) -> None:
    with el.open(tmp_path, durability="os") as store:
        numbers = np.arange(4_000)
        store.create_table("t", SCHEMA, ["k"]).upsert(table_of(numbers, np.full(4_000, 9)))
        (file,) = sources_of(plan_of(store))
        assert isinstance(file, segment.Segment)
        record = file.to_record()
        del record["sizes"]
        old = segment.Segment.from_record(record)
        assert old.sizes == {}
        spans = estimate_sizes(plan_of(store).table, [old], ["text"])
        assert sum(span.bytes for span in spans) == pytest.approx(4_000 * 8 + old.bytes, rel=0.01)
        with pytest.raises(el.Corrupt, match="a catalog record of Segment"):
            segment.Segment.from_record({**record, "sizes": {"text": [-1] * len(file.blocks)}})
        with pytest.raises(el.Corrupt, match="a catalog record of Segment"):
            segment.Segment.from_record({**record, "sizes": {"text": [1]}})


def test_codec_of_a_plan_is_what_cuts_are_made_with(tmp_path: Path) -> None:
    """A cut is an encoded key: of a composite key it holds bytes, whatever the columns are."""
    with el.open(tmp_path, durability="os") as store:
        numbers = np.arange(3_000)
        store.create_table("t", SCHEMA, ["s", "k"]).upsert(table_of(numbers, np.full(3_000, 9)))
        plan = plan_of(store)
        spans = estimate_sizes(plan.table, sources_of(plan), ["n"])
        ranges = split_evenly(store._handle.files, plan.table, spans, ["n"], 3, ALL_KEYS)
        assert all(isinstance(low, bytes) for low, _ in ranges[1:])
        assert KeyCodec(SCHEMA, ("s", "k")).key_type == pa.binary()
