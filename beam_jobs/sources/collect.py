"""Collects the records of a source, and the entries that cannot be a record, with their reasons.

Every rejected entry is reported, and no fault of a single record ends the job. An image with an
invalid box is rejected as a whole, because a detector would learn that the object in the box is
background. Only a box without any extent, which is a slip of the mouse in most data sets, is
rejected alone. The quarantine names it as `<image>#box-<index>`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import posixpath
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from beam_jobs.io.raw import read_raw
from beam_jobs.planning.plan import Record
from beam_jobs.sources.parsing import escape_surrogates, iterate_path_ends
from beam_jobs.sources.source import SourceRecords
from beam_jobs.stages.boxes import check_box
from beam_jobs.stages.stage import Reject
from beam_jobs.statistics.summary import RejectedRecord
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.raw_file import RawFile, to_raw_key


class _Found(NamedTuple):
    """A record, the place of its entry, and the file in which its key is unique."""

    record: Record
    location: str
    scope: str

    def rename(self, key: str) -> _Found:
        file = dataclasses.replace(self.record.file, key=key)
        return self._replace(record=dataclasses.replace(self.record, file=file))


_MAX_DETAIL_CHARACTERS = 300
MAX_ANNOTATION_BYTES = 2 << 30
"""Maximum size of a file that is parsed as a whole. COCO 2017 has 450 MB."""
MAX_IMAGE_BYTES = 512 << 20
"""Maximum size of an image, which a worker holds in memory."""


class Collector:
    """Gathers a source's records. `class_names` are the allowed classes, or None for any."""

    def __init__(self, class_names: Iterable[str] | None = None):
        self._class_names = None if class_names is None else frozenset(class_names)
        self._found: dict[str, list[_Found]] = defaultdict(list)
        self._rejected: list[RejectedRecord] = []
        self._current_labels: Sequence[str] = ()
        self._rejected_labels: dict[str, Sequence[str]] = {}

    @contextlib.contextmanager
    def catch_reject(self, key: str) -> Iterator[None]:
        """Turns a Reject that the block raises into a rejected record with this key."""
        self.set_current_labels(())
        try:
            yield
        except Reject as reject:
            self.reject(key, reject.reason, reject.detail)
            self._rejected_labels[escape_surrogates(key)] = [
                label for label in self._current_labels if not self._find_label_fault(label)
            ]

    def set_current_labels(self, labels: Sequence[str]) -> None:
        """Notes the labels of the current record before a fault in it can be found.

        This way no class gets lost without notice.
        """
        self._current_labels = labels

    def reject(self, key: str, reason: str, detail: str) -> None:
        self._rejected.append(
            RejectedRecord(
                key=escape_surrogates(key),
                stage="source",
                reason=reason,
                detail=escape_surrogates(detail)[:_MAX_DETAIL_CHARACTERS],
            )
        )

    def add(self, record: Record, location: str, scope: str = "") -> None:
        """Adds a record.

        Args:
          record: the record.
          location: the place of the entry in the source.
          scope: the file in which the record's key is unique, for records of several such files.
            A key that occurs in two of them becomes `<scope>#<key>`.

        Raises:
          Reject: an image that is too large, a label that is not a class, or an invalid box.
        """
        self.set_current_labels(record.labels)
        if record.file.num_bytes > MAX_IMAGE_BYTES:
            raise Reject(
                "too_large",
                f"has {record.file.num_bytes} bytes, allowed for an image are {MAX_IMAGE_BYTES}",
            )
        for label in record.labels:
            if reject := self._find_label_fault(label):
                raise reject
        for box in record.boxes or ():
            check_box(box, record.frame)
        self._found[record.key].append(_Found(record, location, scope))

    def to_source_records(self) -> SourceRecords:
        """All records and all rejected entries, by key.

        A key that occurs twice is rejected, because it is not clear which of the two is meant.
        """
        kept, rejected_keys = [], {rejected.key for rejected in self._rejected}
        for key, entries in sorted(self._divide_scopes()):
            record, (first, *more) = entries[0].record, [entry.location for entry in entries]
            if not more and key not in rejected_keys:
                kept.append(self._drop_empty_boxes(record))
                continue
            self._rejected_labels[escape_surrogates(key)] = record.labels
            detail = (
                f"named more than once: {', '.join([first, *more])}"
                if more
                else f"{first} names it as well, and is valid"
            )
            self.reject(key, "duplicate", detail)
        return SourceRecords(
            kept, sorted(self._rejected, key=lambda rejected: rejected.key), self._rejected_labels
        )

    def _divide_scopes(self) -> Iterator[tuple[str, list[_Found]]]:
        """Yields the entries of each key, and of each scope if a key occurs in several."""
        for key, entries in self._found.items():
            if len(entries) == 1:
                yield key, entries
                continue
            by_scope: dict[str, list[_Found]] = defaultdict(list)
            for entry in entries:
                by_scope[entry.scope].append(entry)
            if len(by_scope) == 1:
                yield key, entries
                continue
            for scope, members in by_scope.items():
                yield f"{scope}#{key}", [entry.rename(f"{scope}#{key}") for entry in members]

    def _drop_empty_boxes(self, record: Record) -> Record:
        if not any(box.is_empty for box in record.boxes or ()):
            return record
        kept = []
        for index, box in enumerate(record.boxes or ()):
            if box.is_empty:
                self.reject(f"{record.key}#box-{index}", "box_empty", str(box))
            else:
                kept.append(box)
        return dataclasses.replace(record, boxes=tuple(kept))

    def _find_label_fault(self, label: str) -> Reject | None:
        if not label or escape_surrogates(label) != label:
            return Reject("no_label", f"{label!r} is not the name of a class")
        if self._class_names is not None and label not in self._class_names:
            return Reject("unknown_class", f"{label!r} is not among preprocess.source.class_names")
        return None


