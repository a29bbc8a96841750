"""Copies of checkpoints in a bucket, for a host that lacks them or has lost its disk.

A copy is a small manifest, which is written last, and the files that it lists:

    checkpoint-00000003-000000200.json    token and step, and the files with their checksums
    00000003/<sha-256>.npz                a file, below the token of the job's lease

The newest one is that of the highest token and, among these, of the highest step. A launcher that
wakes up after a takeover therefore cannot change where the next gang resumes. Such a launcher
removes only checkpoints of its own token, or of an earlier one.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

from pydantic import Field

from pipeline_ops.errors import DataError
from pipeline_ops.storage.checksums import Checksums, compute_checksums
from pipeline_ops.storage.local_files import link_file, remove_own_folder
from pipeline_ops.storage.parsing import JsonModel, parse_json_as
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.locks import exclusive_lock

_STEM = re.compile(r"checkpoint-(?:([0-9]{8})-)?([0-9]{9})")
_OBJECT = re.compile(r"([0-9]{8})/[0-9a-f]{64}\.npz")
_LOCK_SECONDS = 3600.0
_FileName = Annotated[str, Field(pattern=r"^(checkpoint-[0-9-]{9,18}|best-[0-9]{5,9})\.npz$")]
_LINKS = ".upload-"
"""Prefix of the folders with links to the files of an upload."""
_Result = TypeVar("_Result")


class CheckpointId(NamedTuple):
    """The token of the job's lease, or 0 if the storage root is a folder, and the step."""

    token: int
    step: int

    @classmethod
    def parse(cls, stem: str) -> CheckpointId | None:
        """Parses the name of a file without its ending. Returns None for another file."""
        match = _STEM.fullmatch(stem)
        return cls(int(match[1] or 0), int(match[2])) if match else None

    @property
    def stem(self) -> str:
        token = f"{self.token:08d}-" if self.token else ""
        return f"checkpoint-{token}{self.step:09d}"


class CheckpointManifest(JsonModel):
    """A checkpoint in the store: its files, by their names on a host."""

    files: dict[_FileName, Checksums]


@dataclasses.dataclass(frozen=True)
class CheckpointStore:
    """The checkpoints of one artifact in the store, in the artifact's work folder."""

    folder: StorePath
    token: int
    """The token of the job's lease."""
    keep: int
    """The number of newest checkpoints to keep."""
    is_shared: bool
    """Whether a gang on several disks shares its checkpoints through the store. Then only those
    in the store count, because all workers must read the same ones.
    """

    def list_ids(self) -> list[CheckpointId]:
        """The complete checkpoints. Makes one request.

        Raises DataError for one with a token above that of this job's lease.
        """
        found = _parse_ids(entry.name for entry in self.folder.list_folder())
        for checkpoint in found:
            if checkpoint.token > self.token:
                raise DataError(
                    f"{self._get_path(checkpoint)} has a token above that of this job's lease, "
                    f"{self.token}. Another job has taken over, or the file is not of a training: "
                    "if no other job trains, remove it."
                )
        return found

    def download(self, checkpoint: CheckpointId, target: Path) -> None:
        """Brings the files of a checkpoint into a folder. Files that are there already stay.

        The first of a host's workers does it, and the others wait. Raises FileNotFoundError or
        DataError if the manifest or a file is missing or damaged.
        """
        lock = target / ".download.lock"
        with exclusive_lock(lock, f"the download of {checkpoint.stem}", _LOCK_SECONDS):
            for name, expected in self._read_manifest(checkpoint).files.items():
                file = target / name
                if not (file.exists() and _compute_checksums(file) == expected):
                    source = self.folder / _name_object(checkpoint.token, expected)
                    _download(source, expected, file)

    def upload(self, step: int, files: Mapping[str, Path]) -> None:
        """Stores a checkpoint of this token, and removes those that it replaces.

        `files` are its files on this host, by the names that they get on another one. After an
        error, earlier checkpoints are still there.
        """
        names = {entry.name for entry in self.folder.walk()}
        checksums = {name: _compute_checksums(file) for name, file in files.items()}
        for name, found in checksums.items():
            key = _name_object(self.token, found)
            if key not in names:
                (self.folder / key).upload(files[name])
        manifest = CheckpointManifest(files=checksums)
        checkpoint = CheckpointId(self.token, step)
        self._get_path(checkpoint).write(manifest.model_dump_json().encode())
        self._remove_replaced(checkpoint, names)

    def _remove_replaced(self, newest: CheckpointId, names: Collection[str]) -> None:
        """Removes older checkpoints, then the files that belong to none.

        A checkpoint of a later step is damaged, or the training has left it by a rollback. `names`
        are those in the store before the newest checkpoint.
        """
        found = {newest, *(each for each in _parse_ids(names) if each.token <= self.token)}
        abandoned = {each for each in found if each > newest or each.step > newest.step}
        kept = sorted(found - abandoned, reverse=True)[: self.keep]
        for checkpoint in found - set(kept):
            self._get_path(checkpoint).remove()
        used = set()
        for checkpoint in kept:
            with contextlib.suppress(FileNotFoundError, DataError):  # its manifest is gone, damaged
                files = self._read_manifest(checkpoint).files.values()
                used |= {_name_object(checkpoint.token, checksums) for checksums in files}
        for name in names:
            match = _OBJECT.fullmatch(name)
            if match and int(match[1]) <= self.token and name not in used:
                (self.folder / name).remove()

    def _read_manifest(self, checkpoint: CheckpointId) -> CheckpointManifest:
        path = self._get_path(checkpoint)
        return parse_json_as(CheckpointManifest, path.read(), path)

    def _get_path(self, checkpoint: CheckpointId) -> StorePath:
        return self.folder / f"{checkpoint.stem}.json"


