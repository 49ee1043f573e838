"""Cache of downloaded and verified files, bounded by bytes: reads of several ranges of a file cost one download."""

from __future__ import annotations

import pyarrow as pa

from epochlog.store.env.lru_cache import LRUCache

LIMIT_BYTES = 256 << 20

downloads: LRUCache[pa.Buffer] = LRUCache(LIMIT_BYTES, lambda data: 512 + data.size, name="downloads")
