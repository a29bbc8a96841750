"""A store in a bucket of S3, Google Cloud Storage or Azure, through obstore.

There are no renames and no locks. A put is whole or absent, and a conditional put creates a file
once. `object_log.py` has files that grow.

Requests are repeated, also through an outage of minutes (`outage.py`). obstore takes credentials
from the environment, as the tools of each cloud do.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import io
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeVar

import obstore

from pipeline_ops.errors import MachineError
from pipeline_ops.storage.atomic import write_blocks
from pipeline_ops.storage.checksums import Checksums
from pipeline_ops.storage.object_client import open_client
from pipeline_ops.storage.object_errors import is_empty_range, translate_errors
from pipeline_ops.storage.object_log import (
    ObjectLogWriter,
    open_object_log,
    read_object_log,
    read_object_log_end,
)
from pipeline_ops.storage.outage import StoreAway, repeat_while_away
from pipeline_ops.storage.safe_paths import UnsafePath, parse_relative_path
from pipeline_ops.storage.snapshot import map_requests, remember
from pipeline_ops.storage.store import BLOCK_BYTES, Entry, count_usage
from pipeline_ops.storage.store_options import StoreOptions

if TYPE_CHECKING:
    from obstore import ObjectMeta

_PARALLEL_READS = 4
_UPLOAD_MISSING = "NoSuchUpload"
"""The answer if the last request of an upload is repeated, or the parts are gone."""
_Answer = TypeVar("_Answer")


@dataclasses.dataclass(frozen=True)
class ObjectStore:
    """The objects below a URI. See `store.Store` for the methods.

    Attributes:
      root: the URI, such as `s3://bucket/prefix`.
      options: how to reach it.
    """

    root: str
    options: StoreOptions = StoreOptions()

    @property
    def _client(self) -> Any:
        """The client of the bucket, which all roots in it share."""
        bucket = "/".join(self.root.split("/", 3)[:3])
        endpoint = self.options.find_endpoint(bucket)
        return open_client(bucket, self.options.model_copy(update={"endpoint": endpoint}))

    def _to_object(self, key: str) -> str:
        """The name of an object in the bucket."""
        return self._join(key and parse_relative_path(key))

    def _join(self, name: str) -> str:
        prefix = self.root.partition("://")[2].partition("/")[2]
        return "/".join(filter(None, [prefix, name]))

    def read(self, key: str, max_bytes: int) -> bytes:
        content = remember(
            ("read", self._to_uri(key), max_bytes),
            lambda: b"".join(self._read_from_start(key, max_bytes)),
        )
        if len(content) > max_bytes:
            raise UnsafePath(
                f"{self._to_uri(key)} is too large. At most {max_bytes} bytes are allowed."
            )
        return content

    def open(self, key: str, max_bytes: int) -> contextlib.AbstractContextManager[IO[bytes]]:
        return io.BytesIO(self.read(key, max_bytes))

    def read_range(self, key: str, start: int, num_bytes: int) -> bytes:
        return self.read_object(parse_relative_path(key), start, num_bytes)[0] if num_bytes else b""

    def read_object(self, name: str, start: int, num_bytes: int) -> tuple[bytes, Entry | None]:
        """A part of an object, whose name need not be a path of ours, and the entry of the object.

        The entry is None if the object ends before the part. Raises FileNotFoundError.
        """
        path = self._join(name)

        def get() -> tuple[bytes, Entry | None]:
            try:
                found = obstore.get(
                    self._client, path, options={"range": (start, start + num_bytes)}
                )
                return bytes(found.bytes()), _to_entry(found.meta, path.rpartition("/")[0])
            except obstore.exceptions.GenericError as error:
                if not is_empty_range(error):
                    raise
                return b"", None

        content, entry = self._ask(name, get)
        count_usage(read=len(content))
        return content, entry

    def read_blocks(self, key: str) -> Iterator[bytes]:
        return self._read_from_start(key, None)

    def _read_from_start(self, key: str, max_bytes: int | None) -> Iterator[bytes]:
        """Yields the content, or more than `max_bytes` of it, in parts that are read in parallel.

        The first request asks for a part, too: its answer has the size of the whole file.
        """

        content, entry = self.read_object(parse_relative_path(key), 0, BLOCK_BYTES)
        if entry is None:
            return
        yield content
        size = entry.num_bytes if max_bytes is None else min(entry.num_bytes, max_bytes + 1)
        starts = range(BLOCK_BYTES, size, BLOCK_BYTES)
        if not starts:
            return
        with concurrent.futures.ThreadPoolExecutor(_PARALLEL_READS) as pool:
            pending = [
                pool.submit(self.read_range, key, start, BLOCK_BYTES)
                for start in starts[:_PARALLEL_READS]
            ]
            for start in starts:
                content = pending.pop(0).result()
                later = start + _PARALLEL_READS * BLOCK_BYTES
                if later < size:
                    pending.append(pool.submit(self.read_range, key, later, BLOCK_BYTES))
                yield content

    def write(self, key: str, data: bytes, mode: int = 0o666) -> None:
        self._put(key, data, "overwrite")

    def create(self, key: str, data: bytes) -> None:
        try:
            self._put(key, data, "create")
        except FileExistsError:
            if not self._has_content(key, data):
                raise
            # It is this put's own, whose answer was lost.

    def _has_content(self, key: str, data: bytes) -> bool:
        try:
            return self.read(key, len(data)) == data
        except (FileNotFoundError, UnsafePath):
            return False

    def _put(self, key: str, data: bytes, mode: Literal["create", "overwrite"]) -> None:
        def put() -> None:
            obstore.put(self._client, self._to_object(key), data, mode=mode, use_multipart=False)

        self._ask(key, put, can_be_missing=False)
        count_usage(written=len(data))

    def upload(self, key: str, file: Path) -> None:
        num_bytes = file.stat().st_size

        def put() -> None:
            try:
                obstore.put(self._client, self._to_object(key), file, max_concurrency=4)
            except (obstore.exceptions.BaseError, OSError) as error:
                if _UPLOAD_MISSING not in str(error):
                    raise
                raise StoreAway(f"{self._to_uri(key)}: the store has ended the upload") from error

        try:
            self._ask(key, put, can_be_missing=False)
        except MachineError as error:  # the answer may be lost
            if not self._has_file(key, file):
                raise MachineError(f"{self._to_uri(key)} was not uploaded: {error}") from error
        count_usage(requests=1 + num_bytes // (5 << 20), written=num_bytes)

    def _has_file(self, key: str, file: Path) -> bool:
        found = self._stat(key)
        if found is None or found.num_bytes != file.stat().st_size:
            return False
        with open(file, "rb") as opened:
            return all(opened.read(len(block)) == block for block in self.read_blocks(key))

    def download(self, key: str, target: Path, num_bytes: int) -> Checksums:
        blocks = self._read_from_start(key, num_bytes)
        first = next(blocks, b"")  # now, because a missing file is no problem of the disk
        return write_blocks(itertools.chain([first], blocks), target)

    def stat(self, key: str) -> Entry | None:
        return remember(("stat", self._to_uri(key)), lambda: self._stat(key))

    def _stat(self, key: str) -> Entry | None:
        try:
            meta = self._ask(key, lambda: obstore.head(self._client, self._to_object(key)))
        except FileNotFoundError:
            return None
        finally:
            count_usage()
        return _to_entry(meta, self._to_object(key).rpartition("/")[0])

    def list_folder(self, key: str) -> list[Entry]:
        return remember(("list", self._to_uri(key)), lambda: self._list_folder(key))

    def _list_folder(self, key: str) -> list[Entry]:
        folder = self._to_object(key)
        found = self._ask(
            key,
            lambda: obstore.list_with_delimiter(self._client, folder or None),
            can_be_missing=False,
        )
        count_usage(requests=1 + len(found["objects"]) // 1000)
        folders = (prefix.rstrip("/").rpartition("/")[2] for prefix in found["common_prefixes"])
        entries = [_to_entry(meta, folder) for meta in found["objects"]]
        entries += [Entry(name, 0, 0.0, is_folder=True) for name in folders]
        return sorted(entries, key=lambda entry: entry.name)

    def find_in_folders(self, key: str, name: str) -> list[Entry]:
        folders = [each.name for each in self.list_folder(key) if each.is_folder]
        paths = [f"{folder}/{name}" for folder in folders if not folder.startswith(".")]
        return remember(("find", self._to_uri(key), name), lambda: self._stat_all(key, paths))

    def _stat_all(self, key: str, paths: list[str]) -> list[Entry]:
        """The existing ones among some files below a folder."""
        keys = [f"{key}/{path}" if key else path for path in paths]
        found = dict(zip(keys, map_requests(self._stat, keys, parallel=16), strict=True))
        for each in found:
            remember(("stat", self._to_uri(each)), functools.partial(found.get, each))
        entries = zip(paths, found.values(), strict=True)
        return [dataclasses.replace(entry, name=path) for path, entry in entries if entry]

    def walk(self, key: str) -> list[Entry]:
        return remember(("walk", self._to_uri(key)), lambda: self._walk(key))

    def _walk(self, key: str) -> list[Entry]:
        folder = self._to_object(key)
        found = self._ask(
            key,
            lambda: obstore.list(self._client, folder or None, chunk_size=1000).collect(),
            can_be_missing=False,
        )
        count_usage(requests=1 + len(found) // 1000)
        return sorted((_to_entry(meta, folder) for meta in found), key=lambda entry: entry.name)

    def remove(self, key: str) -> None:
        self._delete([key])

    def remove_tree(self, key: str) -> None:
        self._delete([f"{parse_relative_path(key)}/{entry.name}" for entry in self.walk(key)])

    def _delete(self, keys: list[str]) -> None:
        if not keys:
            return
        objects = [self._to_object(key) for key in keys]
        try:
            self._ask(keys[0], lambda: obstore.delete(self._client, objects))
        except FileNotFoundError:  # the first missing one ends the request
            if len(keys) > 1:
                map_requests(self.remove, keys)
        count_usage(requests=1 + len(keys) // 1000)

    def open_log(self, key: str) -> ObjectLogWriter:
        return open_object_log(self, parse_relative_path(key))

    def read_log(self, key: str, offset: int, max_bytes: int) -> bytes:
        return read_object_log(self, parse_relative_path(key), offset, max_bytes)

    def read_log_end(self, key: str, num_bytes: int) -> tuple[int, bytes]:
        return read_object_log_end(self, parse_relative_path(key), num_bytes)

    def _to_uri(self, key: str) -> str:
        return f"{self.root}/{key}" if key else self.root

    def _ask(self, key: str, send: Callable[[], _Answer], can_be_missing: bool = True) -> _Answer:
        """Sends a request, again while the store is away. Translates its errors."""
        bucket = "/".join(self.root.split("/", 3)[:3])
        endpoint = self.options.find_endpoint(bucket)
        at = f" at {endpoint}" if endpoint else ""

        def send_once() -> _Answer:
            with translate_errors(self._to_uri(key), f"{self.root}{at}", can_be_missing):
                return send()

        return repeat_while_away(f"{bucket}{at}", send_once)


def _to_entry(meta: ObjectMeta, folder: str) -> Entry:
    name = meta["path"].removeprefix(f"{folder}/") if folder else meta["path"]
    modified = meta["last_modified"].timestamp()
    version = (meta["e_tag"] or str(modified)).strip('"')
    return Entry(name, meta["size"], modified, version=version)
