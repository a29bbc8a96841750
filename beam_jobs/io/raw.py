"""Finds and reads the image bytes of a record.

The bytes are a file of their own, an object in a store, or a part of a TFRecord file. A plan holds
the places, which are small, instead of images. The worker that builds a shard reads the bytes.
Called by `beam_jobs/output/shard.py`, and by other modules that need the bytes of one record.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from beam_jobs.io.example import parse
from beam_jobs.io.tfrecord_reader import CorruptRecord, read_record
from pipeline_ops.errors import MachineError
from pipeline_ops.raw_data.listing import RawFolder
from pipeline_ops.raw_data.raw_file import RawFile, new_hash, to_file_version
from pipeline_ops.raw_data.remote import RemoteFolder


@dataclasses.dataclass(frozen=True, slots=True)
class PackedImage:
    """An image inside a tf.train.Example of a TFRecord file.

    `num_bytes` and `digest` are the image's own, like a RawFile's. `container` is the TFRecord
    file, `offset` is the start of the record in it, and `feature` is the name of the feature that
    holds the image.
    """

    key: str
    num_bytes: int
    digest: str
    container: RawFile
    offset: int
    feature: str

    def has_content(self, content: bytes) -> bool:
        """Returns whether `content` is the image that was there when the source was read."""
        return digest_image(content) == self.digest


Raw = RawFile | PackedImage
_MAX_FETCHED_FILES, _MAX_FETCHED_BYTES = 32, 16e6
"""Limits of one fetch. The first one that is reached counts."""


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
        return folder.read([find_raw_file(raw)])[0]
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


class RawReader:
    """Reads records one after another, in the order of `raws`.

    Some records may be left out. Records in an object store are fetched together, a few ahead. If
    they were fetched one by one, a worker would always wait for the network.
    """

    def __init__(self, raws: Iterable[Raw], folder: RawFolder):
        self._folder, self._upcoming = folder, iter(raws)
        self._fetched: dict[str, bytes] = {}

    def read(self, raw: Raw) -> bytes:
        """Reads a record as `read_raw` does."""
        if not isinstance(self._folder, RemoteFolder):
            return read_raw(raw, self._folder)
        while raw.key not in self._fetched:
            files = self._take_next_files()
            contents = self._folder.read(files)
            self._fetched = {file.key: c for file, c in zip(files, contents, strict=True)}
        return self._fetched.pop(raw.key)

    def _take_next_files(self) -> list[RawFile]:
        files: list[RawFile] = []
        num_bytes = 0
        while (
            len(files) < _MAX_FETCHED_FILES
            and num_bytes < _MAX_FETCHED_BYTES
            and (file := next(self._upcoming, None))
        ):
            files.append(find_raw_file(file))
            num_bytes += file.num_bytes
        return files


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
    """The bytes of an image inside a TFRecord file, or None if it has changed."""
    try:
        values = parse(read_record(raw.container.to_path(folder), raw.offset)).get(raw.feature)
    except (CorruptRecord, ValueError):
        return None
    image = values[0] if values else None
    return image if isinstance(image, bytes) and raw.has_content(image) else None
