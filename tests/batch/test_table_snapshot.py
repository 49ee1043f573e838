"""The doors of a table: each reads no more than it needs, gives the same rows, and closes with its snapshot."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

import epochlog as el
from epochlog.batch.dataset import TableDataset
from epochlog.batch.polars_frames import frame_of
from epochlog.store.scan import scan_plan
from epochlog.store.sst import segment, sorted_run
from epochlog.store.sst.segment import SegmentReader
from lab import Lab

ROWS, BLOCK = 1_200, 20
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("w", pa.string())])


def rows(keys: range, salt: int = 0) -> pa.Table:
    return pa.table(
        {"k": keys, "v": [key * 10 + salt for key in keys], "w": [f"w{key % 7}" for key in keys]}, schema=SCHEMA
    )


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks, row groups and batches of few rows."""
    monkeypatch.setattr(segment, "BATCH_ROWS", BLOCK)
    monkeypatch.setattr(sorted_run, "ROW_GROUP_ROWS", BLOCK)
    monkeypatch.setattr(scan_plan, "BATCH_ROWS", 10 * BLOCK)
    monkeypatch.setattr(scan_plan, "READ_BYTES", 100 * BLOCK)


@pytest.fixture
def store(tmp_path: Path, small: None) -> Iterator[el.Store]:
    """A run of 60 row groups, and above it a segment of 30 blocks that replaces every second row."""
    with el.open(tmp_path / "store", durability="os") as store:
        table = store.create_table("t", SCHEMA, ["k"])
        table.upsert(rows(range(ROWS)))
        store.compact(full=True)
        table.upsert(rows(range(0, ROWS, 2), 1))
        yield store


NO_LOG = el.TableOptions(history_retention=timedelta(0), log_retention=timedelta(0), compact_segments=1)


