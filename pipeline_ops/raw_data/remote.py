"""Raw files in an object store, `s3://bucket/animals`: listed, read, and never written.

A listing reads no object. The store's etag identifies a content. For most S3 objects it is the MD5
of the content, and it always changes when the object is written again. The digest of a file is
therefore one of its etag and size. A data set that moves from a local folder to a store counts as
new. Equal objects are recognized only if their etags are equal. Some stores do not guarantee that,
and S3 does not if it encrypts with KMS or received an object in parts.

Endpoint and credentials are those of the environment, as for the storage root. A web server must
list its files by WebDAV.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from pipeline_ops.errors import MachineError, TrainyardError
from pipeline_ops.raw_data.raw_file import RawFile, compute_digest, to_raw_key
from pipeline_ops.storage.open_store import open_bucket
from pipeline_ops.storage.request_cache import map_requests
from pipeline_ops.storage.store_path import Entry

if TYPE_CHECKING:
    from pipeline_ops.storage.object_store import ObjectPath

_BUFFER_BYTES = 8 << 20
_PARALLEL = 16


@dataclasses.dataclass(frozen=True)
class RemoteFolder:
    """A URI that holds raw files.

    It is a value that is sent to workers. Each worker has its own connection.
    """

    uri: str

    def __str__(self) -> str:
        return self.uri

    def __truediv__(self, path: str) -> str:
        return f"{self.uri}/{path}"

    def list_files(self) -> tuple[RawFile, ...]:
        """Lists the objects below, sorted by key. Names that begin with a dot are not data.

        Raises:
          ConfigError: there is no such bucket, or the credentials do not allow listing.
          MachineError: the store can't be reached.
        """
        entries = self._root.walk()
        names = [entry.name for entry in entries]
        files = (_to_raw_file(entry) for entry in entries if not _is_marker(entry, names))
        return tuple(sorted((file for file in files if file), key=lambda file: file.key))

    def find_similar_uri(self) -> str | None:
        """The most similar URI in the same parent, for a message about a wrong prefix."""
        parent, _, name = self.uri.rpartition("/")
        if parent.endswith("/"):  # the URI of a bucket
            return None
        with contextlib.suppress(TrainyardError):
            siblings = [entry.name for entry in open_bucket(parent).list_folder()]
            if similar := difflib.get_close_matches(name, siblings, n=1):
                return f"{parent}/{similar[0]}"
        return None

    def read(self, files: Sequence[RawFile]) -> list[bytes]:
        """The content of some files, fetched together. Raises as `read_parts`."""
        return self.read_parts([(file, 0, file.num_bytes) for file in files])

    def read_parts(self, parts: Sequence[tuple[RawFile, int, int]]) -> list[bytes]:
        """Parts of files, each with its offset and size, fetched together.

        Raises:
          ConfigError: the credentials do not allow reading.
          MachineError: a file is gone or has changed since it was listed, or the store can't be
            reached.
        """
        return map_requests(lambda part: self._read_part(*part), parts, _PARALLEL)

    def open(self, file: RawFile) -> io.BufferedReader:
        """Opens a file that is too large for memory. Raises as `read_parts` while it is read.

        Every read of its `raw` is a request for just these bytes.
        """
        return io.BufferedReader(_RemoteFile(self, file), _BUFFER_BYTES)

    def _read_part(self, file: RawFile, offset: int, num_bytes: int) -> bytes:
        if num_bytes == 0:  # no bytes are no range
            return b""
        name = unquote_to_bytes(file.key).decode()
        try:
            content, found = (self._root / name).read_version(offset, num_bytes)
        except FileNotFoundError as error:
            raise MachineError(
                f"cannot read {file.key}, which existed when the run started: {error}. Retry."
            ) from error
        if found is None or len(content) != num_bytes or found.version != file.version:
            raise make_change_error(file.key)
        return content

    @property
    def _root(self) -> ObjectPath:
        return open_bucket(self.uri)


class _RemoteFile(io.RawIOBase):
    """A file whose every read is a request, so that reading it outlasts an outage."""

    def __init__(self, folder: RemoteFolder, file: RawFile):
        super().__init__()
        self._folder, self._file, self._position = folder, file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._file.num_bytes)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), self._file.num_bytes - self._position)
        if size <= 0:
            return 0
        [content] = self._folder.read_parts([(self._file, self._position, size)])
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)


def make_change_error(key: str) -> MachineError:
    return MachineError(f"{key} has changed since the run started. Retry.")


def _is_marker(entry: Entry, names: list[str]) -> bool:
    """Returns whether an empty object only stands for a folder, as consoles of stores make them.

    `names` are those of all objects, sorted.
    """
    if entry.num_bytes:
        return False
    folder = f"{entry.name}/"
    place = bisect_left(names, folder)
    has_objects = place < len(names) and names[place].startswith(folder)
    return has_objects or "." not in entry.name.rpartition("/")[2]


def _to_raw_file(entry: Entry) -> RawFile | None:
    if any(part.startswith(".") for part in entry.name.split("/")):
        return None
    digest = compute_digest(f"{entry.num_bytes} {entry.version}".encode())
    return RawFile(to_raw_key(entry.name.encode()), entry.num_bytes, digest, entry.version)
