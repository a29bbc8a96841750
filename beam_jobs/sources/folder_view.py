"""The view of a folder that recognisers work on: names, sizes, and the start of a few files.

All names are listed, up to a limit. Contents are read only where a recogniser asks for them, and
only a bounded part. No digests are computed, so a listing made here is for readers of annotations
and not for a fingerprint.
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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from beam_jobs.io.raw import open_raw
from beam_jobs.sources.parsing import decode_text, describe_json_error, is_image_name
from beam_jobs.sources.source import SourceFiles
from beam_jobs.stages.boxes import Size
from beam_jobs.stages.stage import Reject
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.entries import walk_entries
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.raw_file import RawFile, RejectedFile, to_file_version, to_raw_key
from pipeline_ops.storage.local_files import describe_os_error

_MAX_FILES = 2_000_000
"""Number of names after which the listing stops."""
_ORIENTATION_TAG = 0x0112
MAX_CANDIDATES = 20
"""Number of files of one kind that a recogniser opens."""
MAX_JSON_BYTES = 64 << 20
START_BYTES = 1 << 16
"""Number of bytes that are read from the start, or the end, of a file."""


class SourceMatch(NamedTuple):
    """A source that fits.

    `reason` says in plain words what was seen. `keys` are the keys of the source besides `type` and
    `path`. `below` is the folder of the source below the folder that was looked at, "" for that
    folder itself. A match is likely and not certain if names alone say so, or if files of another
    kind are there. `notes` say, a line each, what was inferred from what.
    """

    type: str
    reason: str
    keys: Mapping[str, Any]
    below: str = ""
    is_certain: bool = True
    notes: Sequence[str] = ()


class Question(NamedTuple):
    """Data that can be read in several ways. `choices` are keys of the source for each of them."""

    reason: str
    choices: Sequence[Mapping[str, Any]]
    type: str = ""


@dataclasses.dataclass(frozen=True)
class FolderView:
    """The files below a folder, sorted by key.

    `named_file` is the key of the file that the user named instead of the folder. Only this file
    can then hold the annotations. `is_complete` is False if there are more files than these.
    `chosen` are keys of the source that the user has given, such as `columns.label`. Methods that
    read raise DataError if a file cannot be read.
    """

    folder: Path
    files: tuple[RawFile, ...]
    rejected: tuple[RejectedFile, ...] = ()
    named_file: str | None = None
    is_complete: bool = True
    chosen: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    json_faults: dict[str, str] = dataclasses.field(default_factory=dict)
    """The files that are no JSON, with the reason."""
    _json_values: dict[str, Any] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def images(self) -> list[RawFile]:
        """The files whose names end as those of images do."""
        return [file for file in self.files if is_image_name(file.key)]

    @functools.cached_property
    def _source_files(self) -> SourceFiles:
        """The files as a source finds them."""
        return SourceFiles(Listing(self.folder, self.files, self.rejected), "init")

    def list_candidates(self, *suffixes: str) -> list[RawFile]:
        """The files with one of the suffixes that may hold annotations, in lower case."""
        return [
            file
            for file in self.files
            if file.key.lower().endswith(suffixes) and self.named_file in (None, file.key)
        ]

    def iterate_starts(self, *suffixes: str) -> Iterator[tuple[RawFile, bytes]]:
        """Yields the first candidates, each with its first bytes."""
        for file in self.list_candidates(*suffixes)[:MAX_CANDIDATES]:
            yield file, self.read_start(file)

    @contextlib.contextmanager
    def open(self, file: RawFile) -> Iterator[BinaryIO]:
        try:
            with open_raw(file, self.folder) as opened:
                yield opened
        except OSError as error:
            raise DataError(
                f"{self.folder / file.key}: {describe_os_error(error)}. Correct its permissions."
            ) from None

    def read_start(self, file: RawFile, num_bytes: int = START_BYTES) -> bytes:
        with self.open(file) as opened:
            return opened.read(num_bytes)

    def read_ends(self, file: RawFile) -> bytes:
        """The first and the last bytes of a file, with a line break between them."""
        with self.open(file) as opened:
            start = opened.read(START_BYTES)
            opened.seek(max(len(start), file.num_bytes - START_BYTES))
            return start + b"\n" + opened.read(START_BYTES)

    def find_images_folder(self, names: Sequence[str], beside: str) -> tuple[str, int]:
        """The folder at which some paths of images start, and the number of images found there.

        Of folders with equally many images, that of the annotation file with the key `beside` is
        taken, then one whose name is a word of the key, and then the first by name.
        """
        votes: Counter[str] = Counter()
        for name in names:
            path = posixpath.normpath(name.strip().replace("\\", "/"))
            votes.update(self._source_files.list_image_folders(path))
        own, words = posixpath.dirname(beside) or ".", re.findall(r"[^\W_]+", beside)

        def rank(folder: str) -> tuple[Any, ...]:
            is_named = posixpath.basename(folder) in words
            return -votes[folder], folder != own, not is_named, folder

        best = min(votes, key=rank, default=".")
        return best, votes[best]

    def count_images_named(self, names: Sequence[str]) -> int:
        """The number of paths whose file name, maybe without its suffix, one image has."""
        number = 0
        for name in names:
            with contextlib.suppress(Reject):
                number += self._source_files.search_name(name) is not None
        return number

    def measure_image(self, path: str, folder: str, is_by_name: bool) -> Size | None:
        """The height and width of the upright image with a path as a table has it, if it is clear.

        None also for an image that cannot be read, or that is as likely to be meant on its side.
        """
        files = self._source_files
        find = files.find_image_by_name if is_by_name else files.find_image
        with contextlib.suppress(Reject), self.open(find(path, folder)) as opened:
            return read_size(opened)
        return None

    def read_json(self, file: RawFile) -> Any:
        """The value of a file of JSON, or None if it is none, or a very large one."""
        if file.key not in self._json_values:
            value = None
            if file.num_bytes <= MAX_JSON_BYTES:
                try:
                    value = json.loads(decode_text(self.read_start(file, MAX_JSON_BYTES)))
                except (ValueError, RecursionError) as error:
                    self.json_faults[file.key] = describe_json_error(error)
            self._json_values[file.key] = value
        return self._json_values[file.key]

    def enter(self, below: str) -> Listing:
        """The listing of a folder below this one, or of this folder for an empty name."""
        prefix = f"{below}/" if below else ""
        files = (file for file in self.files if file.key.startswith(prefix))
        rejected = (entry for entry in self.rejected if entry.key.startswith(prefix))
        return Listing(
            self.folder / below,
            tuple(dataclasses.replace(file, key=file.key[len(prefix) :]) for file in files),
            tuple(entry._replace(key=entry.key[len(prefix) :]) for entry in rejected),
        )


def view_folder(
    path: Path, max_files: int = _MAX_FILES, chosen: Mapping[str, Any] | None = None
) -> FolderView:
    """Lists a folder, or the folder of a file, up to a number of files.

    Raises DataError: there is no such file or folder, or it cannot be read.
    """
    try:
        is_file = path.is_file()
        folder = path.resolve(strict=True)
        folder = folder.parent if is_file else folder
        entries = walk_entries(os.fsencode(folder))
        found = list(itertools.islice(entries, max_files))
        is_complete = next(entries, None) is None
    except (OSError, RuntimeError) as error:  # RuntimeError: a link to itself
        problem = describe_os_error(error) if isinstance(error, OSError) else str(error)
        raise DataError(f"{path}: {problem}. Correct the path or its permissions.") from None
    files, rejected = [], []
    for entry in found:
        key = to_raw_key(entry.relative)
        if entry.reason:
            rejected.append(RejectedFile(key, entry.reason, entry.detail))
        else:
            version = to_file_version(entry.stat)
            files.append(RawFile(key, entry.stat.st_size, digest=0, version=version))
    files.sort(key=lambda file: file.key)
    name = to_raw_key(os.fsencode(path.resolve().name)) if is_file else None
    return FolderView(
        folder, tuple(files), tuple(sorted(rejected)), name, is_complete, chosen or {}
    )


def read_size(opened: BinaryIO) -> Size | None:
    """The height and width of an image, or None if it has none, or EXIF lays it on its side."""
    (height, width), orientation = read_orientation(opened)
    return None if orientation in (5, 6, 7, 8) or not height else (float(height), float(width))


def read_orientation(opened: BinaryIO) -> tuple[tuple[int, int], int]:
    """Height and width of an image as it is stored, and EXIF's orientation. Zeros if it is none."""
    from PIL import Image

    try:
        with Image.open(opened) as image:
            return (image.height, image.width), image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # Pillow's parsers raise nearly anything
        return (0, 0), 1
