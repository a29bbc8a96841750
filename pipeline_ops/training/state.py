"""Where a training stands, and the checkpoints that hold it.

A checkpoint is one file: the model's weights, the optimizer's variables, and everything that the loop itself
remembers. It does not know how many workers there were, so a gang of any size goes on from it. It is written by the
chief alone, under a temporary name and renamed; a file that does not read back is passed over for the one before.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from pipeline_ops.contracts.figures import Epoch
from pipeline_ops.contracts.files import write_whole

_KEPT_CHECKPOINTS = 2
_STATE_KEY = "state"

Arrays = list[np.ndarray]


class TrainingState(BaseModel):
    """What the loop remembers beside weights and optimizer. It is the same on every worker.

    `epoch_sums` are those of the running epoch; `patience` counts, by callback, the epochs without improvement.
    """

    step: int = 0
    epoch_sums: list[float] = []
    learning_rate: float
    history: list[Epoch] = []
    best: dict[str, float] = {}
    patience: dict[str, int] = {}
    best_epoch: int = -1
    stopped_early: bool = False


def read_arrays(path: Path) -> Arrays:
    """Weights as `write_arrays` wrote them."""
    with np.load(path) as stored:
        return [stored[name] for name in sorted(stored.files) if name.startswith("w")]


def write_arrays(path: Path, arrays: Sequence[np.ndarray]) -> None:
    write_whole(path, _pack({f"w{i:04d}": array for i, array in enumerate(arrays)}))


def digest_of_weights(weights: Sequence[np.ndarray]) -> str:
    """32 hex digits over shapes, types and bytes, in order."""
    digest = hashlib.blake2b(digest_size=16)
    for array in weights:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


class Checkpoints:
    """The checkpoints in a folder, by step."""

    def __init__(self, folder: Path):
        self._folder = folder

    def save(self, state: TrainingState, weights: Arrays, optimizer: Arrays) -> None:
        """Writes one and removes those that are not needed any more."""
        arrays = {f"w{i:04d}": array for i, array in enumerate(weights)} | {f"o{i:04d}": array for i, array in enumerate(optimizer)}
        arrays[_STATE_KEY] = np.frombuffer(state.model_dump_json().encode(), np.uint8)
        write_whole(self._folder / f"checkpoint-{state.step:09d}.npz", _pack(arrays))
        for old in self._files()[_KEPT_CHECKPOINTS:]:
            old.unlink(missing_ok=True)

    def restore(self) -> tuple[TrainingState, Arrays, Arrays] | None:
        """The newest one that is whole, or None where there is none."""
        for file in self._files():
            try:
                return _read(file)
            except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
                print(f"{file} is damaged ({error}); going back to the checkpoint before it", flush=True)
        return None

    def _files(self) -> list[Path]:
        """Newest first."""
        return sorted(self._folder.glob("checkpoint-*.npz"), reverse=True)


def _read(file: Path) -> tuple[TrainingState, Arrays, Arrays]:
    with open(file, "rb") as opened, np.load(opened) as stored:  # opened here, because numpy leaves a damaged file open
        arrays: dict[str, Any] = {name: stored[name] for name in stored.files}  # reading checks the CRC of each
    state = TrainingState.model_validate(json.loads(arrays.pop(_STATE_KEY).tobytes()))
    named = sorted(arrays.items())
    return state, [a for name, a in named if name[0] == "w"], [a for name, a in named if name[0] == "o"]


def _pack(arrays: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()
