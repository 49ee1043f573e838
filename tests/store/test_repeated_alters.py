"""Alters that are repeated: none is lost in silence, and none is made twice by a retry."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.store.catalog.keys import hist_key
from epochlog.store.commit import idempotency, root_commit, table_ddl
from epochlog.store.metadata.schema_change import SchemaChange, next_version
from epochlog.store.types.schema import TableSchema
from lab import Lab

Change = dict[str, Any]
NAMES = ("a", "b", "c")
FIELDS = pa.schema([("id", pa.int64()), *((name, pa.int64()) for name in NAMES)])
SWAP: Change = {"rename": {"a": "b", "b": "a"}}


@pytest.fixture
def table(lab: Lab) -> el.Table:
    return filled(lab.store, "t")


def filled(store: el.Store, name: str) -> el.Table:
    """Create a table whose columns have their own field ids as values: id 1, a 2, b 3, c 4."""
    table = store.create_table(name, FIELDS, ["id"])
    table.upsert([{"id": 1, "a": 2, "b": 3, "c": 4}])
    return table


def added(name: str) -> pa.Field:
    return pa.field(name, pa.int64())


# ---- by hand -----------------------------------------------------------------------------------------------------


@pytest.mark.rule("7.11", "7.12")
def test_two_names_are_swapped_and_swapped_back_at_once(table: el.Table) -> None:
    table.alter(**SWAP)
    with pytest.raises(el.InvalidInput, match=r"has this change already, from epoch .*txn=\(application, id\)"):
        table.alter(**SWAP)
    table.alter(**SWAP, txn=("back", 1))
    assert table.to_arrow().to_pylist() == [{"id": 1, "a": 2, "b": 3, "c": 4}]
    table.alter(**SWAP, txn=("back", 1))
    assert table.schema.names == ["id", "a", "b", "c"]


REUSING: list[Change] = [
    SWAP,
    {"rename": {"a": "b", "b": "c", "c": "a"}},
    {"rename": {"a": "b", "b": "d"}},
    {"drop": ["b"], "add": [added("b")]},
    {"drop": ["b"], "rename": {"a": "b"}},
    {"rename": {"a": "d"}, "add": [added("a")]},
]


@pytest.mark.rule("7.11")
@pytest.mark.parametrize("change", REUSING, ids=str)
@pytest.mark.parametrize("between", ["nothing", "commit", "alter", "both"])
def test_an_alter_that_reuses_a_name_is_not_repeated(table: el.Table, change: Change, between: str) -> None:
    """A script that is run again, or a second alter that is meant: neither takes values away, nor is it ignored."""
    table.alter(**change)
    if between in ("commit", "both"):
        table.upsert(table.to_arrow())
    if between in ("alter", "both"):
        table.alter(add=[added("z")])
    before = table.to_arrow()
    with pytest.raises(el.InvalidInput, match="has this change already, from epoch .*txn="):
        table.alter(**change)
    assert table.to_arrow() == before


@pytest.mark.rule("7.12")
@pytest.mark.parametrize("change", [*REUSING, {"add": [added("z")]}, {"drop": ["a"]}, {"rename": {"a": "z"}}], ids=str)
def test_a_retry_with_its_txn_has_no_effect_whatever_came_between(table: el.Table, lab: Lab, change: Change) -> None:
    table.alter(**change, txn=("deploy", 1))
    assert table.history(1).to_pylist()[0]["txn"] == {"application": "deploy", "id": 1}
    values = [name for name in table.schema.names if name != "id"]
    table.alter(drop=values, add=[added(name) for name in (*NAMES, "z")], txn=("other", 1))
    table.upsert([{"id": 1, "a": 5, "b": 6, "c": 7, "z": 8}])
    before, epochs = table.to_arrow(), table.history()["epoch"].to_pylist()
    other = lab.open()
    other.table("t").alter(**change, txn=("deploy", 1))
    other.close()
    assert (table.to_arrow(), table.history()["epoch"].to_pylist()) == (before, epochs)
    assert lab.store.resolve(("deploy", 1)) == epochs[-2]


@pytest.mark.rule("7.12")
def test_a_txn_of_an_alter_without_effect_is_used_up(table: el.Table, lab: Lab) -> None:
    """A retry that comes late adds no column that was dropped meanwhile."""
    table.alter(add=[added("z")])
    table.alter(add=[added("z")], txn=("deploy", 1))
    table.alter(drop=["z"])
    table.alter(add=[added("z")], txn=("deploy", 1))
    assert table.schema.names == ["id", *NAMES]
    assert lab.store.resolve(("deploy", 1)) == table.history(2)["epoch"][1].as_py()


@pytest.mark.rule("7.12")
def test_a_txn_is_of_one_alter_of_one_table(table: el.Table, lab: Lab) -> None:
    other = filled(lab.store, "other")
    table.alter(**SWAP, txn=("deploy", 1))
    table.upsert([{"id": 2, "a": 0, "b": 0, "c": 0}], txn=("deploy", 2))
    other.alter(add=[pa.field("d", pa.int64(), metadata={"comment": "cents"})], txn=("deploy", 9))
    for attempt in (
        lambda: other.alter(add=[pa.field("d", pa.int64(), metadata={"comment": "euros"})], txn=("deploy", 9)),
        lambda: table.alter(drop=["a"], txn=("deploy", 1)),
        lambda: table.alter(**SWAP, changelog="full", txn=("deploy", 1)),
        lambda: other.alter(**SWAP, txn=("deploy", 1)),
        lambda: table.alter(**SWAP, txn=("deploy", 2)),
        lambda: table.upsert([{"id": 3, "a": 0, "b": 0, "c": 0}], txn=("deploy", 1)),
        lambda: lab.store.transaction(txn=("deploy", 1)).__enter__().__exit__(None, None, None),
    ):
        with pytest.raises(el.TxnMismatch, match="was used before for"):
            attempt()
    assert table.to_arrow()["id"].to_pylist() == [1, 2]
    assert other.schema.names == ["id", *NAMES, "d"]
    assert lab.store.resolve(("deploy", 3)) is None
    with pytest.raises(el.TxnAborted):
        table.alter(drop=["a"], txn=("deploy", 3))
    with pytest.raises(el.InvalidInput, match="txn= goes with add="):
        table.alter(changelog="full", txn=("deploy", 4))
    with pytest.raises(el.InvalidInput, match="pair"):
        table.alter(**SWAP, txn=("deploy", -1))


@pytest.mark.rule("7.12")
def test_a_txn_of_an_alter_is_known_as_long_as_those_of_commits(
    table: el.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "KEPT_OUTCOMES", 2)
    table.alter(**SWAP, txn=("deploy", 1))
    table.upsert([{"id": 2, "a": 0, "b": 0, "c": 0}], txn=("deploy", 2))
    table.alter(**SWAP, txn=("deploy", 1))
    table.alter(**SWAP, txn=("deploy", 3))
    with pytest.raises(el.TxnOutcomeForgotten):
        table.alter(**SWAP, txn=("deploy", 1))
    assert table.schema.names == ["id", *NAMES]


@pytest.mark.rule("7.12")
def test_an_earlier_release_refuses_a_commit_under_the_txn_of_an_alter(
    table: el.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier release compares the tables of an outcome, and knows no other field of it."""
    table.alter(**SWAP, txn=("deploy", 1))
    real = idempotency.resolve_outcome

    def earlier(view: Any, txn: Any, tables: Any, alter: bytes | None = None) -> int | None:
        return real(_WithoutAlter(view), txn, tables)

    monkeypatch.setattr(root_commit, "resolve_outcome", earlier)
    with pytest.raises(el.TxnMismatch, match="other tables"):
        table.upsert([{"id": 2, "a": 0, "b": 0, "c": 0}], txn=("deploy", 1))


