"""Checkpoints: copied on the training thread, written by a background thread.

A checkpoint is one file with the model's weights, the optimizer's variables and the state of the
loop. It does not depend on the number of workers, so a gang of any size can resume from it. The
chief alone writes it, under a temporary name, and then renames it. A damaged file is skipped with a
warning, and the previous one is used.

Training waits for the copy, and for the previous file if that is still being written. The next call
here raises an error of the background thread.

    checkpoint-000000200.npz   w0000.. weights, o0000.. optimizer, their paths, state
    best-00003.npz             the weights of an epoch that was the best when it ended

With a bucket as storage root, the folder is on the host's own disk, and the names begin with the
token of the job's lease. Another thread copies each checkpoint to the bucket, for a host that lacks
it or has lost its disk. Training never waits for it. A failed copy is a warning, because the next
checkpoint is another chance. A copy is a small manifest, which is written last, and the files that
it lists:

    checkpoint-00000003-000000200.json    token and step, and the files with their checksums
    00000003/<sha-256>.npz                a file, below the token of the job's lease

The newest one is that of the highest token and, among these, of the highest step. So a launcher
that was paused, and goes on after another one has taken over, cannot decide where a later gang
resumes. Such a launcher removes only checkpoints of its own token, or of an earlier one.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import math
import os
import re
import tempfile
import time
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field, TypeAdapter

from pipeline_ops.artifacts.results import Epoch
from pipeline_ops.errors import ConfigError, DataError, MachineError
from pipeline_ops.raw_data.limits import check_expansion
from pipeline_ops.storage.checksums import Checksums, compute_checksums, compute_digest
from pipeline_ops.storage.local_files import link_file, open_new_below, remove_own_folder
from pipeline_ops.storage.parsing import JsonModel, parse_json_as
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.locks import exclusive_lock

_STEM = re.compile(r"checkpoint-(?:([0-9]{8})-)?([0-9]{9})")
_OBJECT = re.compile(r"([0-9]{8})/[0-9a-f]{64}\.npz")
_LOCK_SECONDS = 3600.0
_FileName = Annotated[str, Field(pattern=r"^(checkpoint-[0-9-]{9,18}|best-[0-9]{5,9})\.npz$")]
_STATE_KEY, _PATHS_KEY = "state", "paths"
_MAX_PATHS, _MAX_PATH_BYTES = 8, 100
"""The most paths that a message lists, and the end of a path that workers exchange."""
_LINKS = ".upload-"
"""Prefix of the folders with links to the files of an upload."""
_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_READY = b"r"
_POLL_SECONDS = 0.05
_STORE_SECONDS = 20.0
"""The time for the last upload before a worker that was asked to stop is killed."""
_SHARE_SECONDS = 120.0
"""Twice the time for which NFS caches the content of a folder (`acdirmax`)."""
Arrays = list[np.ndarray]
Gather = Callable[[bytes], list[bytes]]
"""Sends a message of this worker to all workers, and returns the messages of all, by worker.

A message has at most 128 bytes, without blanks at its end.
"""


class Paths(NamedTuple):
    """The paths of a loop's weights and of its optimizer's variables, in the order of the arrays.

    A file has them beside its arrays, because another process may make the layers in another order.
    Empty in a file of others.
    """

    weights: list[str] = []
    optimizer: list[str] = []


_PATHS, _NO_PATHS = TypeAdapter(Paths), Paths()


class DivergedStep(JsonModel):
    """A step that diverged. `loss` is text, because JSON has no NaN."""

    step: int
    loss: str
    is_skipped: bool


class EpochSums(NamedTuple):
    """The `BatchSums` of the running epoch, without metrics before its first step."""

    loss: float = 0.0
    metrics: list[float] = []
    count: Any = 0.0


class TrainingState(JsonModel):
    """The state of the loop besides weights and optimizer. It is the same on every worker."""

    step: int = 0
    epoch_sums: EpochSums = EpochSums()
    learning_rate: float
    new_weights: list[str] = []
    """The paths of the weights that the warm start has not set. Only they learn in the first
    `train.freeze_epochs` epochs."""
    history: list[Epoch] = []
    best: dict[str, float] = {}
    patience: dict[str, int] = {}
    """The number of epochs without improvement, by callback."""
    best_epoch: int = -1
    stopped_early: bool = False
    divergences: list[DivergedStep] = []
    callbacks: list[list[dict[str, Any]]] = []
    """What each callback of each entry of `train.callbacks` remembers."""
    warnings: list[str] = []
    """Warnings to show at the end, such as a damaged checkpoint or a skipped batch."""

    @property
    def skipped(self) -> set[int]:
        """Steps whose batches are skipped."""
        return {diverged.step for diverged in self.divergences if diverged.is_skipped}


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
    """Whether a gang on several disks shares its checkpoints through the store. Then only those in
    the store count, because all workers must read the same ones.
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
        error, the checkpoints before are still there.
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


