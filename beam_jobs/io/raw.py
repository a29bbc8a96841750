"""Finds and reads the image bytes of a record.

The bytes are a file of their own, an object in a store, or a part of a file with many images. A
plan holds the places, which are small, instead of images. The worker that builds a shard reads the
bytes. `beam_jobs/output/shard.py` calls this module, and so do others that need single records.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal

from beam_jobs.io.example import parse
from beam_jobs.io.parquet_rows import read_rows
from beam_jobs.io.tfrecord_reader import CorruptRecord, read_record
from pipeline_ops.errors import MachineError
from pipeline_ops.raw_data.listing import RawFolder
from pipeline_ops.raw_data.raw_file import RawFile, new_hash, to_file_version
from pipeline_ops.raw_data.remote import RemoteFolder


@dataclasses.dataclass(frozen=True, slots=True)
class PackedImage:
    """An image inside a file with many images.

    `num_bytes` and `digest` are the image's own, like a RawFile's. `container` is the file. The
    place in it depends on `packing`:

      tfrecord   `offset` is the start of a tf.train.Example, `feature` the feature of the image.
      tar        `offset` is the first byte of the image.
      parquet    `offset` is the row, `feature` the column.
    """

    key: str
    num_bytes: int
    digest: str
    container: RawFile
    offset: int
    feature: str = ""
    packing: Literal["tfrecord", "tar", "parquet"] = "tfrecord"

    def has_content(self, content: bytes) -> bool:
        """Returns whether `content` is the image that was there when the source was read."""
        return digest_image(content) == self.digest


Raw = RawFile | PackedImage
_MAX_FETCHED_FILES, _MAX_FETCHED_BYTES = 32, 16e6
"""Limits of one fetch from a store. The first one that is reached counts."""
_MAX_ROW_BYTES = 128e6
"""Maximum size of the images that are read ahead from Parquet files, per worker."""


def find_raw_file(raw: Raw) -> RawFile:
    """The file below the source's folder that holds the image."""
    return raw.container if isinstance(raw, PackedImage) else raw


def digest_image(content: bytes) -> str:
    """The digest of an image, computed as the listing computes that of a file.

    Equal images have equal digests wherever they lie.
    """
    return new_hash(content).hexdigest()


def read_raw(raw: Raw, folder: RawFolder) -> bytes:
    """The bytes of an image file. `folder` is the folder of the listing.

    Raises:
      MachineError: the file cannot be read, or has changed since the run started.
    """
    if isinstance(folder, RemoteFolder):
        return _fetch([raw], folder)[raw.key]
    with translate_read_errors(raw.key):
        content = (
            _read_packed(raw, folder) if isinstance(raw, PackedImage) else _read_file(raw, folder)
        )
    if content is None:
        raise MachineError(f"{raw.key} has changed since the run started. Retry.")
    return content


@contextlib.contextmanager
def translate_read_errors(key: str) -> Iterator[None]:
    """Raises MachineError for an OSError in the block, which reads a file that was listed."""
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"cannot read {key}: {error.strerror}. It was there when the run started. Retry."
        ) from error


def read_beginning(file: RawFile, folder: RawFolder, num_bytes: int) -> bytes:
    """The first `num_bytes` of a file."""
    if isinstance(folder, RemoteFolder):
        return folder.read_beginning(file, num_bytes)
    with open(file.to_path(folder), "rb") as opened:
        return opened.read(num_bytes)


def open_raw(file: RawFile, folder: RawFolder) -> BinaryIO:
    """Opens a file of many images, to read it from its beginning to its end."""
    if isinstance(folder, RemoteFolder):
        return folder.open(file)
    return open(file.to_path(folder), "rb")