@dataclass
class _WithoutAlter:
    view: Any

    def get(self, key: bytes) -> Any:
        record = self.view.get(key)
        return record and {name: value for name, value in record.items() if name != "alter"}


@pytest.mark.rule("7.11")
def test_two_names_are_swapped_again_by_a_third_name(table: el.Table) -> None:
    table.alter(**SWAP)
    table.upsert(table.to_arrow())
    table.alter(rename={"a": "d"})
    table.alter(rename={"b": "a"})
    table.alter(rename={"d": "b"})
    assert table.to_arrow().to_pylist() == [{"id": 1, "a": 2, "b": 3, "c": 4}]
    table.alter(**SWAP)  # it has been made, but the table does not have it any more
    with pytest.raises(el.InvalidInput, match="already"):
        table.alter(**SWAP)
    assert table.to_arrow()["b"].to_pylist() == [2]


@pytest.mark.rule("7.1")
def test_a_part_that_no_alter_has_made_is_not_left_out(table: el.Table) -> None:
    """A column that was renamed was not dropped, and one that has its name by a rename was not added under it."""
    table.alter(add=[added("y")])
    table.alter(rename={"a": "d", "y": "z"})
    with pytest.raises(el.InvalidInput, match="no column 'a'"):
        table.alter(drop=["a"])
    with pytest.raises(el.InvalidSchema, match="column 'z' already"):
        table.alter(add=[added("z")])
    assert table.schema.names == ["id", "d", "b", "c", "z"]


