"""Raw files in an object store, `s3://bucket/animals`: listed, read, and never written.

A listing reads no object. The store's own mark, the etag, identifies a content. For most S3 objects
it is the MD5 of the content, and it always changes when the object is written again. The digest of
a file is therefore one of its etag and size. A data set that moves from a local folder to a store
counts as new. Equal objects are recognized only if their etags are equal. Some stores do not
guarantee that, and S3 does not if it encrypts with KMS or received an object in parts. If a store
has no etags, the time of the last write is used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import difflib
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from pipeline_ops.errors import DataError, MachineError
from pipeline_ops.raw_data.raw_file import RawFile, key_of
from pipeline_ops.storage.object_store import file_system, translated

if TYPE_CHECKING:
    import fsspec

_MARKS = (
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
"""The drivers' names for the mark of an object's content, the best first."""
_MD5 = re.compile("[0-9a-f]{32}")


@dataclasses.dataclass(frozen=True)
class RemoteFolder:
    """A place that holds raw files.

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
        try:
            with translated(self.uri):
                strictly = (
                    {"on_error": "raise"} if self.uri.startswith("http") else {}
                )  # otherwise a server that is down has no files
                found = self._driver.find(root, detail=True, **strictly)
        except FileNotFoundError as error:
            raise DataError(f"{self.uri}: {error}; it is named by preprocess.source.path") from None
        files = (
            _raw_file(path.removeprefix(root), entry)
            for path, entry in found.items()
            if entry["type"] == "file" and path.startswith(root)
        )
        return tuple(sorted((file for file in files if file), key=lambda file: file.key))

    def neighbour(self) -> str | None:
        """The most similar URI in the same parent, for a message about a wrong prefix."""
        parent, _, name = self._path.rpartition("/")
        try:
            paths = self._driver.ls(parent, detail=False)
        except (
            Exception
        ):  # drivers raise errors of many kinds, and the message is complete without this
            return None
        beside = [path.rstrip("/").rpartition("/")[2] for path in paths]
        return next(
            (
                self.uri.removesuffix(name) + close
                for close in difflib.get_close_matches(name, beside, n=1)
            ),
            None,
        )

    def read(self, files: Sequence[RawFile]) -> list[bytes]:
        """The content of some files, fetched together.

        Raises:
          ConfigError: the credentials do not allow reading.
          MachineError: a file is gone or has changed since it was listed, or the store can't be
            reached.
        """
        contents = self._fetch(files)
        contents |= self._fetch(
            [file for file in files if isinstance(contents[file.key], FileNotFoundError)]
        )  # a store may have been wrong
        return [self._checked(file, contents[file.key]) for file in files]

    def _fetch(self, files: Sequence[RawFile]) -> dict[str, bytes | Exception]:
        """Fetches contents or errors, by key.

        It uses ranges, because a driver then takes a name literally, including brackets, and does
        not ask for the size first.
        """
        filled = [file for file in files if file.num_bytes]  # an empty object has no range
        with translated(self.uri):
            found = self._driver.cat_ranges(
                [self._object(file) for file in filled],
                0,
                [file.num_bytes for file in filled],
                on_error="return",
            )
        return {file.key: b"" for file in files} | {
            file.key: content for file, content in zip(filled, found, strict=True)
        }

    def read_beginning(self, file: RawFile, num_bytes: int) -> bytes:
        """Reads up to `num_bytes` of a file, without checking that it is still the listed one."""
        with _of_one_file(file), translated(self / file.key):
            return self._driver.cat_file(
                self._object(file), start=0, end=min(num_bytes, file.num_bytes)
            )

    def _checked(self, file: RawFile, content: bytes | Exception) -> bytes:
        with _of_one_file(file), translated(self / file.key):
            if isinstance(content, Exception):
                raise content
            if not self._is_as_listed(file, content):
                raise MachineError(f"{file.key} has changed since the run started; retry")
        return content

    def _is_as_listed(self, file: RawFile, content: bytes) -> bool:
        """Compares the content with the mark if the mark is its MD5.

        Otherwise it asks the store for the mark again, after the content was read.
        """
        if len(content) != file.num_bytes:
            return False
        if (
            _MD5.fullmatch(file.version)
            and hashlib.md5(content, usedforsecurity=False).hexdigest() == file.version
        ):
            return True
        return _mark_of(self._driver.info(self._object(file))) == file.version

    @property
    def _driver(self) -> fsspec.AbstractFileSystem:
        return file_system(self.uri)

    @property
    def _path(self) -> str:
        """The path as the driver writes it."""
        return self._driver._strip_protocol(self.uri).rstrip("/")

    def _object(self, file: RawFile) -> str:
        return f"{self._path}/{unquote_to_bytes(file.key).decode()}"


@contextlib.contextmanager
def _of_one_file(file: RawFile) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise MachineError(
            f"{file.key} could not be read: it was there when the run started, so retry ({error})"
        ) from error


def _raw_file(path: str, entry: Mapping[str, Any]) -> RawFile | None:
    if path.endswith("/") or any(part.startswith(".") for part in path.split("/")):
        return None
    mark = _mark_of(entry)
    digest = hashlib.blake2b(f"{entry['size']} {mark}".encode(), digest_size=16).hexdigest()
    return RawFile(key_of(path.encode()), entry["size"], digest, mark)


def _mark_of(entry: Mapping[str, Any]) -> str:
    """The mark in a driver's description of an object."""
    mark = next((entry[name] for name in _MARKS if entry.get(name)), "")
    return str(mark.timestamp() if isinstance(mark, datetime.datetime) else mark).strip('"')
