"""Guarantees: expressions that hold for all rows of a file or of a part of it, by which a filter rules it out."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc


def passing_guarantees(schema: pa.Schema, filter: pc.Expression, guarantees: Sequence[pc.Expression]) -> list[int]:
    """Return the indices of the guarantees under which rows may pass the filter. Arrow's datasets decide it, but for
    NaN: they take `not (x < NaN)` for false where bounds of x are known.
    """
    if any(pa.types.is_floating(kind) for kind in schema.types) and "nan" in str(filter).lower():
        return list(range(len(guarantees)))
    import pyarrow.dataset as ds  # it imports pandas
    from pyarrow.fs import LocalFileSystem

    form, filesystem = ds.IpcFileFormat(), LocalFileSystem()
    fragments = [
        form.make_fragment(str(place), filesystem, partition_expression=guarantee)
        for place, guarantee in enumerate(guarantees)
    ]
    dataset = ds.FileSystemDataset(fragments, schema, form, filesystem=filesystem)
    try:
        return [int(fragment.path) for fragment in dataset.get_fragments(filter)]
    except pa.ArrowInvalid:  # a value of the filter has no place among the guarantee's
        return list(range(len(guarantees)))