@pytest.mark.rule("7.1", "7.7")
def test_a_rename_that_was_made_hides_no_widening_from_the_jobs(lab: Lab) -> None:
    table = lab.store.create_table("t", pa.schema([("id", pa.int64()), ("a", pa.int32())]), ["id"])
    lab.job("j", ["t"])
    table.alter(rename={"a": "b"})
    with pytest.raises(el.SchemaInUse, match="column 'b' cannot be widened"):
        table.alter(rename={"a": "b"}, widen={"a": pa.int64()})
    lab.store.drop_job("j")
    table.alter(rename={"a": "b"}, widen={"a": pa.int64()})
    assert table.schema.field("b").type == pa.int64()


# ---- all short sequences -----------------------------------------------------------------------------------------


def renames(targets: tuple[str, ...]) -> Iterator[Change]:
    """Yield all renames of some of the three columns."""
    for names in itertools.chain.from_iterable(itertools.combinations(NAMES, size) for size in (1, 2, 3)):
        for new in itertools.permutations(targets, len(names)):
            if all(old != name for old, name in zip(names, new, strict=True)):
                yield {"rename": dict(zip(names, new, strict=True))}


PERMUTATIONS = [change for change in renames(NAMES) if set(change["rename"]) == set(change["rename"].values())]
FIRST = [change for change in PERMUTATIONS if change["rename"].get("a") == "b"]
"""Permutations that differ by more than the names of the columns."""
ALL = [*renames((*NAMES, "d")), *REUSING[3:], {"drop": ["b"]}, {"add": [added("b")]}, {"add": [added("d")]}]


@dataclass
class Model:
    """Columns of a table by field id, and the alters that have taken effect, with the owners of the names then."""

    names: dict[int, str] = field(default_factory=lambda: dict(enumerate(("id", *NAMES), start=1)))
    newest_id: int = 4
    history: list[tuple[Change, dict[str, int]]] = field(default_factory=list)
    versions: list[dict[int, str]] = field(default_factory=list)
    txns: dict[int, Change] = field(default_factory=dict)

    @property
    def ids(self) -> dict[str, int]:
        return {name: id_ for id_, name in self.names.items()}

    def expected(self, change: Change, txn: int | None) -> tuple[str, Change]:
        """Return "known", "applied", "refused" (a repetition), "there" or "impossible"; and what is to be applied."""
        if txn is not None and txn in self.txns:
            assert self.txns[txn] == change
            return "known", {}
        given, taken = names_of(change)
        if reused := given & taken:
            owners = {name: self.ids.get(name) for name in reused}
            made = ({name: owned.get(name) for name in reused} for made, owned in self.history if made == change)
            if txn is None and owners in made:
                return "refused", {}
        else:
            change = self._missing(change)
            given, taken = names_of(change)
            if not given and not taken:
                return "there", {}
        possible = taken <= set(self.ids) and not given & (set(self.ids) - taken)
        return "applied" if possible else "impossible", change

    def apply(self, change: Change) -> None:
        self.versions.append(dict(self.names))
        renamed, dropped = change.get("rename", {}), change.get("drop", ())
        self.names = {id_: renamed.get(name, name) for id_, name in self.names.items() if name not in dropped}
        for column in change.get("add", ()):
            self.newest_id += 1
            self.names[self.newest_id] = column.name
        self.history.append((change, self.ids))

    def _missing(self, change: Change) -> Change:
        """Return the parts of a change, which reuses no name, that no alter has made."""
        ids, had = self.ids, {(name, id_) for version in self.versions for id_, name in version.items()}
        dropped = {name for name, id_ in had if id_ not in self.names} - set(ids)
        renamed = {(old, new) for new, id_ in ids.items() for old, of in had if of == id_ and old not in ids}
        return {
            "add": [column for column in change.get("add", ()) if ids.get(column.name, 0) <= 4],
            "drop": [name for name in change.get("drop", ()) if name not in dropped],
            "rename": {old: new for old, new in change.get("rename", {}).items() if (old, new) not in renamed},
        }


