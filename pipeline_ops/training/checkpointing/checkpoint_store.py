"""Copies of checkpoints in the store, for a host that lacks them or has lost its disk.

They exist if the storage root is a bucket. Each is a small manifest, which is written last, and the
files that it lists:

    checkpoint-00000003-000000200.json    token and step, and the files with their checksums
    00000003/<sha-256>.npz                a file, below the token of the job's lease

The newest one is that of the highest token and, among these, of the highest step. So a launcher
that was paused, and goes on after another one has taken over, cannot decide where a later gang
resumes. Such a launcher removes only what its own token, or an earlier one, has left.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from pipeline_ops.errors import DataError
from pipeline_ops.storage.atomic import link_file
from pipeline_ops.storage.checksums import Checksums, compute_checksums
from pipeline_ops.storage.parsing import parse_json_as
from pipeline_ops.storage.staging import remove_own_folder
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.locks import exclusive_lock

_STEM = re.compile(r"checkpoint-(?:([0-9]{8})-)?([0-9]{9})")
_OBJECT = re.compile(r"([0-9]{8})/[0-9a-f]{64}\.npz")
_MAX_STEPS = 10**9
_LOCK_SECONDS = 3600.0
_UPLOADS = ".uploads"
_FileName = Annotated[str, Field(pattern=r"^(checkpoint-[0-9-]{9,18}|best-[0-9]{5})\.npz$")]


class CheckpointId(NamedTuple):
    """A checkpoint: the token of the lease under which it was made, and its step.

    The token is 0 if the storage root is a folder.
    """

    token: int
    step: int

    @classmethod
    def parse(cls, stem: str) -> CheckpointId | None:
        """Parses the name of a file without its ending. Returns None for another file."""
        match = _STEM.fullmatch(stem)
        return cls(int(match[1] or 0), int(match[2])) if match else None

    @classmethod
    def from_number(cls, number: int) -> CheckpointId:
        return cls(*divmod(number, _MAX_STEPS))

    @property
    def number(self) -> int:
        """A number for each checkpoint, in their order."""
        return self.token * _MAX_STEPS + self.step

    @property
    def stem(self) -> str:
        token = f"{self.token:08d}-" if self.token else ""
        return f"checkpoint-{token}{self.step:09d}"


class CheckpointManifest(BaseModel):
    """A checkpoint in the store: its files, by their names on a host, with their checksums."""

    model_config = ConfigDict(frozen=True)

    token: int = Field(ge=0)
    step: int = Field(ge=0)
    files: dict[_FileName, Checksums]


class CheckpointStore:
    """The checkpoints of one artifact in the store.

    `folder` is the work folder of the artifact, `token` that of the job's lease.
    """

    def __init__(self, folder: StorePath, token: int, keep: int = 2):
        self.folder, self.token, self._keep = folder, token, keep
        self._known: dict[CheckpointId, CheckpointManifest] = {}
        self._uploaded: set[str] = set()

    def list_ids(self) -> list[CheckpointId]:
        """The complete checkpoints. Makes one request."""
        return _parse_ids(entry.name for entry in self.folder.list_folder())

    def download(self, checkpoint: CheckpointId, target: Path) -> None:
        """Brings the files of a checkpoint into a folder. Files that are there already stay.

        The first of a host's workers does it, and the others wait.

        Raises:
          FileNotFoundError: The checkpoint, or one of its files, is not in the store.
          DataError: Its manifest or one of its files is damaged.
          MachineError: The store or the disk failed.
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

        Args:
          files: Its files on this host, by the names that they get on another one.

        Raises:
          MachineError: The store failed. The checkpoints before are still there.
          ConfigError: The store refuses the files.
        """
        checkpoint = CheckpointId(self.token, step)
        checksums = {name: _compute_checksums(file) for name, file in files.items()}
        for name, found in checksums.items():
            key = _name_object(self.token, found)
            if key not in self._uploaded:
                (self.folder / key).upload(files[name])
                self._uploaded.add(key)
        manifest = CheckpointManifest(token=self.token, step=step, files=checksums)
        self._get_path(checkpoint).write(manifest.model_dump_json().encode())
        self._known[checkpoint] = manifest
        self._remove_replaced(checkpoint)

    def _remove_replaced(self, newest: CheckpointId) -> None:
        """Removes older checkpoints, then the files that belong to none.

        A checkpoint of a later step is damaged, or the training has left it by a rollback.
        """
        names = [entry.name for entry in self.folder.walk()]
        found = [each for each in _parse_ids(names) if each.token <= self.token]
        abandoned = {each for each in found if each > newest or each.step > newest.step}
        kept = sorted(set(found) - abandoned, reverse=True)[: self._keep]
        for checkpoint in set(found) - set(kept):
            self._get_path(checkpoint).remove()
            self._known.pop(checkpoint, None)
        used = {
            _name_object(checkpoint.token, checksums)
            for checkpoint in kept
            for checksums in self._list_files(checkpoint)
        }
        for name in names:
            match = _OBJECT.fullmatch(name)
            if match and int(match[1]) <= self.token and name not in used:
                (self.folder / name).remove()
                self._uploaded.discard(name)

    def _list_files(self, checkpoint: CheckpointId) -> Iterable[Checksums]:
        """The files of a checkpoint; none if its manifest is damaged or gone."""
        try:
            return self._read_manifest(checkpoint).files.values()
        except (FileNotFoundError, DataError):
            return ()

    def _read_manifest(self, checkpoint: CheckpointId) -> CheckpointManifest:
        if checkpoint.token == self.token and checkpoint in self._known:
            return self._known[checkpoint]
        path = self._get_path(checkpoint)
        manifest = parse_json_as(CheckpointManifest, path.read(), path)
        if (manifest.token, manifest.step) != checkpoint:
            raise DataError(f"{path} describes the step {manifest.step} of {manifest.token}")
        return manifest

    def _get_path(self, checkpoint: CheckpointId) -> StorePath:
        return self.folder / f"{checkpoint.stem}.json"


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


class UploadThread:
    """The thread that copies the chief's checkpoints to the store. Training never waits for it.

    If uploads are slower than checkpoints, the newest checkpoint is next, and those between are
    left out. A failed upload is a warning: the next checkpoint is another chance.
    """

    def __init__(self, store: CheckpointStore, folder: Path, warn: Callable[[str], None]):
        self._store, self._folder, self._warn = store, folder / _UPLOADS, warn
        self._changed = threading.Condition()
        self._next: tuple[int, int] | None = None
        """The number and the step of the checkpoint to upload next."""
        self._num_submitted = self._last_stored = 0
        self._is_busy = False
        self._thread: threading.Thread | None = None

    def submit(self, step: int, files: Iterable[Path]) -> None:
        """Takes a checkpoint, and links its files, because they are removed in the meantime."""
        with self._changed, self._warn_on_failure(f"the checkpoint of step {step} was not stored"):
            self._num_submitted += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="upload", daemon=True)
                self._thread.start()
                remove_own_folder(self._folder)
            self._link(files, self._get_links(self._num_submitted))
            if self._next is not None:
                remove_own_folder(self._get_links(self._next[0]))
            self._next = self._num_submitted, step
            self._changed.notify_all()

    def wait(self, timeout_seconds: float) -> bool:
        """Waits until everything is in the store or has failed.

        Returns:
          Whether the newest checkpoint is in the store.
        """
        with self._changed:
            is_idle = self._changed.wait_for(
                lambda: self._next is None and not self._is_busy, timeout_seconds
            )
            return is_idle and self._last_stored == self._num_submitted

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                while self._next is None:
                    self._changed.wait()
                (number, step), self._next, self._is_busy = self._next, None, True
            links = self._get_links(number)
            with self._warn_on_failure(f"the checkpoint of step {step} was not stored"):
                self._store.upload(step, {file.name: file for file in links.iterdir()})
                self._last_stored = number
            with self._warn_on_failure(f"{links} was not removed"):
                remove_own_folder(links)

    def _get_links(self, number: int) -> Path:
        """A folder for each checkpoint, so that what one has left does not stop the next one."""
        return self._folder / str(number)

    def _link(self, files: Iterable[Path], links: Path) -> None:
        """Links files into a new folder. After an error, nothing of it is left."""
        with contextlib.ExitStack() as stack:
            links.mkdir(parents=True)
            stack.callback(remove_own_folder, links)
            for file in files:
                link_file(file, links / file.name)
            stack.pop_all()

    @contextlib.contextmanager
    def _warn_on_failure(self, failure: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._warn(f"{failure}: {error}")
