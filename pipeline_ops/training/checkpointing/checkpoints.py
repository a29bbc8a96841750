"""Checkpoints: copied on the training's own thread, written by another.

A checkpoint is one file: the model's weights, the optimizer's variables, and everything that the loop itself
remembers. It does not know how many workers there were, so a gang of any size goes on from it. It is written by the
chief alone, under a temporary name and renamed; a file that does not read back is passed over for the one before, and
a person is told.

A training waits for the copy alone, and for the file before only if that is still being written. What goes wrong in the
writing thread is raised by the next call here.

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
from pipeline_ops.training.checkpointing.state import Arrays, TrainingState, digest_of_weights, name_arrays, read_arrays, write_arrays, write_named

_STATE_KEY = "state"
_POLL_SECONDS = 0.05


@dataclasses.dataclass(frozen=True)
class Restored:
    """What a checkpoint held, and the digest of all that. `best` are the weights of the state's best epoch; None where there is none yet."""

    state: TrainingState
    weights: Arrays
    optimizer: Arrays
    best: Arrays | None
    digest: str


class Checkpoints:
    """The checkpoints in a folder, by step.

    Args:
      folder: nothing else writes into it.
      keep: how many of the newest stay; the best weights that they refer to stay with them.
      keep_best: how many of the best weights stay at least.
    """

    def __init__(self, folder: Path, keep: int = 2, keep_best: int = 1):
        self.folder, self._keep, self._keep_best = folder, keep, max(keep, keep_best)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
        self._writing: concurrent.futures.Future = concurrent.futures.Future()
        self._writing.set_result(None)
        self._weights, self._optimizer = Buffers(), Buffers()
        self.blocked_seconds: list[float] = []
        """For every save: how long the training has waited for it."""

    def save(self, state: TrainingState, weights: Sequence, optimizer: Sequence, best: Arrays | None = None) -> None:
        """Copies what is to be saved, and returns; it is written meanwhile.

        Args:
          state: it is copied as well.
          weights: arrays or eager tensors; so are those of the optimizer.
          best: where the state's best epoch is a new one, its weights. Nobody may change them.

        Raises:
          MachineError: the one before could not be written.
        """
        begin = time.perf_counter()
        self.wait()
        text = state.model_dump_json()
        arrays = name_arrays("w", self._weights.copy(weights)) | name_arrays("o", self._optimizer.copy(optimizer))
        arrays[_STATE_KEY] = np.frombuffer(text.encode(), np.uint8)
        self._writing = self._thread.submit(self._write, state.step, arrays, state.best_epoch, best)
        self.blocked_seconds.append(time.perf_counter() - begin)

    def wait(self) -> None:
        """Returns once what was saved last is on the disk. Raises MachineError if it can't be written."""
        self._writing.result()

    def raise_failure(self) -> None:
        """Raises what has gone wrong with the last one, if it is known already. Costs nothing."""
        if self._writing.done():
            self._writing.result()

    def restore(self, warn: Callable[[str], None], at_most: int | None = None) -> Restored | None:
        """The newest one that is whole, or None where there is none.

        Args:
          warn: is told of each that is damaged.
          at_most: newer ones than that of this step are left alone.
        """
        for file in self._newest_first():
            if at_most is not None and file.stem > _stem(at_most):
                continue
            try:
                return self._read(file)
            except Exception as error:  # a damaged file can raise nearly anything: BadZipFile, zlib.error, RuntimeError, KeyError ...
                warn(f"the checkpoint {file} is damaged ({type(error).__name__}: {error}); going back to the one before it")
        return None

    def wait_for(self, step: int, timeout_seconds: float) -> None:
        """Returns once the checkpoint of a step, which another worker may still be writing, can be read. Raises MachineError."""
        file, deadline = self.folder / f"{_stem(step)}.npz", time.monotonic() + timeout_seconds
        while not file.exists():
            if time.monotonic() > deadline:
                raise MachineError(f"{file} was not there after {timeout_seconds:.0f} s (train.step_timeout_seconds); can this host see that folder?")
            time.sleep(_POLL_SECONDS)

    def remove_leftovers(self) -> None:
        """Removes what a killed writer has left. For the chief, before the first save."""
        for file in self.folder.glob(".*.npz.*.tmp"):
            file.unlink(missing_ok=True)

    def best_file(self, epoch: int) -> Path:
        return self.folder / f"best-{epoch:05d}.npz"

    def _write(self, step: int, arrays: dict[str, np.ndarray], best_epoch: int, best: Arrays | None) -> None:
        """The best weights come before the state that refers to them: a restart between the two finds the epoch not done, and does it again."""
        for file in self._newest_first():
            if file.stem > _stem(step):  # a future that was given up: damaged, or rolled back
                file.unlink(missing_ok=True)
        if best is not None:
            write_arrays(self.best_file(best_epoch), best)
        write_named(self.folder / f"{_stem(step)}.npz", arrays)
        for old in self._newest_first()[self._keep:]:
            old.unlink(missing_ok=True)
        bests = sorted((file for file in self.folder.glob("best-*.npz") if file.stem <= self.best_file(max(best_epoch, 0)).stem), reverse=True)
        for old in bests[self._keep_best:]:
            old.unlink(missing_ok=True)

    def _read(self, file: Path) -> Restored:
        with open(file, "rb") as opened, np.load(opened) as stored:  # opened here, because numpy leaves a damaged file open
            arrays = {name: stored[name] for name in stored.files}  # reading checks the CRC of each
        state = TrainingState.model_validate(json.loads(arrays[_STATE_KEY].tobytes()))
        best = read_arrays(self.best_file(state.best_epoch)) if state.best_epoch >= 0 else None
        named = sorted(arrays.items())
        digest = digest_of_weights([array for _, array in named] + (best or []))
        return Restored(state, [a for name, a in named if name[0] == "w"], [a for name, a in named if name[0] == "o"], best, digest)

    def _newest_first(self) -> list[Path]:
        return sorted(self.folder.glob("checkpoint-*.npz"), reverse=True)


class Buffers:
    """Memory that is used again and again: the first touch of fresh memory costs twenty times as much as the copy."""

    def __init__(self) -> None:
        self._arrays: Arrays = []

    def copy(self, values: Sequence) -> Arrays:
        """The values; valid until the next call. What has the shapes of the last call costs no new memory."""
        views = [np.asarray(value) for value in values]  # of an eager tensor: no copy yet
        if [(a.shape, a.dtype) for a in views] != [(a.shape, a.dtype) for a in self._arrays]:
            self._arrays = [np.empty_like(view) for view in views]
        for buffer, view in zip(self._arrays, views, strict=True):
            np.copyto(buffer, view)
        return self._arrays


def _stem(step: int) -> str:
    return f"checkpoint-{step:09d}"