def names_of(change: Change) -> tuple[set[str], set[str]]:
    """Return the names that a change gives to columns, and those that it takes from columns."""
    given = {*(column.name for column in change.get("add", ())), *change.get("rename", {}).values()}
    return given, {*change.get("drop", ()), *change.get("rename", {})}


Call = tuple[Change, int | None]


class Door(Protocol):
    """A way to alter a table. owners: field ids by name, in the order of the columns."""

    def alter(self, change: Change, txn: int | None) -> None: ...

    def owners(self) -> dict[str, int | None]: ...


class StoredTable:
    """A table of a store: its values are field ids, None below a column that was added."""

    def __init__(self, table: el.Table) -> None:
        self._table = table

    def alter(self, change: Change, txn: int | None) -> None:
        self._table.alter(**change, txn=None if txn is None else (self._table.name, txn))

    def owners(self) -> dict[str, int | None]:
        (row,) = self._table.to_arrow().to_pylist()
        return row


class SchemaVersions:
    """Schema versions alone, and the pairs that have landed."""

    def __init__(self) -> None:
        self._schema = TableSchema("t", FIELDS, ("id",))
        self._landed: set[int] = set()

    def alter(self, change: Change, txn: int | None) -> None:
        if txn in self._landed:
            return
        requested = SchemaChange.of("t", *(change.get(part) for part in ("add", "drop", "rename", "widen")))
        changed = requested.applied(self._schema, 0, again=txn is not None)
        if changed is not None:
            lineage = self._schema.lineage or (self._schema,)
            self._schema = next_version(changed, lineage, len(lineage))
        if txn is not None:
            self._landed.add(txn)

    def owners(self) -> dict[str, int | None]:
        ids = zip(self._schema.schema.names, self._schema.ids, strict=True)
        return {name: id_ if id_ <= 4 else None for name, id_ in ids}


def run_beside_model(door: Door, calls: list[Call]) -> None:
    """Make the calls through a door and on a model. A column keeps its values; each call does what the model says."""
    model = Model()
    for change, txn in calls:
        expected, made = model.expected(change, txn)
        try:
            door.alter(change, txn)
        except el.InvalidInput as error:
            actual = "refused" if "txn=(application, id)" in str(error) else "impossible"
        else:
            actual = "ignored" if expected in ("refused", "impossible") else expected
        assert actual == expected, (calls, change, txn)
        if expected == "applied":
            model.apply(made)
        if txn is not None and expected != "impossible":
            model.txns[txn] = change
        owners = {name: id_ if id_ <= 4 else None for id_, name in model.names.items()}
        assert list(door.owners().items()) == list(owners.items()), (calls, change, txn)


def sequences(*changes: Sequence[Change], ways: Sequence[str] = ("once", "twice", "txn")) -> Iterator[list[Call]]:
    """Yield all sequences of calls with one change of each argument, made once, twice, or twice with a txn; and, at the
    end, the first call once more, late.
    """
    for chosen in itertools.product(*changes):
        for ways_of_chosen in itertools.product(ways, repeat=len(chosen)):
            calls: list[Call] = []
            for number, (change, way) in enumerate(zip(chosen, ways_of_chosen, strict=True)):
                calls += [(change, number if way == "txn" else None)] * (1 if way == "once" else 2)
            yield [*calls, calls[0]]


