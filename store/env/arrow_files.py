"""Implementation of Files on any file system of pyarrow: S3, GCS, HDFS and others."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.fs as pafs

from epochlog.errors import ReadFailed, WriteFailed

from .files import FileInfo, delete_failed, inside_root, reading, write_failed
from .paths import has_unique_name
from .read_only import refuse_write


@dataclass(frozen=True, slots=True)
class ArrowFiles:
    """Files below `base` in a pyarrow file system. An object is durable once the file system has accepted it.

    Requests cost time and money, so `write` does not check if a name that ends with a random number exists.
    """

    filesystem: pafs.FileSystem
    base: str
    place: str = ""
    read_only: bool = False
    remote: ClassVar[bool] = True

    def write(self, path: str, data: pa.Buffer | bytes) -> None:
        full = self._full(path)
        if self.read_only:
            refuse_write(self.place)
        if not has_unique_name(path) and self._is_taken(path):
            raise FileExistsError(errno.EEXIST, "the file exists already", full)
        try:
            stream = self._create(full)
        except OSError as error:
            raise write_failed(full, error) from error
        try:
            stream.write(data)
            stream.close()
        except OSError as error:
            self._try_close_and_delete(stream, full)
            raise write_failed(full, error) from error

    def read(self, path: str) -> pa.Buffer:
        with self.open_input(path) as file, reading(self._full(path)):
            return file.read_buffer()

    def open_input(self, path: str) -> pa.NativeFile:
        full = self._full(path)
        with reading(full):
            return self.filesystem.open_input_file(full)

    def size(self, path: str) -> int:
        return self._info(path).size

    def stamp(self, path: str) -> tuple[str | int, ...]:
        info = self._info(path)
        return self.filesystem.type_name, info.path, info.size, info.mtime_ns or 0

    def exists(self, path: str) -> bool:
        full = self._full(path)
        with reading(full):
            return self.filesystem.get_file_info(full).type == pafs.FileType.File

    def list(self, prefix: str = "") -> list[FileInfo]:
        folder = self._full(prefix) if prefix else self.base
        with reading(folder):
            infos = self.filesystem.get_file_info(pafs.FileSelector(folder, allow_not_found=True, recursive=True))
        skip = len(self.base) + 1 if self.base else 0
        files = [
            FileInfo(info.path[skip:], info.size, (info.mtime_ns or 0) // 1_000_000)
            for info in infos
            if info.type == pafs.FileType.File
        ]
        return sorted(files, key=lambda info: info.path)

    def delete(self, path: str) -> None:
        full = self._full(path)
        if self.read_only:
            refuse_write(self.place)
        try:
            self.filesystem.delete_file(full)
        except FileNotFoundError:
            return
        except OSError as error:
            if self._is_missing(path):
                return  # some file systems report a missing file as another error
            raise delete_failed(full, error) from error

    def _full(self, path: str) -> str:
        return f"{self.base}/{inside_root(path)}" if self.base else inside_root(path)

    def _info(self, path: str) -> pafs.FileInfo:
        full = self._full(path)
        with reading(full):
            info = self.filesystem.get_file_info(full)
        if info.type != pafs.FileType.File:
            raise FileNotFoundError(errno.ENOENT, "no such file", full)
        return info

    def _is_taken(self, path: str) -> bool:
        try:
            return self.exists(path)
        except ReadFailed as error:
            raise WriteFailed(f"{self._full(path)} was not written: {error}") from error

    def _is_missing(self, path: str) -> bool:
        try:
            return not self.exists(path)
        except ReadFailed:
            return False

    def _create(self, full: str) -> pa.NativeFile:
        try:
            return self.filesystem.open_output_stream(full)
        except FileNotFoundError:  # HDFS and local file systems need the folder; object stores have none
            self.filesystem.create_dir(os.path.dirname(full), recursive=True)
            return self.filesystem.open_output_stream(full)

    def _try_close_and_delete(self, stream: pa.NativeFile, full: str) -> None:
        for undo in (stream.close, lambda: self.filesystem.delete_file(full)):
            try:
                undo()
            except OSError:
                continue  # the caller raises the first error; vacuum deletes a file that stays
