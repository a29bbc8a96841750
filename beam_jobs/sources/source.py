"""The interface of sources: the files, the entries, and the reject of a bad entry.

`docs/add-a-source.md` shows an example. Built-in sources are written in the same way, with their
section of the config as parameters. A source knows nothing of Beam, shards or splits by share. It
runs once, in the driver of the job.

No fault of a single entry ends the job. An image with an invalid box is rejected as a whole,
because a detector would learn that the object in the box is background. Two kinds of boxes are
rejected alone: one without any extent, which is a slip of the mouse in most data sets, and one that
equals another one of its image, which would count as a missed object for ever.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote_to_bytes

import beam_jobs.sources.parsing as parsing
from beam_jobs.io.raw import Raw, read_raw
from beam_jobs.planning.plan import Record
from beam_jobs.stages.boxes import FRACTIONS, check_box
from beam_jobs.stages.stage import Box, BoxFrame, Names, Reject, parameters
from pipeline_ops.config.sources import BoxOptions
from pipeline_ops.contract.dataset import RejectedRecord
from pipeline_ops.errors import DataError, TrainyardError
from pipeline_ops.raw_data.limits import (
    MAX_ANNOTATION_BYTES,
    MAX_ENTRIES,
    MAX_IMAGE_BYTES,
    MAX_REJECTS,
    check_limit,
)
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.raw_file import RawFile, loosen, to_raw_key

__all__ = ["Box", "Names", "Reject", "SourceEntry", "SourceFiles", "SourceFailed", "parameters"]

_MAX_DETAIL_CHARACTERS = 300
_ABSOLUTE = re.compile(r"[/\\]|[A-Za-z]:|[a-z0-9]+://")
_MAX_FRACTION = 1.5
_USUAL = BoxOptions()


class SourceFailed(TrainyardError):
    """A bug in a source: it raised an unexpected exception, or yielded something else."""


@dataclasses.dataclass(frozen=True, slots=True)
class SourceEntry:
    """One image and its annotation: its class, or its boxes, of which there may be none.

    The values are checked when the entry is collected, so they may be as a file has them: numbers
    may be text or scalars of numpy. An invalid value rejects the entry.

    Attributes:
      path: the image, as a path below `folder`, a listed file, or an image inside of one.
      split: train, validation or test, or another usual name of them. None leaves it to
        `preprocess.split`.
      group: the unit that the split must not divide, such as a patient.
      frame: height and width in pixels of the image that the boxes are for, (1, 1) for boxes in
        fractions, or None if the size is not known.
      drawn_on: `upright` or `stored`, for images that EXIF turns, if it is known which of the two
        the boxes are for. `preprocess.source.boxes.drawn_on` takes precedence.
      folder: the folder below that of the raw data at which `path` starts.
      encoded: the image file itself, which only a transform of Beam can give. `path` is its name.
    """

    path: str | Raw
    label: str | None = None
    boxes: Sequence[Box] | None = None
    split: str | None = None
    group: str | None = None
    frame: tuple[Any, Any] | None = None
    folder: str = "."
    drawn_on: Literal["upright", "stored"] | None = None
    encoded: bytes | None = None


class SourceRecords(NamedTuple):
    """The records, the rejects, and the known labels of the rejects, each by key.

    `class_numbers` has the numbers of a label map by class name. It is empty without a label map.
    """

    records: list[Record]
    rejected: list[RejectedRecord]
    rejected_labels: Mapping[str, Sequence[str]] = {}
    class_numbers: Mapping[str, int] = {}

    def describe_rejects(self) -> str:
        """The number of rejects, and the number and an example for each reason."""
        number, total = len(self.rejected), len(self.rejected) + len(self.records)
        first = {entry.reason: entry for entry in reversed(self.rejected)}
        reasons = "; ".join(
            f"{count:,} {reason} (such as {first[reason].key}: {first[reason].detail})"
            for reason, count in Counter(entry.reason for entry in self.rejected).most_common()
        )
        return f"{number:,} of {total:,} entries cannot be used: {reasons}"


@dataclasses.dataclass(slots=True)
class CurrentEntry:
    """The known properties of an entry before it is valid. The source may add to them.

    Attributes:
      key: the name of its rejects. By default the key of the image, or else `where`.
      labels: its classes as far as they are known. The job fails if a class has rejects only.
      scope: the file in which the key is unique. A key of two files becomes `<scope>#<key>`.
      prefix: the beginning of the details of its rejects.
    """

    where: str
    key: str | None = None
    labels: Sequence[str] = ()
    scope: str = ""
    prefix: str = ""


class _Found(NamedTuple):
    record: Record
    where: str
    scope: str

    def rename(self, key: str) -> _Found:
        file = dataclasses.replace(self.record.file, key=key)
        return self._replace(record=dataclasses.replace(self.record, file=file))


class SourceFiles:
    """The files of the raw data, and the entries that a source has found in them.

    Iterating yields the paths of all files, sorted. Other files cannot be read or named. A key is a
    path as a listing has it, see RawFile. `class_names` are the allowed classes, or None for any.
    `boxes` says how boxes are read.
    """

    def __init__(
        self,
        listing: Listing,
        name: str,
        class_names: Iterable[str] | None = None,
        is_reversed: bool = False,
        boxes: BoxOptions = _USUAL,
    ):
        self.listing, self._boxes = listing, boxes
        self.class_numbers: Mapping[str, int] = {}
        self._name, self._is_reversed = name, is_reversed
        self._class_names = None if class_names is None else frozenset(class_names)
        self.by_key = {file.key: file for file in listing.files}
        self.unreadable = {entry.key: entry for entry in listing.rejected}
        self._entry: CurrentEntry | None = None
        self._frames: dict[BoxFrame, BoxFrame] = {}
        self._found: list[_Found] = []
        self._rejected: list[RejectedRecord] = []
        self._rejected_labels: dict[str, Sequence[str]] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(map(_to_path, self.by_key), reverse=self._is_reversed))

    def __len__(self) -> int:
        return len(self.by_key)

    def __contains__(self, path: object) -> bool:
        return self.find_key(path) in self.by_key

    def read(
        self, path: str, named_by: str | None = None, max_bytes: int = MAX_ANNOTATION_BYTES
    ) -> bytes:
        """The content of a file. `named_by` is the key of the config that names it, if any."""
        try:
            key = self.to_key(path)
        except Reject as reject:
            raise SourceFailed(f"source {self._name} reads a file: {reject.detail}") from None
        cause = f"The source {self._name} reads this file."
        if named_by is not None:
            cause = f"preprocess.source.{named_by} names this file."
        place = self.listing.folder / path
        file, entry = self.by_key.get(key), self.unreadable.get(key)
        if file is None or entry:
            fault = entry.detail if entry else "no such file"
            raise DataError(f"{place}: {fault}. {cause}")
        cure = f"Divide it into several files. {cause}"
        check_limit(place, "has", file.num_bytes, max_bytes, "bytes", cure)
        return read_raw(file, self.listing.folder)

    def read_text(
        self, path: str, named_by: str | None = None, max_bytes: int = MAX_ANNOTATION_BYTES
    ) -> str:
        """The content of a file of text, in UTF-8 or with a byte order mark."""
        content = self.read(path, named_by, max_bytes)
        try:
            return parsing.decode_text(content)
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise DataError(
                f"{path}:{line}: not UTF-8, which the source {self._name} needs: {error.reason}. "
                "Save the file as UTF-8."
            ) from None

    def read_json(
        self,
        path: str,
        named_by: str,
        make_object: Callable[[list[tuple[str, Any]]], Any] | None = None,
    ) -> Any:
        """The content of a file of JSON. `make_object` gets the pairs of each object."""
        try:
            text = parsing.decode_text(self.read(path, named_by))
            return json.loads(text, object_pairs_hook=make_object)
        except (ValueError, RecursionError) as error:
            cause = f"preprocess.source.{named_by} names this file."
            raise DataError(f"{path}: {parsing.describe_json_error(error)}. {cause}") from None

    def to_key(self, path: Any, folder: str = ".") -> str:
        """The key of a path, of a file that may be missing. Raises Reject: malformed."""
        if not isinstance(path, str) or not path:
            raise Reject("malformed", f"a path must be text, got {path!r}")
        try:
            return to_raw_key(os.fsencode(posixpath.normpath(posixpath.join(folder, path))))
        except UnicodeEncodeError:
            raise Reject("malformed", f"{path!r} cannot be the name of a file") from None

    def find_key(self, path: Any, folder: str = ".") -> str | None:
        """The key of a path, or None for what cannot be a path."""
        try:
            return self.to_key(path, folder)
        except Reject:
            return None

    def get(self, key: str) -> RawFile | None:
        """The file with a key, or None. Raises Reject: the listing rejected the file."""
        if entry := self.unreadable.get(key):
            raise Reject(entry.reason, entry.detail)
        return self.by_key.get(key)

    def find_image(self, path: Any, folder: str = ".") -> RawFile:
        """The image with a path below a folder. Raises Reject.

        The path may be of Windows, and may differ from the file's in blanks around it, in case, and
        in Unicode's form. Of an absolute one, which is of another machine, the longest end counts.
        """
        key = self.to_key(path, folder)
        is_foreign = _ABSOLUTE.match(path.strip()) is not None
        if (file := self.get(key) or self.search_path(path, folder, is_foreign)) is None:
            raise Reject("missing_image", f"there is no file {key}")
        return file

    def search_path(self, path: Any, folder: str = ".", is_foreign: bool = True) -> RawFile | None:
        """The image with a path, or with its longest end if it is of another machine, or None."""
        for end in parsing.iterate_path_ends(path):
            if file := self.get(self.to_key(end, folder)):
                return file
            name = posixpath.normpath(posixpath.join(folder, end.strip()))
            found = self._files_by_loose_name.get(loosen(name), [])
            if len(found) > 1:
                keys = ", ".join(file.key for file in found[:5])
                raise Reject("ambiguous_image", f"{end.strip()} may be each of {keys}")
            if found or not is_foreign:
                return found[0] if found else None
        return None

    @functools.cached_property
    def _files_by_loose_name(self) -> dict[str, list[RawFile]]:
        found: dict[str, list[RawFile]] = defaultdict(list)
        for file in self.listing.files:
            found[loosen(_to_path(file.key))].append(file)
        return found

    def find_image_by_name(self, path: Any, folder: str = ".") -> RawFile:
        """The image below a folder with the file name of a path, which may be without suffix."""
        if (file := self.search_name(path, folder)) is None:
            name = _get_file_name(path)
            raise Reject("missing_image", f"there is no image of the name {name} below {folder}")
        return file

    def search_name(self, path: Any, folder: str = ".") -> RawFile | None:
        """The image that `find_image_by_name` finds, or None."""
        name = _get_file_name(path)
        prefix = "" if folder == "." else f"{folder}/"
        names = (name, loosen(name), loosen(posixpath.splitext(name)[0]))
        candidates = (self._images_by_name.get(each, ()) for each in names)
        below = ([f for f in found if f.key.startswith(prefix)] for found in candidates)
        found = next(filter(None, below), [])
        if len(found) > 1:
            keys = ", ".join(file.key for file in found[:5])
            raise Reject("ambiguous_image", f"{len(found)} images have the name {name}: {keys}")
        return found[0] if found else None

    @functools.cached_property
    def _images_by_name(self) -> dict[str, list[RawFile]]:
        """The images by their file names with and without suffix, as they are and loosened."""
        found: dict[str, list[RawFile]] = defaultdict(list)
        for file in self.listing.files:
            if parsing.is_image_name(file.key):
                name = posixpath.basename(_to_path(file.key))
                names = {name, posixpath.splitext(name)[0]}
                for each in names | set(map(loosen, names)):
                    found[each].append(file)
        return found

    def list_image_folders(self, path: str) -> Iterator[str]:
        """The folders below which images with a path are."""
        end = loosen(path)
        for file in self._images_by_name.get(posixpath.basename(end), ()):
            if loosen(f"/{_to_path(file.key)}").endswith(f"/{end}"):
                yield "/".join(file.key.split("/")[: -len(end.split("/"))]) or "."

    def find_image_anywhere(self, path: Any, folder: str = ".", name: str = "") -> RawFile:
        """The image with the longest end of a path, first below a folder, or the only one so named.

        Without any, the image with another `name`. Raises Reject.
        """
        file = self.search_path(path, folder or ".") or self.search_path(path)
        if (file := file or self.search_name(path) or self.search_name(name)) is None:
            raise Reject("missing_image", f"no file has the path {path}, an end of it, or its name")
        return file

    @contextlib.contextmanager
    def entry(
        self, where: str, key: str | None = None, scope: str = "", prefix: str = ""
    ) -> Iterator[CurrentEntry]:
        """Turns a Reject that the block raises into a rejected record.

        `where` is the path of the image if it is known, or else the place of the entry, such as
        `labels.csv:12`. Quarantine and messages name it.
        """
        self._entry = entry = CurrentEntry(where, key, scope=scope, prefix=prefix)
        try:
            yield entry
        except Reject as reject:
            is_file = entry.key is None and where in self
            name = self.to_key(where) if is_file else entry.key or where
            self._reject(name, reject.reason, entry.prefix + reject.detail, entry.labels)
        finally:
            self._entry = None

    def collect(self, entries: Iterable[SourceEntry]) -> SourceRecords:
        """Runs a source. A key that occurs twice is rejected: it may mean either of the two."""
        for entry in entries:
            self._add(entry)
        kept, rejected_keys = [], {rejected.key for rejected in self._rejected}
        for key, found in self._divide_scopes():
            record, (first, *more) = found[0].record, [entry.where for entry in found]
            if more:
                detail = f"named more than once: {', '.join([first, *more])}"
                self._reject(key, "duplicate", detail, record.labels)
            elif key in rejected_keys:
                detail = f"{first} names it as well, and is valid"
                self._reject(key, "duplicate", detail, record.labels)
            else:
                kept.append(self._drop_single_boxes(record))
        kept.sort(key=attrgetter("key"))
        rejected = sorted(self._rejected, key=attrgetter("key"))
        return SourceRecords(kept, rejected, self._rejected_labels, self.class_numbers)

    def _add(self, entry: SourceEntry) -> None:
        image = entry.path
        key = image.key if isinstance(image, Raw) else self.find_key(image, entry.folder)
        current = self._entry or CurrentEntry(key or f"entry {entry!r:.80}")
        try:
            record = self._make_record(entry, current)
            self._check_record(record)
        except Reject as reject:
            name = current.key or key or current.where
            self._reject(name, reject.reason, current.prefix + reject.detail, current.labels)
        else:
            self._found.append(_Found(record, current.where, current.scope))
            cure = f"{current.where} is the last one. Divide the data set."
            number = len(self._found)
            check_limit(self.listing.folder, "has", number, MAX_ENTRIES, "images", cure)

    def _make_record(self, entry: SourceEntry, current: CurrentEntry) -> Record:
        label = "" if entry.label is None else parsing.parse_text(_to_plain(entry.label))
        boxes = None if entry.boxes is None else tuple(map(_parse_box, entry.boxes))
        current.labels = [label] if boxes is None else [box.label for box in boxes]
        if entry.encoded is not None:
            raise Reject("malformed", "only a transform of Beam can give the bytes of an image")
        if entry.label is None and boxes is None:
            raise Reject("no_label", "the entry has neither a label nor boxes")
        if entry.label is not None and boxes is not None:
            raise Reject("malformed", "the entry has a label and boxes, and must have one of them")
        size = _parse_size(entry.frame)
        group = None if entry.group in (None, "") else parsing.parse_text(_to_plain(entry.group))
        group = group and parsing.escape_surrogates(group)
        image = entry.path
        if not isinstance(image, Raw):
            image = self.find_image(image, entry.folder)
        split = parsing.parse_split(entry.split)
        frame = None if boxes is None else self._make_frame(size, entry.drawn_on)
        return Record(image, label, boxes, split, group, frame)

    def _make_frame(self, size: tuple[float, float] | None, drawn_on: Any) -> BoxFrame:
        """The frame of an image. Images of equal size share it."""
        options = self._boxes
        frame = BoxFrame(size, options.drawn_on or drawn_on, options.outside, options.max_outside)
        return self._frames.setdefault(frame, frame)

    def _check_record(self, record: Record) -> None:
        if (size := record.file.num_bytes) > MAX_IMAGE_BYTES:
            detail = f"has {size} bytes, allowed for an image are {MAX_IMAGE_BYTES}"
            raise Reject("too_large", detail)
        for label in record.labels:
            if fault := self._find_label_fault(label):
                raise fault
        for box in record.boxes or ():
            check_box(box, record.frame or BoxFrame())
        if record.boxes and record.frame and record.frame.size != FRACTIONS:
            largest = max(max(box.ymax, box.xmax) for box in record.boxes)
            if 0 < largest <= _MAX_FRACTION:
                detail = f"all of its boxes lie in one pixel, such as {record.boxes[0]}"
                raise Reject("box_fraction", f"{detail}. Fractions must be declared or converted")

    def _find_label_fault(self, label: str) -> Reject | None:
        if not label or parsing.escape_surrogates(label) != label:
            cure = ". Save the file as UTF-8" if label else ""
            return Reject("no_label", f"{label!r} is not the name of a class{cure}")
        if self._class_names is not None and label not in self._class_names:
            return Reject("unknown_class", f"{label!r} is not among preprocess.source.class_names")
        return None

    def _reject(self, key: str, reason: str, detail: str, labels: Iterable[str] = ()) -> None:
        key, detail = map(parsing.escape_surrogates, (key, detail))
        detail = detail[:_MAX_DETAIL_CHARACTERS]
        self._rejected.append(RejectedRecord(key=key, stage="source", reason=reason, detail=detail))
        cure = f"The last one is {key} ({reason}: {detail}). Correct the data."
        number = len(self._rejected)
        check_limit(self.listing.folder, "has", number, MAX_REJECTS, "entries to reject", cure)
        if known := [label for label in labels if not self._find_label_fault(label)]:
            self._rejected_labels[key] = known

    def _divide_scopes(self) -> Iterator[tuple[str, list[_Found]]]:
        """Yields the entries of each key, and of each scope if a key occurs in several."""
        self._found.sort(key=attrgetter("record.key"))
        for key, group in itertools.groupby(self._found, attrgetter("record.key")):
            entries = list(group)
            scopes = dict.fromkeys(entry.scope for entry in entries)
            if len(scopes) == 1:
                yield key, entries
                continue
            for scope in scopes:
                name = f"{scope}#{key}"
                yield name, [entry.rename(name) for entry in entries if entry.scope == scope]

    def _drop_single_boxes(self, record: Record) -> Record:
        """Rejects each box without extent, and in one line those that occur more than once."""
        if not (boxes := record.boxes):
            return record
        for index, box in enumerate(boxes):
            if box.is_empty:
                self._reject(f"{record.key}#box-{index}", "box_empty", str(box))
        kept = tuple(dict.fromkeys(box for box in boxes if not box.is_empty))
        if more := sum(not box.is_empty for box in boxes) - len(kept):
            twice = Counter(boxes).most_common(1)[0][0]
            detail = f"{more} of {len(boxes)} boxes equal another one, such as {twice}"
            self._reject(f"{record.key}#boxes", "box_duplicate", detail)
        return record if len(kept) == len(boxes) else dataclasses.replace(record, boxes=kept)


def _get_file_name(path: Any) -> str:
    return next(reversed([*parsing.iterate_path_ends(path)]), "").strip()


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
    return parsing.make_box(corners, _to_plain(box.label), *flags)


def _parse_size(frame: Any) -> tuple[float, float] | None:
    if frame is None:
        return None
    try:
        height, width = frame
    except (TypeError, ValueError):
        raise Reject("malformed", f"frame must be height and width, got {frame!r:.80}") from None
    return parsing.parse_size(_to_plain(height), _to_plain(width))