def _run(all_calls: Iterable[list[Call]]) -> None:
    for calls in all_calls:
        run_beside_model(SchemaVersions(), calls)


@pytest.mark.medium
@pytest.mark.rule("7.1", "7.11")
def test_all_pairs_of_alters_and_their_retries() -> None:
    first = [change for change in ALL if "a" in change.get("rename", "a") and change not in PERMUTATIONS]
    _run(sequences([*first, *FIRST], ALL, ways=("twice", "txn")))


@pytest.mark.medium
@pytest.mark.rule("7.1", "7.11")
def test_all_triples_of_permutations_and_their_retries() -> None:
    _run(sequences(FIRST, PERMUTATIONS, PERMUTATIONS))


@pytest.mark.medium
@pytest.mark.rule("7.11", "7.12")
def test_all_pairs_of_permutations_in_a_store(lab: Lab) -> None:
    for number, calls in enumerate(sequences(FIRST, PERMUTATIONS)):
        run_beside_model(StoredTable(filled(lab.store, f"t{number}")), calls)


# ---- planted bugs ------------------------------------------------------------------------------------------------


def taken_for_a_retry(patch: pytest.MonkeyPatch) -> None:
    """The alter that has made the newest version has no effect, whatever it is."""
    real = SchemaChange.applied

    def applied(self: SchemaChange, schema: TableSchema, *args: Any, **options: Any) -> TableSchema | None:
        lineage = schema.lineage
        made = len(lineage) > 1 and self._yields(lineage)
        return None if made else real(self, schema, *args, **options)

    patch.setattr(SchemaChange, "applied", applied)


def made_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SchemaChange, "_refuse_repetition", lambda *_: None)


def refused_under_a_new_txn(patch: pytest.MonkeyPatch) -> None:
    real = SchemaChange.applied
    patch.setattr(
        SchemaChange, "applied", lambda self, schema, created, again: real(self, schema, created, again=False)
    )


def left_out_by_its_names(patch: pytest.MonkeyPatch) -> None:
    """A name that is not in the table any more counts as dropped."""
    real = SchemaChange._without_done

    def without_done(self: SchemaChange, schema: TableSchema, lineage: tuple[TableSchema, ...]) -> SchemaChange:
        pending = real(self, schema, lineage)
        return replace(pending, drop=tuple(name for name in pending.drop if name in schema.schema.names))

    patch.setattr(SchemaChange, "_without_done", without_done)


@pytest.mark.planted
@pytest.mark.parametrize("plant", [taken_for_a_retry, made_again, refused_under_a_new_txn, left_out_by_its_names])
def test_a_wrong_decision_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, el.EpochlogError)):
        _run(sequences([SWAP, {"rename": {"b": "d"}}], [SWAP, {"drop": ["b"]}]))


def retries_unknown(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(table_ddl, "resolve_outcome", lambda *_: None)


def txns_without_content(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SchemaChange, "fingerprint", lambda *_: b"alter")


def nothing_made_nothing_recorded(patch: pytest.MonkeyPatch) -> None:
    real = table_ddl.record_outcome

    def record(tx: Any, txn: Any, tables: Any, epoch: Any, now_ms: int, *, alter: Any) -> None:
        if tx.get(hist_key(1, epoch)) is not None and tx.get(hist_key(1, epoch))["txn"] == list(txn):
            real(tx, txn, tables, epoch, now_ms, alter=alter)

    patch.setattr(table_ddl, "record_outcome", record)


@pytest.mark.planted
@pytest.mark.parametrize(
    ("plant", "found_by"),
    [
        pytest.param(
            retries_unknown,
            lambda table, _: test_two_names_are_swapped_and_swapped_back_at_once(table),
            marks=pytest.mark.damages_store,
        ),
        (txns_without_content, test_a_txn_is_of_one_alter_of_one_table),
        (nothing_made_nothing_recorded, test_a_txn_of_an_alter_without_effect_is_used_up),
    ],
)
def test_a_txn_that_is_not_kept_is_found(
    table: el.Table,
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    found_by: Callable[[el.Table, Lab], None],
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, el.EpochlogError, pytest.fail.Exception)):
        found_by(table, lab)