class RawReader:
    """Reads records one after another, in the order of `raws`.

    Some records may be left out. Records in an object store are fetched together, a few ahead. If
    they were fetched one by one, a worker would always wait for the network. Rows of Parquet files
    are fetched ahead as well, because the smallest part that can be read is a row group.
    """

    def __init__(self, raws: Iterable[Raw], folder: RawFolder):
        self._folder, self._upcoming = folder, iter(raws)
        self._fetched: dict[str, bytes] = {}

    def read(self, raw: Raw) -> bytes:
        """Reads a record as `read_raw` does."""
        if isinstance(self._folder, RemoteFolder):
            while raw.key not in self._fetched:
                raws = self._take_next(_MAX_FETCHED_FILES, _MAX_FETCHED_BYTES)
                self._fetched = _fetch(raws, self._folder)
        elif isinstance(raw, PackedImage) and raw.packing == "parquet":
            while raw.key not in self._fetched:
                self._fetched = _read_ahead(self._take_next(None, _MAX_ROW_BYTES), self._folder)
        else:
            return read_raw(raw, self._folder)
        return self._fetched.pop(raw.key)

    def _take_next(self, max_files: int | None, max_bytes: float) -> list[Raw]:
        raws: list[Raw] = []
        num_bytes = 0
        for raw in itertools.islice(self._upcoming, max_files):
            raws.append(raw)
            num_bytes += raw.num_bytes
            if num_bytes >= max_bytes:
                break
        return raws


def _fetch(raws: Sequence[Raw], folder: RemoteFolder) -> dict[str, bytes]:
    """Objects, and images in tar files in a store, by key."""
    packed = [raw for raw in raws if isinstance(raw, PackedImage)]
    images = folder.read_parts([(raw.container, raw.offset, raw.num_bytes) for raw in packed])
    found = {raw.key: image for raw, image in zip(packed, images, strict=True)}
    for raw in packed:
        if not raw.has_content(found[raw.key]):
            raise MachineError(f"{raw.key} has changed since the run started. Retry.")
    if files := [raw for raw in raws if isinstance(raw, RawFile)]:
        contents = folder.read(files)
        found |= {file.key: content for file, content in zip(files, contents, strict=True)}
    return found


def _read_ahead(raws: Iterable[Raw], folder: Path) -> dict[str, bytes]:
    """Images in Parquet files, by key. Each row group is read once, one at a time."""
    groups: dict[tuple[bytes, str], list[PackedImage]] = defaultdict(list)
    for raw in raws:
        if isinstance(raw, PackedImage):
            groups[raw.container.to_path(folder), raw.feature].append(raw)
    found = {}
    for (path, column), members in groups.items():
        with translate_read_errors(members[0].container.key):
            rows = read_rows(path, column, [raw.offset for raw in members])
        for raw in members:
            image = rows.pop(raw.offset, None)
            if image is None or not raw.has_content(image):
                raise MachineError(f"{raw.key} has changed since the run started. Retry.")
            found[raw.key] = image
    return found


def _read_file(raw: RawFile, folder: Path) -> bytes | None:
    """The bytes of a file, or None if it has changed.

    The file's state is checked after its bytes are read: any write since it was listed has changed
    its ctime by then.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe must not block
    descriptor = os.open(raw.to_path(folder), flags)
    try:
        content = os.read(descriptor, raw.num_bytes)
        while len(content) < raw.num_bytes and (
            more := os.read(descriptor, raw.num_bytes - len(content))
        ):  # beyond 2 GB
            content += more
        stat = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    is_same = stat.st_size == len(content) == raw.num_bytes and (
        to_file_version(stat) == raw.version or raw.has_content(content)
    )
    return content if is_same else None


def _read_packed(raw: PackedImage, folder: Path) -> bytes | None:
    """The bytes of an image inside another file, or None if it has changed."""
    path = raw.container.to_path(folder)
    match raw.packing:
        case "tfrecord":
            image = _read_feature(path, raw)
        case "tar":
            with open(path, "rb", buffering=0) as file:
                image = os.pread(file.fileno(), raw.num_bytes, raw.offset)
        case "parquet":
            image = read_rows(path, raw.feature, [raw.offset]).get(raw.offset)
    return image if image is not None and raw.has_content(image) else None


def _read_feature(path: bytes, raw: PackedImage) -> bytes | None:
    try:
        values = parse(read_record(path, raw.offset)).get(raw.feature)
    except (CorruptRecord, ValueError):
        return None
    return values[0] if values and isinstance(values[0], bytes) else None
