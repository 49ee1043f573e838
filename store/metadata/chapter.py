"""Chapters: records of many remembered commits of a table, in place of a record for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from epochlog.store.catalog.records import Record, checked, has_first_field
from epochlog.store.types.epoch import show_epoch

from .commit_columns import pack_columns, unpack_columns
from .version import Commit

_NUMBERS = ("at_ms", "rows_upserted", "rows_deleted", "segments", "bytes", "changed")
"""Fields of a commit that are columns of its chapter."""
_TEXTS = ("operation", "job", "application")
"""Fields whose columns are places among the chapter's texts."""
_COLUMNS = (*_NUMBERS, *_TEXTS, "txn_id")


@dataclass(frozen=True, slots=True, eq=False)
class Chapter:
    """Neighbouring remembered commits of a table, oldest first."""

    epochs: np.ndarray
    """int64, rising."""
    columns: dict[str, np.ndarray]
    """int64 of the same length for each of _COLUMNS."""
    texts: tuple[str | None, ...]
    """Distinct values of the fields _TEXTS."""
    labels: dict[int, tuple[int, ...]]
    """Log epochs other than its own, of each commit that has some, by its place."""

    def __len__(self) -> int:
        return len(self.epochs)

    @property
    def epoch(self) -> int:
        """Return the epoch of the last commit, under which the record lies."""
        return int(self.epochs[-1])

    @property
    def changed(self) -> np.ndarray:
        """Return bool for each commit: has it changed the table?"""
        return self.columns["changed"] > 0

    @classmethod
    def of(cls, commits: Sequence[Commit]) -> Chapter:
        """Build it of commits, oldest first."""
        texts = {text: place for place, text in enumerate(dict.fromkeys(t for c in commits for t in _texts(c)))}
        rows = [
            (
                *(int(getattr(commit, name)) for name in _NUMBERS),
                *(texts[text] for text in _texts(commit)),
                commit.txn[1] if commit.txn else 0,
            )
            for commit in commits
        ]
        columns = dict[str, np.ndarray](zip(_COLUMNS, np.array(rows, np.int64).T, strict=True))
        labels = {place: commit.labels for place, commit in enumerate(commits) if commit.labels}
        return cls(np.array([commit.epoch for commit in commits]), columns, tuple(texts), labels)

    @classmethod
    def joined(cls, chapters: Sequence[Chapter]) -> Chapter:
        """Build one of neighbouring chapters, oldest first."""
        texts = {text: place for place, text in enumerate(dict.fromkeys(t for c in chapters for t in c.texts))}
        columns = {name: np.concatenate([chapter.columns[name] for chapter in chapters]) for name in _COLUMNS}
        for name in _TEXTS:
            columns[name] = np.concatenate([
                np.array([texts[text] for text in chapter.texts])[chapter.columns[name]] for chapter in chapters
            ])  # fmt: skip
        labels, begin = dict[int, tuple[int, ...]](), 0
        for chapter in chapters:
            labels |= {begin + place: of_commit for place, of_commit in chapter.labels.items()}
            begin += len(chapter)
        return cls(np.concatenate([chapter.epochs for chapter in chapters]), columns, tuple(texts), labels)

    def span(self, after: int, until: int) -> range:
        """Return the places of the commits in (after, until]."""
        first, end = (int(self.epochs.searchsorted(epoch, "right")) for epoch in (after, until))
        return range(first, end)

    def commits(self, places: Iterable[int]) -> Iterable[Commit]:
        """Yield the commits at these places."""
        return map(self._commit, places)

    def _commit(self, place: int) -> Commit:
        values = {name: int(column[place]) for name, column in self.columns.items()}
        operation, job, application = (self.texts[values.pop(name)] for name in _TEXTS)
        txn_id, changed = values.pop("txn_id"), bool(values.pop("changed"))
        assert operation is not None  # checked as the record is decoded
        return Commit(
            epoch=int(self.epochs[place]),
            operation=operation,
            txn=None if application is None else (application, txn_id),
            job=job,
            changed=changed,
            labels=self.labels.get(place, ()),
            **values,
        )

    def to_record(self) -> Record:
        return {
            "chapter": 1,
            "epoch": self.epoch,
            "commits": len(self),
            "columns": pack_columns(self.epochs, [self.columns[name] for name in _COLUMNS]),
            "texts": list(self.texts),
            "labels": [[place, list(labels)] for place, labels in self.labels.items()],
        }

    @classmethod
    @checked
    def from_record(cls, record: Record) -> Chapter:
        if record["chapter"] != 1:
            raise ValueError(f"a chapter of the format {record['chapter']!r:.20}")
        epochs, *columns = unpack_columns(record["columns"], record["commits"], len(_COLUMNS))
        chapter = cls(
            epochs,
            dict(zip(_COLUMNS, columns, strict=True)),
            tuple(record["texts"]),
            {place: tuple(labels) for place, labels in record["labels"]},
        )
        for column in (epochs, *columns):  # shared by all that have decoded the record
            column.flags.writeable = False
        if record["epoch"] != chapter.epoch:
            raise ValueError(
                f"the last commit of a chapter is {show_epoch(chapter.epoch)}, not {record['epoch']!r:.20}"
            )
        if any(not isinstance(text, str | None) for text in chapter.texts):
            raise TypeError("a text of a chapter that is none")
        named = [chapter.texts[int(place)] for place in np.unique(chapter.columns["operation"])]
        if None in named or any(chapter.columns[name].max() >= len(chapter.texts) for name in _TEXTS):
            raise ValueError("a commit of a chapter without an operation")
        return chapter


def is_chapter(value: bytes) -> bool:
    """Return True for the packed record of a chapter. It decodes nothing."""
    return has_first_field(value, b"\xa7chapter")


def _texts(commit: Commit) -> tuple[str | None, ...]:
    return commit.operation, commit.job, commit.txn[0] if commit.txn else None
