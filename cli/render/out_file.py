"""Output file of rows: Parquet, Arrow or CSV by its ending, published when it is complete."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv

from epochlog.errors import InvalidInput, WriteFailed
from epochlog.store.env.local_folder import sync_dir

_T = pa.types
ENDINGS = (".parquet", ".arrow", ".csv")


@dataclass(frozen=True, slots=True)
class OutFile:
    """Output file to write; its ending is its format."""

    path: Path

    def check(self, schema: pa.Schema) -> None:
        """Raise InvalidInput for an unknown ending, an existing path, or a column that CSV cannot hold."""
        ending = self.path.suffix
        if ending not in ENDINGS:
            raise InvalidInput(f"--out {self.path}: the ending must be one of {', '.join(ENDINGS)}")
        if self.path.is_symlink():
            raise InvalidInput(f"--out {self.path} is a link, which is not followed: remove it, or name another file")
        if self.path.exists():
            raise InvalidInput(f"--out {self.path} exists already: remove it, or name another file")
        unsupported = next((field for field in schema if ending == ".csv" and _csv_cannot_hold(field.type)), None)
        if unsupported is not None:
            raise InvalidInput(
                f"--out {self.path}: CSV cannot hold column {unsupported.name!r} of type {unsupported.type}; write "
                ".parquet or .arrow, or leave the column out with --columns"
            )

    def write(
        self, schema: pa.Schema, batches: Iterable[pa.RecordBatch], progress: Callable[[int], None]
    ) -> tuple[int, int]:
        """Write the batches and return the numbers of rows and bytes.

        The rows go to a temporary file beside, which gets its name when it is complete and is removed on an error. Only
        this user can read both. progress: is called with the rows so far. Raises WriteFailed, and the errors of
        reading.
        """
        part_path = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        rows = 0
        with _as_write_failed(part_path):
            new_file = _create_private_file(part_path)
        try:
            with _as_write_failed(part_path), new_file as file:
                with _open_writer(file, self.path.suffix, schema) as writer:
                    for batch in batches:
                        writer.write_batch(batch)
                        rows += batch.num_rows
                        progress(rows)
                file.flush()
                os.fsync(file.fileno())
            with _as_write_failed(self.path):
                self._publish(part_path)
                sync_dir(self.path.parent)
                return rows, self.path.stat().st_size
        finally:
            with suppress(OSError):
                part_path.unlink(missing_ok=True)

    def _publish(self, part_path: Path) -> None:
        """Give the file its name. Raises InvalidInput if another file has taken it meanwhile."""
        try:
            os.link(part_path, self.path)
        except FileExistsError:
            raise InvalidInput(f"--out {self.path} was created by another process: name another file") from None
        except OSError:  # a file system without links
            os.rename(part_path, self.path)


def _create_private_file(part_path: Path) -> IO[bytes]:
    """Create a file that only this user can read. Raises FileExistsError if the file exists."""
    return os.fdopen(
        os.open(part_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb"
    )


@contextmanager
def _as_write_failed(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise WriteFailed(f"{path} cannot be written, no part of it is left: {error}") from error


def _open_writer(file: IO[bytes], kind: str, schema: pa.Schema) -> Any:
    if kind == ".parquet":
        from pyarrow.parquet import ParquetWriter

        return ParquetWriter(file, schema, compression="zstd")
    if kind == ".arrow":
        return pa.ipc.new_file(file, schema)
    return pa.csv.CSVWriter(file, schema)


def _csv_cannot_hold(kind: pa.DataType) -> bool:
    binary = _T.is_binary(kind) or _T.is_large_binary(kind) or _T.is_fixed_size_binary(kind) or _T.is_binary_view(kind)
    return binary or _T.is_nested(kind) or _T.is_string_view(kind)
