"""Checkpoints: copied on the training thread, written by a background thread.

A checkpoint is one file with the model's weights, the optimizer's variables and the state of the
loop. It does not depend on the number of workers, so a gang of any size can resume from it. The
chief alone writes it, under a temporary name, and then renames it. A damaged file is skipped with a
warning, and the previous one is used.

Training waits for the copy, and for the previous file if that is still being written. The next call
here raises an error of the background thread.

    checkpoint-000000200.npz   w0000.. weights, o0000.. optimizer, state
    best-00003.npz             the weights of an epoch that was the best when it ended

With a bucket as storage root, the folder is on the host's own disk, and the names begin with the
token of the job's lease. Another thread copies each checkpoint to the bucket (`UploadThread`).
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline_ops.errors import ConfigError, MachineError
from pipeline_ops.jobs.progress import ProgressWriter
from pipeline_ops.training.checkpointing.checkpoint_store import (
    CheckpointId,
    CheckpointStore,
    UploadThread,
)
from pipeline_ops.training.checkpointing.state import (
    Arrays,
    TrainingState,
    compute_weights_digest,
    name_arrays,
    read_arrays,
    write_arrays,
    write_npz,
)
from pipeline_ops.training.loops.loop import Loop
from pipeline_ops.training.strategy import Gather

_STATE_KEY = "state"
_READY = b"r"
_NO_CHECKPOINT = -1
_MESSAGE_BYTES = 64  # the same number on all workers
_POLL_SECONDS, _STORE_POLL_SECONDS = 0.05, 1.0
_STORE_SECONDS = 20.0
"""The time for the last upload before a worker that was asked to stop is killed."""


@dataclasses.dataclass(frozen=True)
class Restored:
    """The contents of a checkpoint, its name, and a digest of all of it.

    `best` holds the weights of the state's best epoch. It is None before the first best epoch.
    """

    state: TrainingState
    weights: Arrays
    optimizer: Arrays
    best: Arrays | None
    digest: str
    id: CheckpointId


class Checkpoints:
    """The checkpoints in a folder of this host, by token and step.

    Args:
      keep: The number of newest checkpoints to keep, with the best weights that they refer to.
      keep_best: The minimum number of best weights to keep.
      store: The checkpoints in the store. None if the folder is in the store.
      is_exchanged: Whether a gang on several disks exchanges its checkpoints through the store.
        Then only those in the store count, because all workers must read the same ones.
      warn: Called with a message for each failed upload, by another thread.
    """

    def __init__(
        self,
        folder: Path,
        keep: int = 2,
        keep_best: int = 1,
        store: CheckpointStore | None = None,
        is_exchanged: bool = False,
        warn: Callable[[str], None] = lambda message: None,
    ):
        self.folder, self._keep, self._keep_best = folder, keep, max(keep, keep_best)
        self._store, self._is_exchanged = store, is_exchanged
        self._uploads = UploadThread(store, folder, warn) if store else None
        self._executor = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
        self._pending_write: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._pending_write.set_result(None)
        self._weights, self._optimizer = Buffers(), Buffers()
        self._newest_here: CheckpointId | None = None
        """The checkpoint whose copy in the store may be older than the file of this host."""
        self.blocked_seconds: list[float] = []
        """The time that training waited for each save."""

    def save(
        self,
        state: TrainingState,
        weights: Sequence[Any],
        optimizer: Sequence[Any],
        best: Arrays | None = None,
    ) -> None:
        """Copies the given values and returns. A background thread writes the copy.

        Args:
          best: The weights of a new best epoch. They must not change afterwards.

        Raises:
          MachineError: The previous checkpoint could not be written.
        """
        begin = time.perf_counter()
        self.wait()
        text = state.model_dump_json()
        arrays = name_arrays("w", self._weights.copy(weights)) | name_arrays(
            "o", self._optimizer.copy(optimizer)
        )
        arrays[_STATE_KEY] = np.frombuffer(text.encode(), np.uint8)
        self._pending_write = self._executor.submit(
            self._write, self.make_id(state.step), arrays, state.best_epoch, best
        )
        self.blocked_seconds.append(time.perf_counter() - begin)

    def wait(self) -> None:
        """Waits until the last save is on the disk. Raises MachineError if it cannot be written."""
        self._pending_write.result()

    def raise_failure(self) -> None:
        """Raises the error of the last save if it is known already. Does not wait."""
        if self._pending_write.done():
            self._pending_write.result()

    def wait_until_stored(self) -> None:
        """Waits like `wait`, and a while for the upload, before the process is killed."""
        self.wait()
        if self._uploads:
            self._uploads.wait(_STORE_SECONDS)

    def wait_until_exchanged(self, timeout_seconds: float) -> None:
        """Waits until the last save of this worker is in the store, if other hosts read it there.

        Raises MachineError if it was not stored, or not in time.
        """
        if self._uploads and self._is_exchanged and not self._uploads.wait(timeout_seconds):
            raise MachineError(
                f"the last checkpoint in {self.folder} was not stored, or not within "
                f"{timeout_seconds:.0f} s (train.step_timeout_seconds). {self.remedy}"
            )

    def make_id(self, step: int) -> CheckpointId:
        """The name of a checkpoint of this training."""
        return CheckpointId(self._store.token if self._store else 0, step)

    def restore(
        self, warn: Callable[[str], None], at_most: CheckpointId | None = None
    ) -> Restored | None:
        """Returns the newest undamaged checkpoint, or None if there is none.

        One that this host lacks is downloaded first.

        `warn` is called with a message for each damaged checkpoint.

        Raises:
          MachineError: The store cannot be read.
        """
        stored = set(self._store.list_ids()) if self._store else set()
        local = set() if self._is_exchanged else set(self._list_newest_first())
        for checkpoint in sorted(stored | local, reverse=True):
            if at_most is not None and checkpoint > at_most:
                continue
            try:
                if self._store and checkpoint in stored and checkpoint != self._newest_here:
                    self._store.download(checkpoint, self.folder)
                return self._read(checkpoint)
            except (MachineError, ConfigError):
                raise
            except Exception as error:
                if self._is_replaced(checkpoint, stored):
                    return self.restore(warn, at_most)
                # A damaged file can raise almost anything: BadZipFile, zlib.error, RuntimeError ...
                warn(
                    f"the checkpoint {self._get_path(checkpoint)} is damaged "
                    f"({type(error).__name__}: {error}). Using the previous one."
                )
        return None

    def _is_replaced(self, checkpoint: CheckpointId, stored: set[CheckpointId]) -> bool:
        """Returns whether a checkpoint was removed from the store because of a newer one."""
        return bool(
            self._store and checkpoint in stored and checkpoint not in self._store.list_ids()
        )

    def wait_for(self, checkpoint: CheckpointId, timeout_seconds: float) -> None:
        """Waits until a checkpoint is readable. Raises MachineError after the timeout.

        Another worker may still be writing it. If a gang has one disk, the next `restore` takes the
        file there, and not the store's copy, whose upload may be late or have failed.
        """
        self._newest_here = None if self._is_exchanged else checkpoint
        file = self._get_path(checkpoint)
        deadline = time.monotonic() + timeout_seconds
        while not self._is_readable(checkpoint):
            if time.monotonic() > deadline:
                raise MachineError(
                    f"{file} did not appear within {timeout_seconds:.0f} s "
                    f"(train.step_timeout_seconds). {self.remedy}"
                )
            time.sleep(_STORE_POLL_SECONDS if self._is_exchanged else _POLL_SECONDS)

    @property
    def remedy(self) -> str:
        """The end of a message about a checkpoint that only some workers can read."""
        if self._is_exchanged:
            return "The chief's warnings say why it was not stored."
        return "Mount the same folder on all hosts."

    def _is_readable(self, checkpoint: CheckpointId) -> bool:
        if self._store and self._is_exchanged:
            return checkpoint in self._store.list_ids()
        return self._get_path(checkpoint).exists()

    def remove_leftovers(self) -> None:
        """Removes the temporary files of a killed writer. Called by the chief before any save."""
        for file in self.folder.glob(".*.npz.*.tmp"):
            file.unlink(missing_ok=True)

    def get_best_path(self, epoch: int) -> Path:
        return self.folder / f"best-{epoch:05d}.npz"

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
            if other > checkpoint or other.step > checkpoint.step:
                # an abandoned future: damaged, or rolled back
                self._get_path(other).unlink(missing_ok=True)
        file, best_file = self._get_path(checkpoint), self.get_best_path(max(best_epoch, 0))
        if best is not None:
            write_arrays(best_file, best)
        write_npz(file, arrays)
        for old in self._list_newest_first()[self._keep :]:
            self._get_path(old).unlink(missing_ok=True)
        best_files = [old for old in self.folder.glob("best-*.npz") if old.stem <= best_file.stem]
        for old_best in sorted(best_files, reverse=True)[self._keep_best :]:
            old_best.unlink(missing_ok=True)
        if self._uploads:
            self._uploads.submit(checkpoint.step, [file] if best_epoch < 0 else [file, best_file])

    def _read(self, checkpoint: CheckpointId) -> Restored:
        # Opened here, because numpy leaves a damaged file open. Reading checks each array's CRC.
        with open(self._get_path(checkpoint), "rb") as opened, np.load(opened) as stored:
            arrays = {name: stored[name] for name in stored.files}
        state = TrainingState.model_validate(json.loads(arrays[_STATE_KEY].tobytes()))
        best = read_arrays(self.get_best_path(state.best_epoch)) if state.best_epoch >= 0 else None
        names = sorted(arrays)
        digest = compute_weights_digest([arrays[name] for name in names] + (best or []))
        weights, optimizer = (
            [arrays[name] for name in names if name[0] == letter] for letter in "wo"
        )
        return Restored(state, weights, optimizer, best, digest, checkpoint)

    def _get_path(self, checkpoint: CheckpointId) -> Path:
        return self.folder / f"{checkpoint.stem}.npz"

    def _list_newest_first(self) -> list[CheckpointId]:
        ids = (CheckpointId.parse(file.stem) for file in self.folder.glob("checkpoint-*.npz"))
        return sorted(filter(None, ids), reverse=True)


class Buffers:
    """Reusable memory: the first touch of fresh memory takes twenty times as long as the copy."""

    def __init__(self) -> None:
        self._arrays: Arrays = []

    def copy(self, values: Sequence[Any]) -> Arrays:
        """Copies the values into memory that stays valid until the next call.

        Values with the shapes of the last call need no new memory.
        """
        views = [np.asarray(value) for value in values]  # does not copy an eager tensor
        if [(a.shape, a.dtype) for a in views] != [(a.shape, a.dtype) for a in self._arrays]:
            self._arrays = [np.empty_like(view) for view in views]
        for buffer, view in zip(self._arrays, views, strict=True):
            np.copyto(buffer, view)
        return self._arrays


class CheckpointManager:
    """Saves and restores weights, optimizer and state.

    All workers call its methods in the same order. The chief alone writes.

    Args:
      initialize: Sets the loop's weights for a new training, and returns its state.

    Attributes:
      best: The weights of the best epoch so far.
    """

    best: Arrays

    def __init__(
        self,
        files: Checkpoints,
        loop: Loop,
        gather: Gather,
        is_chief: bool,
        progress: ProgressWriter,
        initialize: Callable[[], TrainingState],
    ):
        self.files, self._loop, self._gather, self._is_chief = files, loop, gather, is_chief
        self._progress, self._initialize = progress, initialize
        self._saved = files.make_id(0)

    def restore(self) -> TrainingState:
        """Restores the newest checkpoint that all workers can read, or begins a new training."""
        if self._is_chief:
            self.files.remove_leftovers()
        warnings: list[str] = []
        restored = restore_common_checkpoint(self.files, self._gather, warnings.append)
        for warning in warnings:
            self._progress.report("warning", message=warning)
        if restored is None:
            state = self._initialize()
            self.best = self._loop.get_best_weights()
        else:
            state, self._saved = restored.state, restored.id
            self._loop.assign(restored.weights, restored.optimizer)
            self.best = restored.weights if restored.best is None else restored.best
            self._progress.report(
                "restored", state.step, unit="steps", message=f"resumes from step {state.step}"
            )
        state.warnings += warnings
        return state

    def roll_back(self, timeout_seconds: float) -> TrainingState:
        """Restores the last saved checkpoint, which the chief may still be writing or storing.

        An earlier copy of the same step lacks the decision after the last divergence. Therefore no
        worker restores before the chief has replaced it.
        """
        self.files.wait()
        self.files.wait_until_exchanged(timeout_seconds)
        self._gather(_READY)
        self.files.wait_for(self._saved, timeout_seconds)
        return self.restore()

    def save(self, state: TrainingState, best: Arrays | None = None) -> None:
        """Saves the loop and its state.

        Args:
          best: The weights of the epoch that just ended, if it is the best one.
        """
        if best is not None:
            self.best = best
        # All workers read, because reading is an exchange between them for some variables.
        weights, optimizer_values = self._loop.get_views()
        if self._is_chief:
            self.files.save(state, weights, optimizer_values, best)
        self._saved = self.files.make_id(state.step)


def restore_common_checkpoint(
    checkpoints: Checkpoints, gather: Gather, warn: Callable[[str], None]
) -> Restored | None:
    """Returns the newest checkpoint that all workers can read, or None if no worker finds one.

    Workers that resumed with different weights would train nonsense without an error. A file that
    is complete for one of them may be damaged or missing for another: a bad disk under a cache, or
    a share with an older state. So they exchange name and digest of what they read, and go back
    together.

    All workers call it at the same time. `warn` is called for each checkpoint that is damaged
    here or unreadable for other workers.

    Raises:
      MachineError: Only some workers find a checkpoint, or its contents differ between workers.
    """
    at_most = None
    while True:
        restored = checkpoints.restore(warn, at_most)
        number, digest = (restored.id.number, restored.digest) if restored else (_NO_CHECKPOINT, "")
        messages = gather(f"{number:019d} {digest}".ljust(_MESSAGE_BYTES).encode())
        if len(set(messages)) == 1:
            return restored
        answers = [message.decode().partition(" ") for message in messages]
        numbers = [int(number) for number, _, _ in answers]
        oldest, newest = min(numbers), CheckpointId.from_number(max(numbers))
        behind = _format_workers([each for each, number in enumerate(numbers) if number == oldest])
        if oldest == _NO_CHECKPOINT:
            raise MachineError(
                f"{behind} cannot read any checkpoint in {checkpoints.folder}, but other workers "
                f"read the one of step {newest.step}. {checkpoints.remedy}"
            )
        at_most = CheckpointId.from_number(oldest)
        if at_most == newest:
            raise MachineError(
                f"the checkpoint of step {newest.step} in {checkpoints.folder} is not the same for "
                f"all workers ({', '.join(digest[:8] for _, _, digest in answers)}). "
                f"{checkpoints.remedy}"
            )
        warn(
            f"{behind} cannot read a checkpoint in {checkpoints.folder} that is newer than step "
            f"{at_most.step}, but other workers read the one of step {newest.step}. All workers "
            f"resume from step {at_most.step}."
        )


def _format_workers(workers: list[int]) -> str:
    more = f" and {len(workers) - 5} more" if len(workers) > 5 else ""
    return f"worker{'s' if len(workers) > 1 else ''} {', '.join(map(str, workers[:5]))}{more}"
