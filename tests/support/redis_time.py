"""Time of a Redis server that a test sets: scripts and calls read it from a key of the server, as from its clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from epochlog.store.catalog.redis import catalog, client, scripts, transaction
from epochlog.store.catalog.redis.scripts import Script

KEY = "epochlog:server-ms"
_TIME = "local time = redis.call('TIME')"
_SET = f"local ms = tonumber(redis.call('GET', '{KEY}')); local time = {{math.floor(ms / 1000), ms % 1000 * 1000}}"


def _patched(script: Script) -> Script:
    text = script.text.decode()
    assert _TIME in text or "TIME')" not in text
    return Script(script.name, text.replace(_TIME, _SET).encode())


@contextmanager
def served_time() -> Iterator[None]:
    """Let all stores of this process take the server's time from its key."""
    originals = [
        (module, name, value)
        for module in (catalog, transaction)
        for name, value in vars(module).items()
        if isinstance(value, Script)
    ]
    real = client.RedisServer.time_ms
    try:
        for module, name, value in originals:
            setattr(module, name, _patched(value))
        client.RedisServer.time_ms = lambda self: int(self._command("GET", KEY))
        yield
    finally:
        client.RedisServer.time_ms = real
        for module, name, value in originals:
            setattr(module, name, value)


assert scripts.FETCH.text.count(_TIME.encode()) == 1