class Count:
    """Counter of decoded columns, and of decoded blocks of segments and row groups of runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.columns: set[str] = set()
        self.blocks = 0
        decode, read_groups = SegmentReader._decode, sorted_run.Footer.read

        def counted(
            reader: SegmentReader, data: pa.Buffer, names: Sequence[str], blocks: Sequence[int], *args: Any
        ) -> Any:
            self.columns |= set(names)
            self.blocks += len(blocks)
            return decode(reader, data, names, blocks, *args)

        def counted_groups(
            footer: sorted_run.Footer, data: pa.Buffer, groups: Sequence[int], names: list[str]
        ) -> pa.Table:
            self.columns |= set(names)
            self.blocks += len(groups)
            return read_groups(footer, data, groups, names)

        monkeypatch.setattr(SegmentReader, "_decode", counted)
        monkeypatch.setattr(sorted_run.Footer, "read", counted_groups)


@pytest.fixture
def read(store: el.Store, monkeypatch: pytest.MonkeyPatch) -> Count:
    return Count(monkeypatch)


# ---- what is asked for, by each door -------------------------------------------------------------------------------


K, PK = pc.field("k"), pl.col("k")
ASKED: dict[str, tuple[pc.Expression, pl.Expr, str, set[int]]] = {
    "equality": (K == 246, PK == 246, "k = 246", {246}),
    "range": ((K >= 240) & (K < 261), (PK >= 240) & (PK < 261), "k >= 240 AND k < 261", set(range(240, 261))),
    "in": (K.isin([5, 600, 1199]), PK.is_in([5, 600, 1199]), "k IN (5, 600, 1199)", {5, 600, 1199}),
    "or": ((K < 2) | (K > 1197), (PK < 2) | (PK > 1197), "k < 2 OR k > 1197", {0, 1, 1198, 1199}),
    "nothing": (K > ROWS, PK > ROWS, f"k > {ROWS}", set()),
}
"""In which ways keys are asked for: in Arrow's words, in polars', in SQL; and the keys."""

Door = Callable[[el.Snapshot, pc.Expression, pl.Expr, str], list[int]]
DOORS: dict[str, Door] = {
    "arrow": lambda s, arrow, _, __: s["t"].to_arrow(columns=["v"], filter=arrow)["v"].to_pylist(),
    "scan": lambda s, arrow, _, __: s["t"].scan(columns=["v"], filter=arrow).read_all()["v"].to_pylist(),
    "pandas": lambda s, arrow, _, __: s["t"].to_pandas(columns=["v"], filter=arrow)["v"].tolist(),
    "polars": lambda s, arrow, _, __: s["t"].to_polars(columns=["v"], filter=arrow)["v"].to_list(),
    "lazy": lambda s, _, polars, __: s["t"].lazy().filter(polars).select("v").collect()["v"].to_list(),
    "streaming": lambda s, _, polars, __: (
        s["t"].lazy().filter(polars).select("v").collect(engine="streaming")["v"].to_list()
    ),
    "polars over the dataset": lambda s, _, polars, __: (
        pl.scan_pyarrow_dataset(s["t"].dataset()).filter(polars).select("v").collect()["v"].to_list()
    ),
    "dataset": lambda s, arrow, _, __: s["t"].dataset().filter(arrow).to_table(["v"])["v"].to_pylist(),
    "expression": lambda s, arrow, _, __: (
        s["t"].dataset().to_table({"x": pc.add(pc.field("v"), 0)}, filter=arrow)["x"].to_pylist()
    ),
    "duckdb": lambda s, _, __, sql: [v for (v,) in s.duckdb().execute(f"SELECT v FROM t WHERE {sql}").fetchall()],
}


@pytest.mark.medium
def test_a_door_reads_the_columns_and_blocks_that_are_asked_for(store: el.Store, read: Count) -> None:
    with store.snapshot(["t"], consistency="latest") as snapshot:
        for door, look in DOORS.items():
            for filter_name, (arrow, polars, sql, keys) in ASKED.items():
                read.blocks = 0
                numbers = look(snapshot, arrow, polars, sql)
                assert sorted(numbers) == sorted(key * 10 + (key % 2 == 0) for key in keys), (door, filter_name)
                assert read.blocks <= 12, (door, filter_name, "of 90")
                assert "w" not in read.columns, (door, filter_name)


@pytest.mark.medium
def test_what_lies_beyond_the_rows_wanted_is_not_read(store: el.Store, read: Count) -> None:
    with store.snapshot(["t"], consistency="latest") as snapshot:
        for take in (
            lambda: snapshot["t"].lazy().head(3).collect().height,
            lambda: snapshot["t"].dataset().head(3).num_rows,
            lambda: len(snapshot.duckdb().execute("SELECT k FROM t LIMIT 3").fetchall()),
            lambda: snapshot["t"].dataset().filter(pc.field("v") > 50).head(3, ["w"]).num_rows,
            lambda: next(snapshot["t"].dataset().to_batches(batch_size=3, use_threads=True)).num_rows,
        ):
            read.blocks = 0
            assert take() == 3
            assert read.blocks <= 30, "of 90"


def test_nothing_is_read_before_it_is_asked_for(store: el.Store, read: Count) -> None:
    with store.snapshot(["t"], consistency="latest") as snapshot:
        snapshot.duckdb().close()
        frame = snapshot["t"].lazy().filter(pl.col("k") > 1).group_by("w").len()
        dataset = snapshot["t"].dataset().filter(K > 1)
        assert (frame.collect_schema().names(), dataset.schema) == (["w", "len"], SCHEMA_KEPT)
        assert read.blocks == 0


SCHEMA_KEPT = pa.schema([SCHEMA.field("k").with_nullable(False), SCHEMA.field("v"), SCHEMA.field("w")])


@pytest.mark.medium
def test_counts_read_keys_alone(store: el.Store, read: Count) -> None:
    with store.snapshot(["t"], consistency="latest") as snapshot:
        dataset = snapshot["t"].dataset()
        for count in (
            lambda: dataset.count_rows(K < 50),
            lambda: dataset.filter(K < 50).count_rows(),
            lambda: dataset.scanner(columns=[], filter=K < 50).count_rows(),
            lambda: dataset.filter(K < 50).to_table(columns=[]).num_rows,
        ):
            read.blocks = 0
            assert count() == 50
            assert read.columns <= {"k", "_epoch"} and read.blocks <= 8


# ---- what polars means ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, keys, predicate", [
    (pa.float32(), [0.1, 0.2, 0.3], pl.col("k") == 0.1),
    (pa.float64(), [-1.0, 1.0, float("nan")], pl.col("k") > 0.5),
    (pa.float64(), [-1.0, 1.0, float("nan")], pl.col("k").eq(float("nan"))),
    (pa.float64(), [-1.0, 1.0, float("nan")], ~(pl.col("k") < 0.5)),
    (pa.timestamp("ns"), [1_499, 1_500, 2_000], pl.col("k") == pl.lit(1).cast(pl.Datetime("us"))),
    (pa.timestamp("s"), [1, 2, 3], pl.col("k") > pl.lit(1_500_000).cast(pl.Datetime("us"))),
    (pa.timestamp("us", "Europe/Paris"), [1, 2, 3], pl.col("k").dt.epoch("us") > 1),
    (pa.decimal256(50, 2), [1, 2, 3], pl.col("k") == "2.00"),
    (pa.decimal256(30, 2), [1, 2, 3], pl.col("k") > 1),
])  # fmt: skip
@pytest.mark.parametrize("compacted", [False, True])
def test_a_lazy_frame_filters_as_polars_does(
    kind: pa.DataType, keys: list[Any], predicate: pl.Expr, compacted: bool, tmp_path: Path
) -> None:
    with el.open(tmp_path / "s", durability="os") as store:
        table = store.create_table("f", pa.schema([("k", kind)]), ["k"])
        for key in keys:  # a file each, so that there is something to skip
            table.upsert(pa.table({"k": pa.array([key], kind)}))
        if compacted:
            store.compact(full=True)
        wanted = table.to_polars().filter(predicate)
        assert 0 < wanted.height < len(keys)
        assert table.lazy().filter(predicate).collect().equals(wanted, null_equal=True)


# ---- types that tools have not --------------------------------------------------------------------------------------


def test_decimals_of_many_digits_and_halves_are_shown_in_types_that_duckdb_has(tmp_path: Path) -> None:
    wide, half = pa.array([10**45, None], pa.decimal256(50, 2)), pa.array([0.5, None], pa.float16())
    schema = pa.schema([("k", pa.int64()), ("d", wide.type), ("l", pa.list_(wide.type)), ("h", half.type)])
    with el.open(tmp_path / "s", durability="os") as store:
        table = store.create_table("odd", schema, ["k"])
        table.upsert(pa.table({"k": [1, 2], "d": wide, "l": [wide.to_pylist(), None], "h": half}, schema=schema))
        text = f"{10**45}.00"
        with store.snapshot(["odd"]) as snapshot, snapshot.duckdb() as connection:
            assert connection.execute("SELECT k, d, l, h FROM odd ORDER BY k").fetchall() == [
                (1, text, [text, None], 0.5),
                (2, None, None, None),
            ]
            assert connection.execute("SELECT k, h FROM odd WHERE d = ?", [text]).fetchall() == [(1, 0.5)]
            assert connection.execute("SELECT count(*) FROM odd WHERE h IS NULL AND k > 1").fetchall() == [(1,)]
            assert snapshot["odd"].to_polars()["d"].to_list() == [text, None]
            assert snapshot["odd"].lazy().select("l").collect()["l"].to_list() == [[text, None], None]
            assert snapshot["odd"].dataset().to_table()["d"].type == wide.type


# ---- closed ---------------------------------------------------------------------------------------------------------


@pytest.mark.medium
def test_a_door_that_is_open_closes_with_its_snapshot(store: el.Store) -> None:
    snapshot = store.snapshot(["t"], consistency="latest")
    table = snapshot["t"]
    lazy, dataset, connection, reader = table.lazy(), table.dataset(), snapshot.duckdb(), table.scan()
    batches, stream = table.dataset().to_batches(), pa.RecordBatchReader.from_stream(table)
    assert reader.read_next_batch().num_rows and next(batches).num_rows
    joined = lazy.join(lazy.filter(pl.col("k") < 5), on="k")
    snapshot.close()
    for use in (
        table.lazy, table.dataset, table.scan, table.__arrow_c_stream__, dataset.scanner, dataset.count_rows,
        lazy.collect, joined.collect, lambda: lazy.collect(engine="streaming"), reader.read_all,
        lambda: list(batches),
    ):  # fmt: skip
        with pytest.raises(el.SnapshotExpired, match="closed"):
            use()
    with pytest.raises(pa.ArrowInvalid, match="closed"):  # a C stream carries no Python errors
        stream.read_all()
    with pytest.raises(duckdb.Error, match="SnapshotExpired: this snapshot was closed"):
        connection.execute("SELECT count(w) FROM t").fetchall()


@pytest.mark.local_only  # what was downloaded from a remote root stays in memory, and is read from there
def test_a_table_that_nobody_holds_is_expired_when_its_files_were_vacuumed(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "lab")
    table = lab.root_table(options=NO_LOG)
    lab.put({1: (0, 10), 2: (0, 20)})
    lazy, dataset = table.lazy(), table.dataset()
    lab.put({1: (0, 11)})
    lab.store.compact(full=True)
    assert lazy.collect().height == dataset.count_rows() == 2
    lab.tick()
    lab.store.compact(full=True)
    assert lab.store.vacuum(grace=0).deleted
    for use in (lazy.collect, dataset.to_table):
        with pytest.raises(el.SnapshotExpired, match="vacuumed"):
            use()


# ---- of a table -----------------------------------------------------------------------------------------------------


@pytest.mark.medium
def test_the_doors_of_a_table_stay_at_their_epoch(store: el.Store) -> None:
    table = store.table("t")
    before = table.info.max_committed_epoch
    lazy, dataset = table.lazy(), table.dataset()
    old = table.to_arrow()
    table.delete(pa.table({"k": [1, 2, 3]}))
    assert lazy.collect().to_arrow()["v"].to_pylist() == old["v"].to_pylist() == dataset.to_table()["v"].to_pylist()
    assert table.lazy(epoch=before).collect().height == table.dataset(epoch=before).count_rows() == ROWS
    assert table.lazy().collect().height == table.dataset().count_rows() == ROWS - 3


@pytest.mark.medium
def test_whatever_takes_arrow_streams_takes_tables(store: el.Store) -> None:
    with store.snapshot(["t"], consistency="latest") as snapshot:
        wanted = snapshot["t"].to_arrow()
        for source in (snapshot["t"], store.table("t"), snapshot["t"].dataset()):
            assert pa.table(source).equals(wanted)
            assert pl.DataFrame(source).height == ROWS
            assert duckdb.execute("SELECT sum(v) FROM source").fetchall() == [(pc.sum(wanted["v"]).as_py(),)]
            large = pa.schema([("k", pa.int32()), ("v", pa.float64()), ("w", pa.large_string())])
            assert pa.table(source, schema=large).schema.types == large.types
            assert pa.schema(source) == wanted.schema
        other = store.create_table("copy", SCHEMA, ["k"])
        other.upsert(snapshot["t"])
        assert other.to_arrow().equals(wanted)


# ---- the dataset ----------------------------------------------------------------------------------------------------


@pytest.mark.medium
def test_a_dataset_scans_as_pyarrow_s_do(store: el.Store, tmp_path: Path) -> None:
    with store.snapshot(["t"], consistency="latest") as snapshot:
        ours, theirs = snapshot["t"].dataset(), ds.dataset(snapshot["t"].to_arrow())
        assert isinstance(ours, ds.Dataset)
        some = (K > 100) & (pc.field("w") == "w3")
        columns = {"twice": pc.multiply(pc.field("v"), 2), "k": K}
        assert ours.to_table(filter=some).equals(theirs.to_table(filter=some))
        assert ours.to_table(columns, filter=some).equals(theirs.to_table(columns, filter=some))
        assert ours.to_table(["w", "k"]).equals(theirs.to_table(["w", "k"]))
        assert ours.to_table({"one": pc.scalar(1)}).num_rows == ROWS
        assert ours.filter(some).filter(K < 200).head(3).equals(theirs.filter(some).filter(K < 200).head(3))
        assert ours.filter(K < 200).count_rows(some) == theirs.filter(K < 200).count_rows(some)
        assert ours.take([5, 3]).equals(theirs.take([5, 3]))
        assert max(batch.num_rows for batch in ours.to_batches(batch_size=77, use_threads=False)) == 77
        ds.write_dataset(ours, tmp_path / "out", format="parquet")
        assert ds.dataset(tmp_path / "out").count_rows() == ROWS
        for wrong in (lambda: ours.filter(pc.field("no") > 1), lambda: ours.filter("k > 1"),
                      lambda: ours.to_table(["no"]), lambda: ours.to_table("k"), lambda: ours.scanner(batch_size=0),
                      lambda: ours.to_table({"x": pc.field("no")})):  # fmt: skip
            with pytest.raises(el.InvalidInput):
                wrong()


def test_arrow_s_own_engine_is_told_and_not_led_astray(store: el.Store) -> None:
    """Without a file that says so it would follow a null pointer, or find no rows."""
    ours = store.table("t").dataset()
    for reach in (
        lambda: ds.Scanner.from_dataset(ours).to_table(),
        lambda: ds.dataset([ours, ours]).to_table(),
        lambda: acero.Declaration("scan", acero.ScanNodeOptions(ours)).to_table(),
        lambda: ds.dataset(pa.table({"k": [1]})).join(ours, "k").to_table(),
        lambda: ours.join(ours, "k"),
        lambda: ours.sort_by("k"),
        lambda: list(ours.get_fragments()),
        lambda: ours.children,
        lambda: ours.replace_schema(pa.schema([("k", pa.int64())])).to_table(),
        lambda: copy.copy(ours),
    ):
        with pytest.raises(el.InvalidInput, match="to_table"):
            reach()


@pytest.mark.medium
def test_a_dataset_that_nobody_has_any_more_is_gone(store: el.Store) -> None:
    """Arrow once kept the error that it met while a dataset was made, and so the frames of all that made it."""
    with store.snapshot(["t"], consistency="latest") as snapshot:
        dataset, connection = snapshot["t"].dataset(), snapshot.duckdb()
        assert dataset.head(1).num_rows == 1
        assert connection.execute("SELECT count(*) FROM t").fetchall() == [(ROWS,)]
        alive = weakref.ref(dataset)
        connection.close()
        del dataset, connection
        gc.collect()
        assert alive() is None
        assert not [held for held in gc.get_objects() if isinstance(held, TableDataset)]


@pytest.mark.medium
def test_threads_share_a_door(store: el.Store) -> None:
    with store.snapshot(["t"], consistency="latest") as snapshot, snapshot.duckdb() as connection:
        lazy, dataset = snapshot["t"].lazy(), snapshot["t"].dataset()
        wanted = pc.sum(dataset.to_table(["v"])["v"]).as_py()
        sums: list[int] = []

        def work(number: int) -> None:
            cursor = connection.cursor()
            cursor.register("t", dataset)
            for _ in range(3):
                sums.append(cursor.execute("SELECT sum(a.v) FROM t a JOIN t b USING (k)").fetchall()[0][0])
                sums.append(lazy.join(lazy.filter(pl.col("k") >= 0), on="k").select(pl.col("v").sum()).collect().item())

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sums == [wanted] * 24


@pytest.mark.parametrize("nested", [False, True])
def test_polars_reads_slices_of_fixed_size_lists_with_nulls(nested: bool) -> None:
    """polars 2.1 fails on such a slice, which a scan of several key ranges returns."""
    pairs = pa.array([[1, 2], None, [3, 4], [5, None], None], pa.list_(pa.int32(), 2))
    column = pa.StructArray.from_arrays([pairs], ["pair"]) if nested else pairs
    table = pa.table({"f": pa.chunked_array([column.slice(0, 2), column.slice(3)])})
    assert frame_of(table)["f"].to_list() == table["f"].to_pylist()
    assert frame_of(table.slice(1, 2))["f"].to_list() == table["f"].to_pylist()[1:3]
    assert frame_of(table.slice(0, 0))["f"].to_list() == []


def test_polars_reads_fixed_size_lists_beside_columns_in_more_pieces() -> None:
    """A batch ends where a piece of any column does, so it may hold a slice of a list column of one piece."""
    pairs = pa.array([[4, None], None], pa.list_(pa.int32(), 2))
    table = pa.table({"k": pa.chunked_array([[1], [2]]), "f": pairs})
    assert frame_of(table)["f"].to_list() == pairs.to_pylist()
