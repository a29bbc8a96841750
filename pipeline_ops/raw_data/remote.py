"""Raw files in an object store, `s3://bucket/animals`: listed, read, and never written.

A listing reads no object. The store's etag identifies a content. For most S3 objects it is the MD5
of the content, and it always changes when the object is written again. The digest of a file is
therefore one of its etag and size. A data set that moves from a local folder to a store counts as
new. Equal objects are recognized only if their etags are equal. Some stores do not guarantee that,
and S3 does not if it encrypts with KMS or received an object in parts. If a store has no etags, the
time of the last write is used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import difflib
import hashlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from pipeline_ops.errors import DataError, MachineError
from pipeline_ops.raw_data.fsspec_driver import (
    describe_place,
    get_file_system,
    translate_errors,
)
from pipeline_ops.raw_data.raw_file import RawFile, compute_digest, to_raw_key
from pipeline_ops.storage.outage import repeat_while_away

if TYPE_CHECKING:
    import fsspec

_ETAG_KEYS = (
    "ETag",
    "etag",
    "md5Hash",
    "generation",
    "LastModified",
    "last_modified",
    "updated",
    "mtime",
    "created",
)
"""The drivers' names for the etag of an object, the best first."""
_BUFFER_BYTES = 8 << 20
_MD5 = re.compile("[0-9a-f]{32}")
_BEYOND_END = re.compile("range.* not satisfiable", re.IGNORECASE)
"""What all stores answer, after HTTP's status 416, if an object is shorter than it was."""


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
          ConfigError: the driver or the credentials are missing, or the credentials do not allow
            listing.
          DataError: there is no such bucket.
          MachineError: the store can't be reached.
        """
        root = f"{self._path}/"
        # Otherwise a web server that is down has no files.
        strictly = {"on_error": "raise"} if self.uri.startswith("http") else {}

        def find() -> dict[str, dict[str, Any]]:
            with translate_errors(self.uri):
                found: dict[str, dict[str, Any]] = self._driver.find(root, detail=True, **strictly)
                return found

        try:
            found = repeat_while_away(describe_place(self.uri), find)
        except FileNotFoundError as error:
            raise DataError(
                f"{describe_place(self.uri)}: {error}. Correct preprocess.source.path."
            ) from None
        files = (
            _to_raw_file(path.removeprefix(root), entry)
            for path, entry in found.items()
            if entry["type"] == "file" and path.startswith(root)
        )
        return tuple(sorted((file for file in files if file), key=lambda file: file.key))

    def find_similar_uri(self) -> str | None:
        """The most similar URI in the same parent, for a message about a wrong prefix."""
        parent, _, name = self._path.rpartition("/")
        try:
            paths = self._driver.ls(parent, detail=False)
        except Exception:  # of many kinds, and the caller's message is complete without a URI
            return None
        siblings = [path.rstrip("/").rpartition("/")[2] for path in paths]
        similar = difflib.get_close_matches(name, siblings, n=1)
        return self.uri.removesuffix(name) + similar[0] if similar else None

    def read(self, files: Sequence[RawFile]) -> list[bytes]:
        """The content of some files, fetched together.

        Raises:
          ConfigError: the credentials do not allow reading.
          MachineError: a file is gone or has changed since it was listed, or the store can't be
            reached.
        """

        def read() -> list[bytes]:
            contents = self._fetch(files)
            contents |= self._fetch(
                [file for file in files if isinstance(contents[file.key], FileNotFoundError)]
            )  # a store may have been wrong
            return [self._check_content(file, contents[file.key]) for file in files]

        return repeat_while_away(describe_place(self.uri), read)

    def read_parts(self, parts: Sequence[tuple[RawFile, int, int]]) -> list[bytes]:
        """Parts of files, each with its offset and size, fetched together.

        Nothing checks that the files are still the listed ones. Raises as `read`.
        """
        filled = [part for part in parts if part[2]]  # no bytes are no range
        paths = [self._to_object_path(file) for file, _, _ in filled]
        starts = [offset for _, offset, _ in filled]
        ends = [offset + size for _, offset, size in filled]

        def read() -> list[bytes]:
            with translate_errors(self.uri):
                found = self._driver.cat_ranges(paths, starts, ends, on_error="return")
            return [self._unwrap(part[0], each) for part, each in zip(filled, found, strict=True)]

        found = iter(repeat_while_away(describe_place(self.uri), read) if filled else [])
        return [next(found) if size else b"" for _, _, size in parts]

    def open(self, file: RawFile) -> io.BufferedReader:
        """Opens a file that is too large for memory. Raises as `read_parts` while it is read.

        Every read of its `raw` is a request for just these bytes.
        """
        return io.BufferedReader(_RemoteFile(self, file), _BUFFER_BYTES)

    def _fetch(self, files: Sequence[RawFile]) -> dict[str, bytes | Exception]:
        """Fetches contents or errors, by key.

        It uses ranges, because a driver then takes a name literally, including brackets, and does
        not ask for the size first.
        """
        filled = [file for file in files if file.num_bytes]  # an empty object has no range
        with translate_errors(self.uri):
            found = self._driver.cat_ranges(
                [self._to_object_path(file) for file in filled],
                0,
                [file.num_bytes for file in filled],
                on_error="return",
            )
        return {file.key: b"" for file in files} | {
            file.key: content for file, content in zip(filled, found, strict=True)
        }

    def read_beginning(self, file: RawFile, num_bytes: int) -> bytes:
        """Reads up to `num_bytes` of a file, without checking that it is still the listed one."""

        def read() -> bytes:
            with _translate_missing_file(file), translate_errors(self / file.key):
                content: bytes = self._driver.cat_file(
                    self._to_object_path(file), start=0, end=min(num_bytes, file.num_bytes)
                )
                return content

        return repeat_while_away(describe_place(self.uri), read)

    def _check_content(self, file: RawFile, content: bytes | Exception) -> bytes:
        found = self._unwrap(file, content)
        with _translate_missing_file(file), translate_errors(self / file.key):
            if not self._is_unchanged(file, found):
                raise make_change_error(file.key)
        return found

    def _unwrap(self, file: RawFile, content: bytes | Exception) -> bytes:
        """Raises the error that the driver has returned instead of a content."""
        if isinstance(content, Exception) and _BEYOND_END.search(str(content)):
            raise make_change_error(file.key)
        with _translate_missing_file(file), translate_errors(self / file.key):
            if isinstance(content, Exception):
                raise content
        return content

    def _is_unchanged(self, file: RawFile, content: bytes) -> bool:
        """Compares the content with the etag if the etag is its MD5.

        Otherwise it asks the store for the etag again, after the content was read.
        """
        if len(content) != file.num_bytes:
            return False
        if _MD5.fullmatch(str(file.version)):
            md5 = hashlib.md5(content, usedforsecurity=False)
            if md5.hexdigest() == file.version:
                return True
        return _find_etag(self._driver.info(self._to_object_path(file))) == file.version

    @property
    def _driver(self) -> fsspec.AbstractFileSystem:
        return get_file_system(self.uri)

    @property
    def _path(self) -> str:
        """The path as the driver writes it."""
        return str(self._driver._strip_protocol(self.uri)).rstrip("/")

    def _to_object_path(self, file: RawFile) -> str:
        return f"{self._path}/{unquote_to_bytes(file.key).decode()}"


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


@contextlib.contextmanager
def _translate_missing_file(file: RawFile) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise MachineError(
            f"cannot read {file.key}, which existed when the run started: {error}. Retry."
        ) from error


def _to_raw_file(path: str, entry: Mapping[str, Any]) -> RawFile | None:
    if path.endswith("/") or any(part.startswith(".") for part in path.split("/")):
        return None
    etag = _find_etag(entry)
    digest = compute_digest(f"{entry['size']} {etag}".encode())
    return RawFile(to_raw_key(path.encode()), entry["size"], digest, etag)


def _find_etag(entry: Mapping[str, Any]) -> str:
    """The etag in a driver's description of an object."""
    etag = next((entry[name] for name in _ETAG_KEYS if entry.get(name)), "")
    return str(etag.timestamp() if isinstance(etag, datetime.datetime) else etag).strip('"')
