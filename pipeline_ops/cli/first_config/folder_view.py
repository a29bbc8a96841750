"""The view of a folder that the recognition works on: names, sizes, and the start of a few files.

All names are listed, up to a limit. Contents are read only where a recogniser asks for them, and
only a bounded part. No digests are computed, so a listing made here is for readers of annotations
and not for a fingerprint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from beam_jobs.sources.parsing import is_image_name
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.entries import walk_entries
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.raw_file import RawFile, RejectedFile, to_file_version, to_raw_key
from pipeline_ops.storage.local_files import describe_os_error

_MAX_FILES = 2_000_000
"""Number of names after which the listing stops."""
MAX_CANDIDATES = 20
"""Number of files of one kind that a recogniser opens."""
START_BYTES = 1 << 16
"""Number of bytes that are read from the start, or the end, of a file."""


@dataclasses.dataclass(frozen=True)
class FolderView:
    """The files below a folder, sorted by key.

    `named_file` is the key of the file that the user named instead of the folder. Only this file
    can then hold the annotations. `is_complete` is False if there are more files than these.
    Methods that read raise DataError if a file cannot be read.
    """

    folder: Path
    files: tuple[RawFile, ...]
    rejected: tuple[RejectedFile, ...] = ()
    named_file: str | None = None
    is_complete: bool = True

    @functools.cached_property
    def images(self) -> list[RawFile]:
        """The files whose names end as those of images do."""
        return [file for file in self.files if is_image_name(file.key)]

    @functools.cached_property
    def _images_by_name(self) -> dict[str, list[str]]:
        """The keys of images by the name of their file, with and without its suffix."""
        found: dict[str, list[str]] = defaultdict(list)
        for file in self.images:
            name = posixpath.basename(file.key)
            for each in {name, posixpath.splitext(name)[0]}:
                found[each].append(file.key)
        return found

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
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe must not block
        try:
            with open(os.open(file.to_path(self.folder), flags), "rb") as opened:
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
        for given in names:
            name = to_raw_key(posixpath.normpath(given).encode("utf-8", "surrogatepass"))
            for key in self._images_by_name.get(posixpath.basename(name), ()):
                if key == name or key.endswith(f"/{name}"):
                    votes[key[: -len(name)].rstrip("/") or "."] += 1
        own, words = posixpath.dirname(beside) or ".", re.findall(r"[^\W_]+", beside)
        best = min(
            votes,
            key=lambda folder: (
                -votes[folder],
                folder != own,
                posixpath.basename(folder) not in words,
                folder,
            ),
            default=".",
        )
        return best, votes[best]

    def count_images_named(self, names: Sequence[str]) -> int:
        """The number of paths whose file name, maybe without its suffix, one image has."""
        ends = (re.split(r"[/\\]", name)[-1] for name in names)
        return sum(len(self._images_by_name.get(end, ())) == 1 for end in ends)

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


def view_folder(path: Path, max_files: int = _MAX_FILES) -> FolderView:
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
    return FolderView(folder, tuple(files), tuple(sorted(rejected)), name, is_complete)


def count(number: int, noun: str) -> str:
    """A number and a noun: `1 image`, `1,203 images`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
