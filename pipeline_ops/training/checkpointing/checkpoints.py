"""Checkpoints: copied on the training thread, written by a background thread.

A checkpoint is one file with the model's weights, the optimizer's variables and the state of the
loop. It does not depend on the number of workers, so a gang of any size can resume from it. The
chief alone writes it, under a temporary name, and then renames it. A damaged file is skipped with a
warning, and the previous one is used.

Training waits for the copy, and for the previous file if that is still being written. The next call
here raises an error of the background thread.

    checkpoint-000000200.npz   w0000.. weights, o0000.. optimizer, state
    best-00003.npz             the weights of an epoch that was the best when it ended
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from pipeline_ops.errors import MachineError
from pipeline_ops.training.checkpointing.state import (
    Arrays,
    TrainingState,
    digest_of_weights,
    name_arrays,
    read_arrays,
    write_arrays,
    write_named,
)

_STATE_KEY = "state"
_POLL_SECONDS = 0.05


@dataclasses.dataclass(frozen=True)
class Restored:
    """The contents of a checkpoint, and a digest of all of it.

    `best` holds the weights of the state's best epoch. It is None before the first best epoch.
    """

    state: TrainingState
    weights: Arrays
    optimizer: Arrays
    best: Arrays | None
    digest: str


class Checkpoints:
    """The checkpoints in a folder, by step.

    Args:
      folder: The folder of the checkpoints. Only this class writes into it.
      keep: The number of newest checkpoints to keep, with the best weights that they refer to.
      keep_best: The minimum number of best weights to keep.
    """

    def __init__(self, folder: Path, keep: int = 2, keep_best: int = 1):
        self.folder, self._keep, self._keep_best = folder, keep, max(keep, keep_best)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
        self._writing: concurrent.futures.Future = concurrent.futures.Future()
        self._writing.set_result(None)
        self._weights, self._optimizer = Buffers(), Buffers()
        self.blocked_seconds: list[float] = []
        """The time that training waited for each save."""

    def save(
        self,
        state: TrainingState,
        weights: Sequence,
        optimizer: Sequence,
        best: Arrays | None = None,
    ) -> None:
        """Copies the given values and returns. A background thread writes the copy.

        Args:
          state: The state. It is copied, too.
          weights: Arrays or eager tensors.
          optimizer: Arrays or eager tensors.
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
        self._writing = self._thread.submit(self._write, state.step, arrays, state.best_epoch, best)
        self.blocked_seconds.append(time.perf_counter() - begin)

    def wait(self) -> None:
        """Waits until the last save is on the disk. Raises MachineError if it cannot be written."""
        self._writing.result()

    def raise_failure(self) -> None:
        """Raises the error of the last save if it is known already. Does not wait."""
        if self._writing.done():
            self._writing.result()

    def restore(self, warn: Callable[[str], None], at_most: int | None = None) -> Restored | None:
        """Returns the newest undamaged checkpoint, or None if there is none.

        Args:
          warn: Called with a message for each damaged checkpoint.
          at_most: The latest step to consider.
        """
        for file in self._newest_first():
            if at_most is not None and file.stem > _stem(at_most):
                continue
            try:
                return self._read(file)
            except Exception as error:
                # A damaged file can raise almost anything: BadZipFile, zlib.error, RuntimeError ...
                warn(
                    f"the checkpoint {file} is damaged ({type(error).__name__}: {error}); "
                    "going back to the one before it"
                )
        return None

    def wait_for(self, step: int, timeout_seconds: float) -> None:
        """Waits until the checkpoint of a step is readable. Raises MachineError after the timeout.

        Another worker may still be writing it.
        """
        file, deadline = self.folder / f"{_stem(step)}.npz", time.monotonic() + timeout_seconds
        while not file.exists():
            if time.monotonic() > deadline:
                raise MachineError(
                    f"{file} was not there after {timeout_seconds:.0f} s "
                    "(train.step_timeout_seconds); can this host see that folder?"
                )
            time.sleep(_POLL_SECONDS)

    def remove_leftovers(self) -> None:
        """Removes the temporary files of a killed writer. Called by the chief before any save."""
        for file in self.folder.glob(".*.npz.*.tmp"):
            file.unlink(missing_ok=True)

    def best_file(self, epoch: int) -> Path:
        return self.folder / f"best-{epoch:05d}.npz"

    def _write(
        self, step: int, arrays: dict[str, np.ndarray], best_epoch: int, best: Arrays | None
    ) -> None:
        """Writes the best weights, then the state that refers to them.

        After a restart between the two, the epoch counts as unfinished and runs again.
        """
        for file in self._newest_first():
            if file.stem > _stem(step):  # an abandoned future: damaged, or rolled back
                file.unlink(missing_ok=True)
        if best is not None:
            write_arrays(self.best_file(best_epoch), best)
        write_named(self.folder / f"{_stem(step)}.npz", arrays)
        for old in self._newest_first()[self._keep :]:
            old.unlink(missing_ok=True)
        bests = sorted(
            (
                file
                for file in self.folder.glob("best-*.npz")
                if file.stem <= self.best_file(max(best_epoch, 0)).stem
            ),
            reverse=True,
        )
        for old in bests[self._keep_best :]:
            old.unlink(missing_ok=True)

    def _read(self, file: Path) -> Restored:
        with (
            open(file, "rb") as opened,
            np.load(opened) as stored,
        ):  # opened here, because numpy leaves a damaged file open
            arrays = {
                name: stored[name] for name in stored.files
            }  # reading checks the CRC of each array
        state = TrainingState.model_validate(json.loads(arrays[_STATE_KEY].tobytes()))
        best = read_arrays(self.best_file(state.best_epoch)) if state.best_epoch >= 0 else None
        named = sorted(arrays.items())
        digest = digest_of_weights([array for _, array in named] + (best or []))
        return Restored(
            state,
            [a for name, a in named if name[0] == "w"],
            [a for name, a in named if name[0] == "o"],
            best,
            digest,
        )

    def _newest_first(self) -> list[Path]:
        return sorted(self.folder.glob("checkpoint-*.npz"), reverse=True)


class Buffers:
    """Reusable memory: the first touch of fresh memory takes twenty times as long as the copy."""

    def __init__(self) -> None:
        self._arrays: Arrays = []

    def copy(self, values: Sequence) -> Arrays:
        """Copies the values into memory that stays valid until the next call.

        Values with the shapes of the last call need no new memory.
        """
        views = [np.asarray(value) for value in values]  # no copy of an eager tensor yet
        if [(a.shape, a.dtype) for a in views] != [(a.shape, a.dtype) for a in self._arrays]:
            self._arrays = [np.empty_like(view) for view in views]
        for buffer, view in zip(self._arrays, views, strict=True):
            np.copyto(buffer, view)
        return self._arrays


def _stem(step: int) -> str:
    return f"checkpoint-{step:09d}"
