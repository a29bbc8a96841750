"""Collects the records of a source, and the entries that can't be a record, with their reasons.

Every entry that is kept out is reported, and no fault of a single record ends the job. An image
with a box that can't be right is kept out as a whole, because a detector would learn that the
object in the box is background. Only a box without any extent, which is a slip of the mouse in most
sets, is kept out alone. The quarantine names it as `<image>#box-<index>`.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from beam_jobs.io.raw import read_raw
from beam_jobs.planning.plan import Record
from beam_jobs.stages.given_boxes import Size, check_given
from beam_jobs.stages.stage import Box, Reject
from beam_jobs.statistics.summary import RejectedRecord
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.raw_file import RawFile, key_of


class Found(NamedTuple):
    """The records of a source, and the entries that can't be a record, both by key.

    `refused_labels` are the labels that refused records are known to have.
    """

    records: list[Record]
    rejected: list[RejectedRecord]
    refused_labels: Mapping[str, Sequence[str]] = {}


_DETAIL_CHARACTERS = 300
MAX_ANNOTATION_BYTES = 2 << 30
"""Maximum size of a file that is parsed as a whole. COCO 2017 has 450 MB."""
MAX_IMAGE_BYTES = 512 << 20
"""Maximum size of an image, which a worker holds in memory."""
_SPLITS = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}


class Collector:
    """Gathers a source's records. `class_names` are the allowed classes, or None for any."""

    def __init__(self, class_names: Iterable[str] | None = None):
        self._class_names = None if class_names is None else frozenset(class_names)
        self._records: dict[str, Record] = {}
        self._places: dict[str, list[str]] = {}
        self._rejected: list[RejectedRecord] = []
        self._labels: Sequence[str] = ()
        self._refused_labels: dict[str, Sequence[str]] = {}

    @contextlib.contextmanager
    def rejects(self, key: str) -> Iterator[None]:
        """Turns a Reject that the block raises into a rejected record with this key."""
        self._labels = ()
        try:
            yield
        except Reject as reject:
            self.reject(key, reject.reason, reject.detail)
            self._refused_labels[_printable(key)] = [
                label for label in self._labels if self._is_class(label)
            ]

    def note_labels(self, labels: Sequence[str]) -> None:
        """Notes the labels of the current record before a fault in it can be found.

        This way no class gets lost without notice.
        """
        self._labels = labels

    def reject(self, key: str, reason: str, detail: str) -> None:
        self._rejected.append(
            RejectedRecord(
                key=_printable(key),
                stage="source",
                reason=reason,
                detail=_printable(detail)[:_DETAIL_CHARACTERS],
            )
        )

    def add(self, record: Record, place: str) -> None:
        """Adds a record. `place` says where the source names it.

        Raises:
          Reject: an image that is too large, a label that is no class, or a box that can't be
            right.
        """
        self.note_labels(record.labels)
        if record.file.num_bytes > MAX_IMAGE_BYTES:
            raise Reject(
                "too_large",
                f"has {record.file.num_bytes} bytes, allowed for an image are {MAX_IMAGE_BYTES}",
            )
        for label in record.labels:
            self._check_label(label)
        boxes = record.boxes
        for box in boxes or ():
            check_given(box, record.frame)
        self._places.setdefault(record.key, []).append(place)
        if len(self._places[record.key]) == 1:
            self._records[record.key] = record

    def found(self) -> Found:
        """All records and all rejected entries, by key.

        A key that occurs twice is rejected, because it is not clear which of the two is meant.
        """
        kept, refused = [], {rejected.key for rejected in self._rejected}
        for key, record in sorted(self._records.items()):
            if len(self._places[key]) > 1 or key in refused:
                self._refused_labels[_printable(key)] = record.labels
            if len(self._places[key]) > 1:
                self.reject(
                    key, "duplicate", f"named more than once: {', '.join(self._places[key])}"
                )
            elif key in refused:
                self.reject(
                    key,
                    "duplicate",
                    f"{self._places[key][0]} names it as well, and that could be used",
                )
            else:
                kept.append(self._without_empty_boxes(record))
        return Found(
            kept, sorted(self._rejected, key=lambda rejected: rejected.key), self._refused_labels
        )

    def _without_empty_boxes(self, record: Record) -> Record:
        empty = [
            index
            for index, box in enumerate(record.boxes or ())
            if box.xmin == box.xmax or box.ymin == box.ymax
        ]
        if not empty:
            return record
        for index in empty:
            box = record.boxes[index]
            self.reject(
                f"{record.key}#box-{index}",
                "box_empty",
                f"{box.label}: x {box.xmin:g} to {box.xmax:g}, y {box.ymin:g} to {box.ymax:g}",
            )
        return Record(
            record.file,
            record.label,
            tuple(box for index, box in enumerate(record.boxes) if index not in empty),
            record.split,
            record.group,
            record.frame,
        )

    def _is_class(self, label: str) -> bool:
        return (
            bool(label)
            and _printable(label) == label
            and (self._class_names is None or label in self._class_names)
        )

    def _check_label(self, label: str) -> None:
        if not label or _printable(label) != label:
            raise Reject("no_label", f"{label!r} is no name of a class")
        if self._class_names is not None and label not in self._class_names:
            raise Reject("unknown_class", f"{label!r} is not among preprocess.source.class_names")


