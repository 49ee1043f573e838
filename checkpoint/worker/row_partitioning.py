"""Row partitioning: the refresh context of one part, which selects the part's share of rows by hash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pandas.util import hash_array

from epochlog.checkpoint.job.local_context import LocalRefreshContext
from epochlog.checkpoint.job.refresh_plan import PlannedOutput, RefreshPlan
from epochlog.checkpoint.job.step_work import CommittedStep
from epochlog.errors import InvalidInput
from epochlog.store.session.handle import Handle

_T = pa.types


class PartRefreshContext(LocalRefreshContext):
    """LocalRefreshContext of one of several actors that refresh a job in parallel, each for its share.

    part: the index of this part, from 0; parts: their number. The writes of all parts are committed together. Each part
    must write only rows of its share: take `share` of the rows that it reads, by the columns that determine a row of
    the output. `recompute` writes only the share of this part.
    """

    def __init__(self, handle: Handle, plan: RefreshPlan, part: int, parts: int) -> None:
        super().__init__(handle, plan)
        self.part = part
        self.parts = parts

    def share(self, data: pa.Table, by: Sequence[str]) -> pa.Table:
        """Return this part's rows, by their values in the columns `by`. Each row belongs to exactly one part."""
        return split(data, by, self.part, self.parts)

    def _share_of(self, rows: pa.Table, by: Sequence[str]) -> pa.Table:
        return self.share(rows, by)

    def _recompute(self, output: PlannedOutput, by: list[str], rows: pa.Table, touched: object) -> None:
        if not by and self.parts > 1:
            raise InvalidInput(
                f"recompute({output.table.name!r}, by=[]) replaces the whole output, and {self.parts} parts refresh it "
                "side by side; name the columns that identify a part's share"
            )
        super()._recompute(output, by, rows, touched)


@dataclass(frozen=True, slots=True)
class PartRefreshAdapter:
    """Adapter for refreshes of one part with pyarrow tables."""

    engine: ClassVar[str] = "part"
    handle: Handle
    part: int
    parts: int

    def context(self, plan: RefreshPlan) -> PartRefreshContext:
        return PartRefreshContext(self.handle, plan, self.part, self.parts)

    def check(self, job: str) -> None:
        """Accept the writes, because this process made them."""

    def translate_error(self, error: BaseException, job: str) -> BaseException:
        return error

    def committed(self, step: CommittedStep) -> None:
        """Do nothing: the catalog and the log have all of it."""


def split(data: pa.Table, by: Sequence[str], part: int, parts: int) -> pa.Table:
    """Select the rows of one of `parts` shares; rows with equal values in the columns `by` are in one share."""
    known = set(data.column_names)
    missing = [name for name in by if name not in known]
    if not by or missing:
        raise InvalidInput(f"a share is taken by one or more columns of the rows, not by {list(by)}")
    if parts == 1 or not data.num_rows:
        return data
    return data.filter(pa.array(_hash_rows(data, by) % np.uint64(parts) == np.uint64(part)))


def _hash_rows(data: pa.Table, by: Sequence[str]) -> np.ndarray:
    total = np.zeros(data.num_rows, np.uint64)
    for name in by:
        total = total * np.uint64(0x9E3779B97F4A7C15) + _hash_column(data.column(name))
    total ^= total >> np.uint64(32)
    return total


def _hash_column(column: pa.ChunkedArray) -> np.ndarray:
    """Hash each value; equal values have equal hashes in every process, chunk and nullability."""
    nulls = pc.is_null(column).to_numpy()
    kind = column.type
    if _T.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if _T.is_floating(kind):
        column = pc.add(column.cast(pa.float64()), 0.0)  # -0.0 equals 0.0
        values = pc.fill_null(column, 0.0).to_numpy()
        values = np.where(np.isnan(values), np.nan, values)  # one canonical NaN
    elif _T.is_boolean(kind):
        values = pc.fill_null(column.cast(pa.int8()), 0).to_numpy()
    elif _T.is_integer(kind):
        values = pc.fill_null(column.cast(pa.int64(), safe=False), 0).to_numpy()
    elif _T.is_temporal(kind):
        narrow = kind.bit_width == 32
        values = pc.fill_null(column.cast(pa.int32() if narrow else pa.int64()), 0).to_numpy()
    elif _T.is_binary(kind) or _T.is_large_binary(kind) or _T.is_fixed_size_binary(kind):
        values = pc.fill_null(column.cast(pa.large_binary()), b"").to_numpy()
    elif _T.is_string(kind) or _T.is_large_string(kind) or _T.is_decimal(kind):
        values = pc.fill_null(column.cast(pa.large_string()), "").to_numpy()
    else:
        raise InvalidInput(f"a share cannot be taken by a column of type {kind}")
    if values.dtype != object and values.dtype != np.float64:
        values = values.astype(np.int64)
    hashed: Any = hash_array(values, categorize=True)  # pyright: ignore[reportArgumentType, reportCallIssue]: its stub lacks arrays
    return np.where(nulls, np.uint64(0x5BD1E995), hashed)
