"""Order of the changes of one key by sequence: the greatest sequence wins, at a tie a delete, then the later change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.store.types.arrays import from_numpy, to_numpy
from epochlog.store.types.key_codec import KeyCodec, last_of_each, sort_indices
from epochlog.store.types.schema import TableSchema

from .merge import Rows


def encoded_sequence(table: TableSchema, data: pa.Table) -> pa.Array:
    """Return the sequence of each row, encoded as keys are: the order of the codes is the order of the sequences."""
    assert table.sequence_by is not None
    return KeyCodec(table.schema, (table.sequence_by,)).encode(data)


def comparable(codes: Sequence[pa.Array]) -> list[np.ndarray]:
    """Return numbers in the order of encoded sequences. Those of one call can be compared with each other."""
    if not codes or not pa.types.is_binary(codes[0].type):
        return [to_numpy(array) for array in codes]
    joined = pa.concat_arrays(codes)
    ranks = to_numpy(pc.rank(joined, sort_keys="ascending", tiebreaker="dense")).astype(np.int64)
    return np.split(ranks, np.cumsum([len(array) for array in codes[:-1]]))


def winners(keys: pa.Array, sequence: np.ndarray, deleted: np.ndarray) -> np.ndarray:
    """Return the positions of each key's winning change, in key order. The changes are in order of arrival."""
    order = sort_indices(keys)
    if last_of_each(keys.take(from_numpy(order))).all():  # no key repeats
        return order
    order = np.lexsort((deleted, sequence))  # stable: of equal ones the later arrival stays behind
    order = order[sort_indices(keys.take(from_numpy(order)))]
    return order[last_of_each(keys.take(from_numpy(order)))]


def greatest_wins(sources: Sequence[Rows], table: TableSchema) -> Rows:
    """Return the winning change of each key, in key order. The rows of the sources, in order of arrival, may be
    unsorted and repeat keys.
    """
    sources = [rows for rows in sources if len(rows)] or list(sources[:1])
    marks = [np.zeros(len(rows), np.bool_) if rows.deleted is None else rows.deleted for rows in sources]
    keys = pa.concat_arrays([rows.keys for rows in sources])
    data = pa.concat_tables([rows.data for rows in sources], promote_options="permissive")
    deleted = np.concatenate(marks)
    (sequence,) = comparable([encoded_sequence(table, data)])
    chosen = winners(keys, sequence, deleted)
    if len(chosen) == len(keys) and (chosen[1:] > chosen[:-1]).all():
        return Rows(keys, data, deleted if deleted.any() else None)
    take = from_numpy(chosen)
    deleted = deleted[chosen]
    return Rows(keys.take(take), data.combine_chunks().take(take), deleted if deleted.any() else None)
