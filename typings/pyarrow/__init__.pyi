# pyarrow is compiled and ships no annotations: its names are taken as they come.

from typing import Any

def __getattr__(name: str) -> Any: ...