class ListedFiles:
    """The listed files by the paths that annotations use for them."""

    def __init__(self, listing: Listing):
        self._folder, self._by_key = listing.folder, {file.key: file for file in listing.files}
        self._rejected = {entry.key: entry for entry in listing.rejected}

    def find_image(self, folder: str, path: Any) -> RawFile:
        """The image with a path below a folder of the source.

        Raises Reject: malformed, missing_image, or the reason for which the listing rejected the
        image.
        """
        key = self.to_key(folder, path)
        if (file := self.find(key)) is None:
            raise Reject("missing_image", f"there is no file {key}")
        return file

    def find_image_from_elsewhere(self, folder: str, path: Any) -> RawFile:
        """The image with a path on another machine, or with the longest end of it, below a folder.

        Raises Reject as `find_image` does.
        """
        for end in iterate_path_ends(path):
            if file := self.find(self.to_key(folder, end)):
                return file
        raise Reject(
            "missing_image",
            f"neither {path} nor an end of this path is the path of a file below {folder}",
        )

    def find(self, key: str) -> RawFile | None:
        """The file with a key, or None. Raises Reject: the listing rejected the file."""
        if entry := self._rejected.get(key):
            raise Reject(entry.reason, entry.detail)
        return self._by_key.get(key)

    def to_key(self, folder: str, path: Any) -> str:
        """Raises Reject: malformed."""
        if not isinstance(path, str) or not path:
            raise Reject("malformed", f"a path must be text, got {path!r}")
        try:
            return to_raw_key(os.fsencode(posixpath.normpath(posixpath.join(folder, path))))
        except UnicodeEncodeError:
            raise Reject("malformed", f"{path!r} cannot be the name of a file") from None

    def get(self, key: str) -> RawFile | None:
        return self._by_key.get(key)

    def read(self, path: str, named_by: str, max_bytes: int = MAX_ANNOTATION_BYTES) -> bytes:
        """The bytes of a file that the config names under the key `named_by`. Raises as `load`."""
        return self.load(path, f"preprocess.source.{named_by} names this file.", max_bytes)

    def load(self, path: str, cause: str, max_bytes: int = MAX_ANNOTATION_BYTES) -> bytes:
        """The bytes of a file. `cause` says why it is read, for the message of an error.

        Raises:
          DataError: there is none, or it is too large, or the listing rejected it.
          MachineError: it has changed since it was listed.
        """
        file = self.get(key := self.to_key(".", path))
        if entry := self._rejected.get(key):
            fault = entry.detail
        elif file is None:
            fault = "no such file"
        elif file.num_bytes > max_bytes:
            fault = (
                f"has {file.num_bytes} bytes, allowed are {max_bytes}. Divide it into several files"
            )
        else:
            return read_raw(file, self._folder)
        raise DataError(f"{self._folder / path}: {fault}. {cause}")