class Uploader:
    """Copies checkpoints to the store in a thread. Training never waits for it.

    A failed copy is a warning, by a call of `warn` from that thread: the next checkpoint is another
    chance. `folder` has the checkpoints of this host.
    """

    def __init__(self, store: CheckpointStore, folder: Path, warn: Callable[[str], None]):
        self._store, self._folder, self._warn = store, folder, warn
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "upload")
        self._uploaded, self._links = make_done(True), contextlib.ExitStack()

    def remove_leftovers(self) -> None:
        """Removes the links of a killed process."""
        for links in self._folder.glob(f"{_LINKS}*"):
            remove_own_folder(links)

    def wait(self, timeout_seconds: float) -> bool:
        """Waits for the last copy. Returns whether it is in the store."""
        concurrent.futures.wait([self._uploaded], timeout_seconds)
        return self._uploaded.done() and self._uploaded.result()

    def start(self, step: int, files: Iterable[Path]) -> None:
        """Uploads hard links, because the files may be removed in the meantime.

        If uploads are slower than checkpoints, the newest checkpoint is next, and those between are
        left out.
        """
        waiting, self._uploaded = self._uploaded, make_done(False)
        with self._warn_if_not_stored(step), contextlib.ExitStack() as stack:
            temporary = tempfile.TemporaryDirectory(
                prefix=_LINKS, dir=self._folder, ignore_cleanup_errors=True
            )
            links = Path(stack.enter_context(temporary))
            for file in files:
                link_file(file, links / file.name)
            if waiting.cancel():
                self._links.close()
            self._links = pending = stack.pop_all()

            def upload() -> bool:
                with pending, self._warn_if_not_stored(step):
                    self._store.upload(step, {file.name: file for file in links.iterdir()})
                    return True
                return False

            self._uploaded = self._thread.submit(upload)

    @contextlib.contextmanager
    def _warn_if_not_stored(self, step: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._warn(f"the checkpoint of step {step} was not stored: {error}")


def _parse_ids(names: Iterable[str]) -> list[CheckpointId]:
    stems = (name.removesuffix(".json") for name in names if name.endswith(".json"))
    return [found for found in map(CheckpointId.parse, stems) if found]


def _name_object(token: int, checksums: Checksums) -> str:
    return f"{token:08d}/{checksums.sha256}.npz"


def _download(source: StorePath, expected: Checksums, file: Path) -> None:
    """Downloads a file under another name, and gives it its own if its content is as expected."""
    temporary = file.with_name(f".{file.name}.download")
    temporary.unlink(missing_ok=True)
    found = source.download(temporary, expected.num_bytes)
    if found != expected:
        temporary.unlink()
        raise DataError(
            f"{source} has {found.num_bytes} bytes with the checksum {found.crc32c}, "
            f"but its manifest lists {expected.num_bytes} with {expected.crc32c}"
        )
    temporary.replace(file)


def _compute_checksums(file: Path) -> Checksums:
    with open(file, "rb") as opened:
        return compute_checksums(opened)


def make_done(result: _Result) -> concurrent.futures.Future[_Result]:
    future: concurrent.futures.Future[_Result] = concurrent.futures.Future()
    future.set_result(result)
    return future
