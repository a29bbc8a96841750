"""A place in a bucket of S3, Google Cloud Storage or Azure, through obstore.

There are no renames and no locks. A put is whole or absent, and a conditional put creates a file
once. Requests are repeated, also through an outage of minutes (`object_requests.py`). obstore takes
credentials from the environment, as the tools of each cloud do.

A file that grows, such as a log, is a folder of segments, each named after the offset of its first
byte. Only the last one changes: it is put again with each addition until it is full. A reader
therefore needs one listing, and one request for each segment that it has not read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import itertools
import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, Self, TypeVar

import obstore
from obstore.store import from_url

from pipeline_ops.errors import MachineError
from pipeline_ops.storage.checksums import Checksums
from pipeline_ops.storage.local_files import (
    UnsafePath,
    parse_relative_path,
    translate_write_errors,
    write_blocks,
)
from pipeline_ops.storage.object_requests import is_empty_range, send_request, translate_errors
from pipeline_ops.storage.request_cache import map_requests, request_once
from pipeline_ops.storage.store_options import StoreOptions
from pipeline_ops.storage.store_path import (
    BLOCK_BYTES,
    MAX_RECORD_BYTES,
    Entry,
    StorePath,
    count_usage,
)

if TYPE_CHECKING:
    from obstore import ObjectMeta

SEGMENT_BYTES = 1 << 18
"""The size beyond which a segment of a file that grows is full."""
_SEGMENT_DIGITS = 16
_PARALLEL_READS = 4
_CONNECTION_SECONDS = 900.0
"""The time after which a connection is read again, because its credentials may have changed."""
_Response = TypeVar("_Response")


@dataclasses.dataclass(frozen=True)
class ObjectPath(StorePath):
    """An object below a root such as `s3://bucket/prefix`, or the objects below a prefix."""

    options: StoreOptions = StoreOptions()

    @property
    def _bucket(self) -> str:
        return "/".join(self.root_uri.split("/", 3)[:3])

    @property
    def _client(self) -> Any:
        """The client of the bucket, which all roots in it share."""
        endpoint = self.options.find_endpoint(self._bucket)
        return open_client(self._bucket, self.options.model_copy(update={"endpoint": endpoint}))

    @property
    def _object(self) -> str:
        """The name of the object in the bucket."""
        return self._join(self.key and parse_relative_path(self.key))

    def _join(self, key: str) -> str:
        prefix = self.root_uri.partition("://")[2].partition("/")[2]
        return "/".join(filter(None, [prefix, key]))

    def read(self, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
        content = request_once(
            ("read", str(self), max_bytes), lambda: b"".join(self._read_from_start(max_bytes))
        )
        if len(content) > max_bytes:
            raise UnsafePath(f"{self} is too large. At most {max_bytes} bytes are allowed.")
        return content

    def open(self, max_bytes: int) -> contextlib.AbstractContextManager[IO[bytes]]:
        return io.BytesIO(self.read(max_bytes))

    def read_range(self, start: int, num_bytes: int) -> bytes:
        parse_relative_path(self.key)
        return self.read_version(start, num_bytes)[0] if num_bytes else b""

    def read_version(self, start: int, num_bytes: int) -> tuple[bytes, Entry | None]:
        """A part of an object, and the entry of the object that was read.

        The key need not be a path of ours. The entry is None if the object ends before the part.
        Raises FileNotFoundError.
        """
        name = self._join(self.key)

        def get() -> tuple[bytes, Entry | None]:
            try:
                options: Any = {"range": (start, start + num_bytes)}
                found = obstore.get(self._client, name, options=options)
                return bytes(found.bytes()), _to_entry(found.meta, name.rpartition("/")[0])
            except obstore.exceptions.GenericError as error:
                if not is_empty_range(error):
                    raise
                return b"", None

        content, entry = self._ask(get)
        count_usage(read=len(content))
        return content, entry

    def read_blocks(self) -> Iterator[bytes]:
        return self._read_from_start(None)

    def _read_from_start(self, max_bytes: int | None) -> Iterator[bytes]:
        """Yields the content, or more than `max_bytes` of it, in parts that are read in parallel.

        The first request asks for a part, too: its answer has the size of the whole file.
        """
        parse_relative_path(self.key)
        content, entry = self.read_version(0, BLOCK_BYTES)
        if entry is None:
            return
        yield content
        size = entry.num_bytes if max_bytes is None else min(entry.num_bytes, max_bytes + 1)
        with ThreadPoolExecutor(_PARALLEL_READS) as pool:  # starts no thread before it is needed
            pending: deque[Future[bytes]] = deque()
            for start in range(BLOCK_BYTES, size, BLOCK_BYTES):
                pending.append(pool.submit(self.read_range, start, BLOCK_BYTES))
                if len(pending) > _PARALLEL_READS:
                    yield pending.popleft().result()
            for response in pending:
                yield response.result()

    def write(self, data: bytes, mode: int = 0o666) -> None:
        self._put(data, "overwrite")

    def create(self, data: bytes) -> None:
        try:
            self._put(data, "create")
        except FileExistsError:
            # It may be this put's own, whose response was lost.
            if not self._has_content(io.BytesIO(data)):
                raise

    def _put(self, data: bytes, mode: Literal["create", "overwrite"]) -> None:
        def put() -> None:
            obstore.put(self._client, self._object, data, mode=mode, use_multipart=False)

        self._ask(put, can_be_missing=False)
        count_usage(written=len(data))

    def upload(self, file: Path) -> None:
        num_bytes = file.stat().st_size
        try:
            self._ask(
                lambda: obstore.put(self._client, self._object, file, max_concurrency=4),
                can_be_missing=False,
            )
        except MachineError as error:  # the response may be lost
            with open(file, "rb") as opened:
                if not self._has_content(opened):
                    raise MachineError(f"{self} was not uploaded: {error}") from error
        count_usage(requests=1 + num_bytes // (5 << 20), written=num_bytes)

    def _has_content(self, file: IO[bytes]) -> bool:
        with contextlib.suppress(FileNotFoundError):
            blocks = self.read_blocks()
            return all(file.read(len(each)) == each for each in blocks) and not file.read(1)
        return False

    @contextlib.contextmanager
    def open_for_writing(self) -> Iterator[IO[bytes]]:
        with tempfile.NamedTemporaryFile(prefix=f"{self.name}-") as temporary:
            with translate_write_errors(Path(tempfile.gettempdir(), self.name)):
                yield temporary
                temporary.flush()
            self.upload(Path(temporary.name))

    def download(self, target: Path, num_bytes: int) -> Checksums:
        blocks = self._read_from_start(num_bytes)
        first = next(blocks, b"")  # now, because a missing file is no problem of the disk
        return write_blocks(itertools.chain([first], blocks), target)

    def stat(self) -> Entry | None:
        return request_once(("stat", str(self)), self._stat)

    def _stat(self) -> Entry | None:
        try:
            meta = self._ask(lambda: obstore.head(self._client, self._object))
        except FileNotFoundError:
            return None
        finally:
            count_usage()
        return _to_entry(meta, self._object.rpartition("/")[0])

    def list_folder(self) -> list[Entry]:
        return request_once(("list", str(self)), self._list_folder)

    def _list_folder(self) -> list[Entry]:
        folder = self._object
        found = self._ask(
            lambda: obstore.list_with_delimiter(self._client, folder or None), can_be_missing=False
        )
        count_usage(requests=1 + len(found["objects"]) // 1000)
        folders = (prefix.rstrip("/").rpartition("/")[2] for prefix in found["common_prefixes"])
        entries = [_to_entry(meta, folder) for meta in found["objects"]]
        entries += [Entry(name, 0, 0.0, is_folder=True) for name in folders]
        return sorted(entries, key=lambda entry: entry.name)

    def walk(self) -> list[Entry]:
        return request_once(("walk", str(self)), self._walk)

    def _walk(self) -> list[Entry]:
        folder = self._object
        found = self._ask(
            lambda: obstore.list(self._client, folder or None, chunk_size=1000).collect(),
            can_be_missing=False,
        )
        count_usage(requests=1 + len(found) // 1000)
        return sorted((_to_entry(meta, folder) for meta in found), key=lambda entry: entry.name)

    def remove(self) -> None:
        self._delete([self._object])

    def remove_tree(self) -> None:
        folder = self._object
        self._delete([f"{folder}/{entry.name}" for entry in self.walk()])

    def _delete(self, objects: list[str]) -> None:
        if not objects:
            return
        try:
            self._ask(lambda: obstore.delete(self._client, objects))
        except FileNotFoundError:  # the first missing one ends the request
            if len(objects) > 1:
                map_requests(lambda each: self._delete([each]), objects)
        count_usage(requests=1 + len(objects) // 1000)

    def open_log(self) -> ObjectLogWriter:
        segments = self._list_segments()
        offset = max(segments, default=0)
        tail = self._to_segment(offset).read_range(0, segments[offset]) if segments else b""
        return ObjectLogWriter(self, offset, tail)

    def read_log(self, offset: int, max_bytes: int) -> bytes:
        return self._read_segments(self._list_segments(), offset, offset + max_bytes)

    def read_log_end(self, num_bytes: int) -> tuple[int, bytes]:
        segments = self._list_segments()
        end = max((start + size for start, size in segments.items()), default=0)
        offset = max(0, end - num_bytes)
        return offset, self._read_segments(segments, offset, end)

    def _read_segments(self, segments: dict[int, int], offset: int, end: int) -> bytes:
        found = []
        for start, num_bytes in sorted(segments.items()):
            begin, stop = max(start, offset), min(start + num_bytes, end)
            if begin < stop:
                found.append(self._to_segment(start).read_range(begin - start, stop - begin))
        return b"".join(found)

    def _list_segments(self) -> dict[int, int]:
        """The size of each segment of a file that grows, by its offset."""
        return {
            int(entry.name): entry.num_bytes
            for entry in self.list_folder()
            if len(entry.name) == _SEGMENT_DIGITS and entry.name.isdecimal()
        }

    def _to_segment(self, offset: int) -> Self:
        return self / f"{offset:0{_SEGMENT_DIGITS}d}"

    def _ask(self, send: Callable[[], _Response], can_be_missing: bool = True) -> _Response:
        endpoint = self.options.find_endpoint(self._bucket)
        at = f" at {endpoint}" if endpoint else ""
        root = f"{self.root_uri}{at}"
        return send_request(send, f"{self._bucket}{at}", str(self), root, can_be_missing)


@dataclasses.dataclass
class ObjectLogWriter:
    """The last segment of a file that grows: its offset, and its content."""

    file: ObjectPath
    offset: int
    segment: bytes

    @property
    def size(self) -> int:
        return self.offset + len(self.segment)

    def append(self, data: bytes) -> None:
        if len(self.segment) >= SEGMENT_BYTES:
            self.offset, self.segment = self.size, b""
        extended = self.segment + data
        self.file._to_segment(self.offset).write(extended)
        self.segment = extended  # only now: after an error, the caller appends the same data again


def _to_entry(meta: ObjectMeta, folder: str) -> Entry:
    name = meta["path"].removeprefix(f"{folder}/") if folder else meta["path"]
    modified = meta["last_modified"].timestamp()
    version = (meta["e_tag"] or str(modified)).strip('"')
    return Entry(name, meta["size"], modified, version=version)


_has_forked = False
_making = threading.Lock()


def open_client(bucket: str, options: StoreOptions) -> Any:
    """The client of a bucket, one for each process.

    Raises RuntimeError in a process that was forked from one with a client, where a request would
    hang for ever, and ConfigError if the options or the credentials cannot be used.
    """
    if _has_forked:
        raise RuntimeError(
            f"{bucket}: a forked process can't use its parent's client. Start a new process."
        )
    period = time.monotonic() // _CONNECTION_SECONDS if options.connection else 0
    with _making:
        return _make_client(bucket, options, period)


@functools.lru_cache(maxsize=64)
def _make_client(bucket: str, options: StoreOptions, _period: float) -> Any:
    with translate_errors(bucket, bucket):
        return from_url(bucket, **options.make_arguments(bucket))


def _forbid_requests() -> None:
    global _has_forked, _making
    _making = threading.Lock()  # another thread of the parent may have held it
    _has_forked = bool(_make_client.cache_info().currsize)


os.register_at_fork(after_in_child=_forbid_requests)
