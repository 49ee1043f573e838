"""Files in memory, for rows that no store keeps."""

from __future__ import annotations

from typing import ClassVar

import pyarrow as pa

from .files import FileInfo


class InMemoryFiles:
    """Implementation of Files in the memory of this process."""

    remote: ClassVar[bool] = False

    def __init__(self) -> None:
        self._files: dict[str, pa.Buffer] = {}

    @property
    def read_only(self) -> bool:
        return False

    @property
    def place(self) -> str:
        return f"memory of {id(self)}"

    def write(self, path: str, data: pa.Buffer | bytes) -> None:
        if path in self._files:
            raise FileExistsError(path)
        self._files[path] = pa.py_buffer(data)

    def read(self, path: str) -> pa.Buffer:
        if path not in self._files:
            raise FileNotFoundError(path)
        return self._files[path]

    def open_input(self, path: str) -> pa.NativeFile:
        return pa.BufferReader(self.read(path))

    def size(self, path: str) -> int:
        return self.read(path).size

    def stamp(self, path: str) -> tuple[str | int, ...]:
        return self.place, path, self.size(path)

    def exists(self, path: str) -> bool:
        return path in self._files

    def list(self, prefix: str = "") -> list[FileInfo]:
        within = f"{prefix}/" if prefix else ""
        return [FileInfo(path, data.size, 0) for path, data in sorted(self._files.items()) if path.startswith(within)]

    def delete(self, path: str) -> None:
        self._files.pop(path, None)