class Files:
    """The listed files by the paths that annotations use for them."""

    def __init__(self, listing: Listing):
        self._folder, self._by_key = listing.folder, {file.key: file for file in listing.files}
        self._refused = {entry.key: entry for entry in listing.refused}

    def image(self, folder: str, path: Any) -> RawFile:
        """The image with a path below a folder of the source.

        Raises Reject: malformed, missing_image, or the reason for which the listing refused the
        image.
        """
        key = self.key(folder, path)
        if key in self._refused:
            raise Reject(self._refused[key].reason, self._refused[key].detail)
        if key not in self._by_key:
            raise Reject("missing_image", f"there is no file {key}")
        return self._by_key[key]

    def key(self, folder: str, path: Any) -> str:
        """Raises Reject: malformed."""
        if not isinstance(path, str) or not path:
            raise Reject("malformed", f"a path must be text, got {path!r}")
        try:
            return key_of(os.fsencode(posixpath.normpath(posixpath.join(folder, path))))
        except UnicodeEncodeError:
            raise Reject("malformed", f"{path!r} can't be the name of a file") from None

    def get(self, key: str) -> RawFile | None:
        return self._by_key.get(key)

    def read(self, path: str, named_by: str) -> bytes:
        """The bytes of a file that the config names.

        Raises:
          DataError: there is none, or it is too large, or the listing refused it.
          MachineError: it has changed since it was listed.
        """
        file = self.get(key := self.key(".", path))
        if key in self._refused:
            raise DataError(
                f"{self._folder / path}: {self._refused[key].detail}; "
                f"it is named by preprocess.source.{named_by}"
            )
        if file is None:
            raise DataError(
                f"{self._folder / path}: there is no such file; "
                f"it is named by preprocess.source.{named_by}"
            )
        if file.num_bytes > MAX_ANNOTATION_BYTES:
            raise DataError(
                f"{self._folder / path}: has {file.num_bytes} bytes, "
                f"allowed are {MAX_ANNOTATION_BYTES}; divide it. "
                f"It is named by preprocess.source.{named_by}"
            )
        return read_raw(file, self._folder)


def make_box(
    coordinates: Iterable[Any], label: Any, is_difficult: Any = 0, is_crowd: Any = 0
) -> Box:
    """A box of ymin, xmin, ymax, xmax as a file has them. Raises Reject: malformed."""
    return Box(*map(number, coordinates), text(label), flag(is_difficult), flag(is_crowd))


def number(value: Any) -> float:
    """A number, or text that is one. Raises Reject: malformed."""
    kind = type(value)  # four calls for each box of a data set
    if kind is float:
        return value
    if kind is int or (kind is str and "_" not in value):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise Reject("malformed", f"{_shortened(value)} is no number")


def text(value: Any) -> str:
    """Raises Reject: malformed."""
    if not isinstance(value, str):
        raise Reject("malformed", f"{_shortened(value)} is no text")
    return value.strip()


def flag(value: Any) -> bool:
    """0 or 1, as number or text. Raises Reject: malformed."""
    if value in (0, 1):  # True and False are, too
        return bool(value)
    if value in ("0", "1", ""):
        return value == "1"
    raise Reject("malformed", f"{_shortened(value)} must be 0 or 1")


def size_of(height: Any, width: Any) -> Size | None:
    """The size of an annotated image, or None if it is missing or 0, as some tools write it.

    Raises Reject: malformed.
    """
    if height in (None, "") or width in (None, ""):
        return None
    height, width = number(height), number(width)
    return (height, width) if height > 0 and width > 0 else None


def split_named(value: Any) -> str | None:
    """Raises Reject: unknown_split."""
    if value in (None, ""):
        return None
    if not isinstance(value, str) or value not in _SPLITS:
        raise Reject("unknown_split", f"{_shortened(value)}; splits are {', '.join(_SPLITS)}")
    return _SPLITS[value]


def _shortened(value: Any) -> str:
    try:
        return repr(value)[:80]
    except ValueError:  # of a number with thousands of digits
        return f"a {type(value).__name__} too large to print"


def _printable(text: str) -> str:
    """Escapes lone halves of surrogate pairs, which have no place in JSON and UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()
