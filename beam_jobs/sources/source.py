"""The interface of a source of your own: its files, its entries and the reject of a bad entry.

    @parameters
    class FileNames:
        separator: str = Field("_", min_length=1)

    def file_names(files: SourceFiles, parameters: FileNames) -> Iterator[SourceEntry]:
        for path in files:
            with files.entry(path):
                label, separator, _ = path.partition(parameters.separator)
                if not separator:
                    raise Reject("no_label", f"there is no {parameters.separator} in the name")
                yield SourceEntry(path, label)

A source knows nothing of Beam, shards or splits by share. It runs once, in the driver of the job.
`user_source.py` calls it, and `testing.py` checks it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

from beam_jobs.planning.plan import Record
from beam_jobs.sources.collect import Collector, ListedFiles, SourceRecords
from beam_jobs.sources.parsing import (
    escape_surrogates,
    make_box,
    parse_size,
    parse_split,
    parse_text,
)
from beam_jobs.stages.stage import Box, Names, Reject, parameters
from pipeline_ops.errors import DataError, TrainyardError
from pipeline_ops.raw_data.listing import Listing

__all__ = ["Box", "Names", "Reject", "SourceEntry", "SourceFiles", "SourceFailed", "parameters"]

_REASON = re.compile(r"[a-z][a-z0-9_]{0,39}")


class SourceFailed(TrainyardError):
    """A bug in a source: it raised an unexpected exception, or yielded something else."""


@dataclasses.dataclass(frozen=True, slots=True)
class SourceEntry:
    """One image and its annotation: its class, or its boxes, of which there may be none.

    The values are checked when the entry is collected, so they may be as a file has them: numbers
    may be text or scalars of numpy. An invalid value rejects the entry.

    Attributes:
      path: the image, as a path below the folder of the raw data.
      label: the class of the image. None for detection.
      boxes: the boxes of the image. None for classification.
      split: train, validation or test, or another usual name of them. None leaves it to
        `preprocess.split`.
      group: the unit that the split must not divide, such as a patient.
      frame: height and width in pixels of the image that the boxes are for. (1, 1) for boxes in
        fractions, None for the pixels of the file as it is stored.
    """

    path: str
    label: str | None = None
    boxes: Sequence[Box] | None = None
    split: str | None = None
    group: str | None = None
    frame: tuple[float, float] | None = None


class SourceFiles:
    """The files of the raw data, in the order of their paths below the folder.

    Other files cannot be read or named. Iterating yields the paths.

    Args:
      listing: the listed files.
      name: the name of the source, for messages.
      class_names: the allowed classes, or None for any.
      is_reversed: iterates backwards, for a test.
    """

    def __init__(
        self,
        listing: Listing,
        name: str,
        class_names: Sequence[str] | None = None,
        is_reversed: bool = False,
    ):
        self._listed, self._name = ListedFiles(listing), name
        self._collector = Collector(class_names)
        self._paths = sorted(_to_path(file.key) for file in listing.files)[
            :: -1 if is_reversed else 1
        ]
        self._place: str | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __contains__(self, path: object) -> bool:
        try:
            return self._listed.get(self._listed.to_key(".", path)) is not None
        except Reject:
            return False

    def read(self, path: str) -> bytes:
        """The content of a file of at most 2 GiB.

        Raises:
          DataError: there is no such file below the folder, or it is too large.
          MachineError: it has changed since the run started.
        """
        try:
            return self._listed.load(path, f"The source {self._name} reads this file.")
        except Reject as reject:
            raise SourceFailed(f"source {self._name} reads a file: {reject.detail}") from None

    def read_text(self, path: str) -> str:
        """The content of a file in UTF-8. Raises as `read`, and DataError for another encoding."""
        content = self.read(path)
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise DataError(
                f"{path}:{line}: not UTF-8, which the source {self._name} needs: {error.reason}. "
                "Save the file as UTF-8."
            ) from None

    @contextlib.contextmanager
    def entry(self, place: str) -> Iterator[None]:
        """Turns a Reject that the block raises into a rejected record.

        Args:
          place: the path of the image if it is known, or else the place of the entry, such as
            `labels.csv:12`. Quarantine and messages name it.
        """
        key = self._listed.to_key(".", place) if place in self else place
        self._place = place
        with self._collector.catch_reject(key):
            try:
                yield
            except Reject as reject:
                self._check_reject(reject, place)
                raise
            finally:
                self._place = None

    def add(self, entry: SourceEntry) -> None:
        """Adds the record of an entry, or the rejected record. For callers of sources."""
        try:
            key = self._listed.to_key(".", entry.path)
        except Reject:
            key = self._place or f"entry {entry!r:.80}"
        with self._collector.catch_reject(key):
            self._collector.add(self._make_record(entry), self._place or key)

    def to_source_records(self) -> SourceRecords:
        """All records and rejected entries, by key. For callers of sources."""
        return self._collector.to_source_records()

    def _make_record(self, entry: SourceEntry) -> Record:
        label = "" if entry.label is None else parse_text(_to_plain(entry.label))
        boxes = None if entry.boxes is None else tuple(map(_parse_box, entry.boxes))
        self._collector.set_current_labels(
            [label] if boxes is None else [box.label for box in boxes]
        )
        if entry.label is None and boxes is None:
            raise Reject("no_label", "the entry has neither a label nor boxes")
        if entry.label is not None and boxes is not None:
            raise Reject("malformed", "the entry has a label and boxes, and must have one of them")
        frame = None if entry.frame is None or boxes is None else _parse_frame(entry.frame)
        group = None if entry.group in (None, "") else parse_text(_to_plain(entry.group))
        group = group and escape_surrogates(group)
        image = self._listed.find_image(".", entry.path)
        return Record(image, label, boxes, parse_split(entry.split), group, frame)

    def _check_reject(self, reject: Reject, place: str) -> None:
        is_text = isinstance(reject.reason, str) and isinstance(reject.detail, str)
        if not is_text or not _REASON.fullmatch(reject.reason):
            raise SourceFailed(
                f"source {self._name} rejected {place} with the reason {reject.reason!r:.80}. "
                "It must be one word of lowercase letters, digits and _, such as no_label, "
                "and the detail must be text."
            )


def _to_path(key: str) -> str:
    """The path of a file as text. Bytes that are not UTF-8 become surrogates."""
    return os.fsdecode(unquote_to_bytes(key)) if "%" in key else key


def _to_plain(value: Any) -> Any:
    """A number, flag or text of Python for a scalar of numpy. Other values stay."""
    return value.item() if hasattr(value, "dtype") and hasattr(value, "item") else value


def _parse_box(box: Any) -> Box:
    if not isinstance(box, Box):
        raise Reject("malformed", f"a box must be a Box, got a {type(box).__name__}")
    corners = map(_to_plain, (box.ymin, box.xmin, box.ymax, box.xmax))
    flags = map(_to_plain, (box.is_difficult, box.is_crowd))
    return make_box(corners, _to_plain(box.label), *flags)


def _parse_frame(frame: Any) -> tuple[float, float] | None:
    try:
        height, width = frame
    except (TypeError, ValueError):
        raise Reject("malformed", f"frame must be height and width, got {frame!r:.80}") from None
    return parse_size(_to_plain(height), _to_plain(width))
