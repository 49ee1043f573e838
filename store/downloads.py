"""Files that were downloaded and found whole, kept in memory within a bound: ranges of one file cost one download."""

from __future__ import annotations

import pyarrow as pa

from .kept import Kept

LIMIT_BYTES = 256 << 20

downloads: Kept[pa.Buffer] = Kept(LIMIT_BYTES, lambda data: data.size)
