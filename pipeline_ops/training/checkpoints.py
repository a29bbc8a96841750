"""Checkpoints: copied on the training thread, written by a background thread.

A checkpoint is one file with the model's weights, the optimizer's variables and the state of the
loop. It does not depend on the number of workers, so a gang of any size can resume from it. The
chief alone writes it, under a temporary name, and then renames it. A damaged file is skipped with a
warning, and the previous one is used.

Training waits for the copy, and for the previous file if that is still being written. An error in
the background thread is raised by the next call to this class.

    checkpoint-000000200.npz   w0000.. weights, o0000.. optimizer, their paths, state
    best-00003.npz             the weights of an epoch that was the best when it ended

With a bucket as storage root, the folder is on the host's own disk, the names begin with the token
of the job's lease, and each checkpoint is copied to the bucket (`checkpoint_store.py`).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline_ops.errors import ConfigError, MachineError
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.training.checkpoint_store import (
    CheckpointId,
    CheckpointStore,
    Uploader,
    make_done,
)
from pipeline_ops.training.training_state import TrainingState
from pipeline_ops.training.weight_files import (
    NO_PATHS,
    Arrays,
    Paths,
    arrange,
    compute_weights_digest,
    name_arrays,
    pack_paths,
    read_arrays,
    read_npz,
    select_arrays,
    unpack_paths,
    write_arrays,
    write_npz,
)

if TYPE_CHECKING:
    from pipeline_ops.training.strategy import Gather

_STATE_KEY = "state"
_MAX_PATH_BYTES = 100
"""Workers exchange only the end of a path, of this length."""
_READY = b"r"
_POLL_SECONDS = 0.05
_STORE_SECONDS = 20.0
"""The time for the last upload before a worker that was asked to stop is killed."""
_SHARE_SECONDS = 120.0
"""Twice the time for which NFS caches the content of a folder (`acdirmax`)."""


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
        paths: Paths = NO_PATHS,
    ):
        self.folder, self._keep, self._paths = folder, keep, paths
        self.store, self._gather, self._is_chief = store, gather, is_chief
        self.saved_step, self._is_shared = 0, store is not None and store.is_shared
        self._remedy = "Mount the same folder on all hosts."
        if self._is_shared:
            self._remedy = "The chief's warnings say why it was not stored."
        self._writer = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
        self._written = make_done(None)
        self._uploader = Uploader(store, folder, warn) if store else None
        self._weights, self._optimizer = Buffers(), Buffers()
        if is_chief:  # removes the leftovers of a killed writer
            for file in folder.glob(".*.npz.*.tmp"):
                file.unlink(missing_ok=True)
            if self._uploader:
                self._uploader.remove_leftovers()

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
        return not self._uploader or self._uploader.wait(timeout_seconds)

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
        self._check_equal_paths()
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

    def _check_equal_paths(self) -> None:
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
        if self._uploader:
            files = [file] if best_epoch < 0 else [file, best_file]
            self._uploader.start(checkpoint.step, files)

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