@dataclasses.dataclass(frozen=True)
class Restored:
    """The contents of a checkpoint, and a digest of all of it."""

    state: TrainingState
    weights: Arrays
    optimizer: Arrays
    best: Arrays | None
    """The weights of the state's best epoch, or None before the first one."""
    digest: str
    id: CheckpointId


KEEP = 2
"""If the newest checkpoint is damaged, training goes on from the one before it."""


class Checkpoints:
    """The checkpoints in a folder of this host, by token and step.

    All workers call `save`, `roll_back` and `restore_common` in the same order. Only the chief
    writes. It keeps the `keep` newest with the best weights that they refer to. `store` is None if
    the folder itself is in the store. `warn` is called with a message for each failed upload, by
    another thread. Arrays are given and returned in the order of `paths`.
    """

    def __init__(
        self,
        folder: Path,
        keep: int = KEEP,
        store: CheckpointStore | None = None,
        warn: Callable[[str], None] = lambda message: None,
        gather: Gather = lambda message: [message],
        is_chief: bool = True,
        paths: Paths = _NO_PATHS,
    ):
        self.folder, self._keep, self._paths = folder, keep, paths
        self.store, self._warn, self._gather, self._is_chief = store, warn, gather, is_chief
        self.saved_step, self._is_shared = 0, store is not None and store.is_shared
        self._remedy = "Mount the same folder on all hosts."
        if self._is_shared:
            self._remedy = "The chief's warnings say why it was not stored."
        self._writer = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
        self._written = _make_done(None)
        self._uploader = concurrent.futures.ThreadPoolExecutor(1, "upload")
        self._uploaded, self._links = _make_done(True), contextlib.ExitStack()
        self._weights, self._optimizer = Buffers(), Buffers()
        if is_chief:  # removes what a killed writer has left
            for file in folder.glob(".*.npz.*.tmp"):
                file.unlink(missing_ok=True)
            for links in folder.glob(f"{_LINKS}*"):
                remove_own_folder(links)

    def save(
        self,
        state: TrainingState,
        weights: Sequence[Any],
        optimizer: Sequence[Any],
        best: Arrays | None = None,
    ) -> None:
        """Copies the given values and returns. A background thread writes the copy.

        `best` has the weights of a new best epoch, which must not change afterwards. Raises
        MachineError if the previous checkpoint could not be written.
        """
        self.saved_step = state.step
        if not self._is_chief:
            return
        self.wait()
        arrays = name_arrays("w", self._weights.copy(weights))
        arrays |= name_arrays("o", self._optimizer.copy(optimizer))
        arrays[_STATE_KEY] = np.frombuffer(state.model_dump_json().encode(), np.uint8)
        arrays |= pack_paths(self._paths)
        checkpoint = CheckpointId(self.store.token if self.store else 0, state.step)
        self._written = self._writer.submit(self._write, checkpoint, arrays, state.best_epoch, best)

    def wait(self) -> None:
        """Waits until the last save is on the disk. Raises MachineError if it cannot be written."""
        self._written.result()

    def raise_failure(self) -> None:
        """Raises the error of the last save if it is known already."""
        if self._written.done():
            self.wait()

    def wait_until_stored(self, timeout_seconds: float = _STORE_SECONDS) -> bool:
        """Waits like `wait`, and then until the last save is in the store or has failed.

        Returns whether it is there. The default timeout is for a process that is killed next.
        """
        self.wait()
        concurrent.futures.wait([self._uploaded], timeout_seconds)
        return self._uploaded.done() and bool(self._uploaded.result())

    def roll_back(self, warn: Callable[[str], None], timeout_seconds: float) -> Restored | None:
        """Restores the last saved checkpoint, which the chief may still be writing or storing.

        An earlier copy of the same step lacks the decision after the last divergence. Therefore no
        worker restores before the chief has replaced it. Raises MachineError if workers on other
        hosts need it from the store, and it was not stored.
        """
        self.wait()
        if self._is_shared and not self.wait_until_stored(timeout_seconds):
            raise MachineError(
                f"the last checkpoint in {self.folder} was not stored, or not within "
                f"{timeout_seconds:.0f} s (train.phase_timeout_seconds). {self._remedy}"
            )
        self._gather(_READY)
        # A share may show a new file late. After the timeout the workers agree on an older one.
        file = self._get_path(CheckpointId(0, self.saved_step))
        deadline = time.monotonic() + min(timeout_seconds, _SHARE_SECONDS)
        while not self.store and not file.exists() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return self.restore_common(warn)

    def restore_common(self, warn: Callable[[str], None]) -> Restored | None:
        """Returns the newest checkpoint that all workers can read, or None if no worker finds one.

        Workers that resumed with different weights would train nonsense without an error. A file
        that is complete for one of them may be damaged or missing for another: a bad disk under a
        cache, or a share with an older state. So they exchange name and digest of the checkpoint,
        and go back together. `warn` is called for each one that is damaged here or unreadable for
        others. Raises MachineError if only some workers find any, or if its contents differ, and
        ConfigError if the workers have built different models.
        """
        self._require_equal_paths()
        at_most = None
        while True:
            restored = self.restore(warn, at_most)
            own = f"{restored.id.stem} {restored.digest}" if restored else ""
            messages = self._gather(own.encode())
            if len(set(messages)) == 1:
                self.saved_step = restored.state.step if restored else 0
                return restored
            found = [message.decode().partition(" ") for message in messages]
            ids = [CheckpointId.parse(name) for name, _, _ in found]
            newest = max(filter(None, ids))
            if None in ids:
                raise MachineError(
                    f"{_format_workers(ids, None)} cannot read any checkpoint in {self.folder}, "
                    f"but other workers read the one of step {newest.step}. {self._remedy}"
                )
            at_most = min(filter(None, ids))
            if at_most == newest:
                digests = ", ".join(digest[:8] for _, _, digest in found)
                raise MachineError(
                    f"the checkpoint of step {newest.step} in {self.folder} is not the same for "
                    f"all workers ({digests}). {self._remedy}"
                )
            warn(
                f"{_format_workers(ids, at_most)} cannot read a checkpoint in {self.folder} that "
                f"is newer than step {at_most.step}, but other workers read the one of step "
                f"{newest.step}. All workers resume from step {at_most.step}."
            )

    def _require_equal_paths(self) -> None:
        """Raises ConfigError if the weights of the workers have other paths or another order."""
        digest = compute_digest(self._paths)
        if len(set(self._gather(digest.encode()))) == 1:
            return
        counts = self._gather(str(len(self._paths.weights)).encode())
        for number in range(min(map(int, counts))):
            path = self._paths.weights[number].encode()[-_MAX_PATH_BYTES:]
            if len(found := set(self._gather(path))) > 1:
                names = " and ".join(sorted(each.decode(errors="replace") for each in found))
                break
        else:
            names = f"{' and '.join(sorted({each.decode() for each in counts}))} weights in all"
        raise ConfigError(
            f"train.model builds different models in the workers of the gang: they have {names} at "
            "the same place. The function must build the same model each time. Do not let its "
            "layers depend on chance, time, the host or the order of a set."
        )

    def restore(
        self, warn: Callable[[str], None], at_most: CheckpointId | None = None
    ) -> Restored | None:
        """Returns this host's newest undamaged checkpoint. Calls `warn` for each damaged one."""
        stored = set(self.store.list_ids()) if self.store else set()
        local = set() if self._is_shared else set(self._list_newest_first())
        for checkpoint in sorted(stored | local, reverse=True):
            if at_most is not None and checkpoint > at_most:
                continue
            try:
                if not self._is_shared:
                    with contextlib.suppress(Exception):
                        return self._read(checkpoint)
                # The store's copy, whose upload may be late or failed. For a gang on several disks
                # it is the only one that all hosts have.
                if self.store and checkpoint in stored:
                    self.store.download(checkpoint, self.folder)
                return self._read(checkpoint)
            except (MachineError, ConfigError):
                raise
            except Exception as error:
                if self.store and checkpoint in stored.difference(self.store.list_ids()):
                    return self.restore(warn, at_most)  # it was removed because of a newer one
                # A damaged file can raise almost anything: BadZipFile, zlib.error, RuntimeError ...
                warn(
                    f"the checkpoint {self._get_path(checkpoint)} is damaged "
                    f"({type(error).__name__}: {error}). Using the previous one."
                )
        return None

    def _write(
        self,
        checkpoint: CheckpointId,
        arrays: dict[str, np.ndarray],
        best_epoch: int,
        best: Arrays | None,
    ) -> None:
        """Writes the best weights, then the state that refers to them.

        After a restart between the two, the epoch counts as unfinished and runs again.
        """
        for other in self._list_newest_first():
            if other > checkpoint or other.step > checkpoint.step:  # damaged, or rolled back
                self._get_path(other).unlink(missing_ok=True)
        file, best_file = self._get_path(checkpoint), self._get_best_path(max(best_epoch, 0))
        if best is not None:
            write_arrays(best_file, best, self._paths.weights)
        write_npz(file, arrays)
        for old in self._list_newest_first()[self._keep :]:
            self._get_path(old).unlink(missing_ok=True)
        files_by_epoch = {int(old.stem[5:]): old for old in self.folder.glob("best-*.npz")}
        best_epochs = sorted(epoch for epoch in files_by_epoch if epoch <= max(best_epoch, 0))
        for old_best in map(files_by_epoch.__getitem__, best_epochs[: -self._keep]):
            old_best.unlink(missing_ok=True)
        if self.store:
            files = [file] if best_epoch < 0 else [file, best_file]
            self._start_upload(self.store, checkpoint.step, files)

    def _start_upload(self, store: CheckpointStore, step: int, files: Iterable[Path]) -> None:
        """Uploads links to the files, because the files are removed in the meantime.

        If uploads are slower than checkpoints, the newest checkpoint is next, and those between are
        left out.
        """
        waiting, self._uploaded = self._uploaded, _make_done(False)
        with self._warn_if_not_stored(step), contextlib.ExitStack() as stack:
            temporary = tempfile.TemporaryDirectory(
                prefix=_LINKS, dir=self.folder, ignore_cleanup_errors=True
            )
            links = Path(stack.enter_context(temporary))
            for file in files:
                link_file(file, links / file.name)
            if waiting.cancel():
                self._links.close()
            self._links = pending = stack.pop_all()

            def upload() -> bool:
                with pending, self._warn_if_not_stored(step):
                    store.upload(step, {file.name: file for file in links.iterdir()})
                    return True
                return False

            self._uploaded = self._uploader.submit(upload)

    @contextlib.contextmanager
    def _warn_if_not_stored(self, step: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._warn(f"the checkpoint of step {step} was not stored: {error}")

    def _read(self, checkpoint: CheckpointId) -> Restored:
        file, best = self._get_path(checkpoint), None
        arrays = read_npz(file)
        state = TrainingState.model_validate_json(arrays[_STATE_KEY].tobytes())
        if state.best_epoch >= 0:
            best = read_arrays(self._get_best_path(state.best_epoch), self._paths.weights)
        digest = compute_weights_digest([arrays[name] for name in sorted(arrays)] + (best or []))
        stored = unpack_paths(arrays)
        weights = arrange(select_arrays("w", arrays), stored.weights, self._paths.weights, file)
        optimizer = select_arrays("o", arrays)
        optimizer = arrange(optimizer, stored.optimizer, self._paths.optimizer, file)
        return Restored(state, weights, optimizer, best, digest, checkpoint)

    def _get_path(self, checkpoint: CheckpointId) -> Path:
        return self.folder / f"{checkpoint.stem}.npz"

    def _get_best_path(self, epoch: int) -> Path:
        return self.folder / f"best-{epoch:05d}.npz"

    def _list_newest_first(self) -> list[CheckpointId]:
        ids = (CheckpointId.parse(file.stem) for file in self.folder.glob("checkpoint-*.npz"))
        return sorted(filter(None, ids), reverse=True)


def _make_done(result: Any) -> concurrent.futures.Future[Any]:
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    future.set_result(result)
    return future


class Buffers:
    """Reusable memory: the first touch of fresh memory takes twenty times as long as the copy."""

    def __init__(self) -> None:
        self._arrays: Arrays = []

    def copy(self, values: Sequence[Any]) -> Arrays:
        """Copies the values into memory that stays valid until the next call."""
        views = [np.asarray(value) for value in values]  # does not copy an eager tensor
        if [(a.shape, a.dtype) for a in views] != [(a.shape, a.dtype) for a in self._arrays]:
            self._arrays = [np.empty_like(view) for view in views]
        for buffer, view in zip(self._arrays, views, strict=True):
            np.copyto(buffer, view)
        return self._arrays


def _format_workers(ids: Sequence[CheckpointId | None], behind: CheckpointId | None) -> str:
    """Names the workers whose checkpoint is `behind`."""
    workers = [worker for worker, found in enumerate(ids) if found == behind]
    return f"worker{'s' if len(workers) > 1 else ''} {', '.join(map(str, workers))}"


def read_npz(
    path: Path, weight_shapes: Collection[tuple[int, ...]] | None = None
) -> dict[str, np.ndarray]:
    """Reads all arrays of an .npz file, and checks the CRC of each.

    With `weight_shapes`, only weights and their paths are read. Weights of other shapes come as
    zeros that take no memory.

    Raises:
      TooLarge: the arrays would take far more memory than the file has bytes.
      ValueError: a header does not agree with its array.
      zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError: the file is damaged.
    """
    with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        if weight_shapes is not None:
            members = {
                name: member
                for name, member in members.items()
                if name == _PATHS_KEY or (name[:1] == "w" and name[1:].isdecimal())
            }
        num_bytes = sum(member.file_size for member in members.values())
        check_expansion(path, os.fstat(file.fileno()).st_size, num_bytes)
        return {
            name: _restore_type(
                _read_array(archive, member, None if name == _PATHS_KEY else weight_shapes)
            )
            for name, member in members.items()
        }


def _read_array(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, shapes: Collection[tuple[int, ...]] | None
) -> np.ndarray:
    """Reads an array of one of the shapes. Its header is checked first: it decides on memory."""
    with archive.open(member) as stream:
        try:
            shape, _, dtype = _HEADER_READERS[np.lib.format.read_magic(stream)](stream)
        except (MemoryError, OSError, zipfile.BadZipFile):
            raise
        except Exception as error:  # Python's own parser reads it, and raises nearly anything
            text = " ".join(str(error).split())[:_MAX_PATH_BYTES]
            raise ValueError(f"{member.filename} has no header of NumPy ({text})") from None
        num_bytes, declared = member.file_size - stream.tell(), math.prod(shape) * dtype.itemsize
    if declared != num_bytes or any(size < 0 for size in shape):
        raise ValueError(
            f"the header of {member.filename} says {shape} of {dtype}, {declared} bytes, and there "
            f"are {num_bytes}"
        )
    if shapes is not None and shape not in shapes:
        return np.broadcast_to(np.zeros((), dtype), shape)
    with archive.open(member) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def _restore_type(array: np.ndarray) -> np.ndarray:
    """Returns an array with its type bfloat16, which an .npz file has as two bytes without one."""
    # TensorFlow has taught NumPy the type.
    return array.view(np.dtype("bfloat16")) if array.dtype == np.dtype("V2") else array


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes one .npz file, array by array, without a second copy in memory."""
    with open_new_below(path.parent, path.name) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # taken for `allow_pickle`


def name_arrays(letter: str, arrays: Iterable[np.ndarray]) -> dict[str, np.ndarray]:
    """Names the arrays so that the names sort in the order of the arrays."""
    return {f"{letter}{i:04d}": array for i, array in enumerate(arrays)}


def select_arrays(letter: str, arrays: Mapping[str, np.ndarray]) -> Arrays:
    """Returns the arrays that `name_arrays` named, in order."""
    return [arrays[name] for name in sorted(arrays) if name.startswith(letter)]


def pack_paths(paths: Paths) -> dict[str, np.ndarray]:
    return {_PATHS_KEY: np.frombuffer(json.dumps(paths).encode(), np.uint8)}


def unpack_paths(arrays: Mapping[str, np.ndarray]) -> Paths:
    """Returns the paths in a file of arrays. Raises ValueError if they are no lists of texts."""
    if _PATHS_KEY not in arrays:
        return _NO_PATHS
    return _PATHS.validate_json(arrays[_PATHS_KEY].tobytes())


def arrange(
    arrays: Arrays, stored: Sequence[str], wanted: Sequence[str], location: str | Path
) -> Arrays:
    """Puts arrays with the stored paths into the order of the wanted ones.

    They stay as they are where one of both has no paths. Raises ConfigError if the paths differ.
    """
    if not stored or not wanted or stored == wanted:
        return arrays
    found = dict(zip(stored, arrays, strict=True))
    if found.keys() != set(wanted):
        added, gone = (
            ", ".join(sorted(one - other)[:_MAX_PATHS]) or "none"
            for one, other in ((set(wanted), found.keys()), (found.keys(), set(wanted)))
        )
        raise ConfigError(
            f"{location} has other weights than the model that train.model builds now: the file "
            f"lacks {added}, and the model lacks {gone}. The function must build the same "
            "model each time. Do not let its layers depend on chance, time or the environment."
        )
    return [found[path] for path in wanted]


def number_paths(paths: Iterable[str]) -> list[str]:
    """Makes paths unique: the second one of a name ends in #2."""
    seen = collections.Counter[str]()
    numbered = []
    for path in paths:
        seen[path] += 1
        numbered.append(path if seen[path] == 1 else f"{path}#{seen[path]}")
    return numbered


def read_arrays(path: Path, wanted: Sequence[str] = ()) -> Arrays:
    """Reads weights that `write_arrays` wrote, in the order of the wanted paths.

    Raises ConfigError if the file has other paths.
    """
    arrays = read_npz(path)
    return arrange(select_arrays("w", arrays), unpack_paths(arrays).weights, wanted, path)


def read_named_arrays(
    path: Path, shapes: Collection[tuple[int, ...]]
) -> list[tuple[str, np.ndarray]]:
    """Reads weights with their paths, which are empty in a file of others.

    Those of other shapes come as zeros that take no memory. Raises as `read_npz`.
    """
    arrays = read_npz(path, shapes)
    found = select_arrays("w", arrays)
    return [*zip(unpack_paths(arrays).weights or [""] * len(found), found, strict=True)]


def write_arrays(
    path: Path,
    arrays: Sequence[np.ndarray],
    paths: Sequence[str] = (),
    answers: Sequence[np.ndarray] = (),
) -> None:
    """Writes weights as one .npz file, with the answers of their model, if any are given."""
    content = name_arrays("w", arrays) | pack_paths(Paths([*paths])) | name_arrays("a", answers)
    write_npz(path, content)


def read_answers(path: Path) -> Arrays:
    """Reads the answers beside weights."""
    return select_arrays("a", read_npz(path))


def compute_weights_digest(weights: Sequence[np.ndarray]) -> str:
    """Returns a digest of 32 hex digits over shapes, types and bytes, in order."""
    digest = hashlib.blake2b(digest_size=16)
    for array in weights:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
