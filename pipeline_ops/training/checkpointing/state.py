"""The state of a training next to its weights, and arrays as files.

`checkpoints.py` writes and reads the state together with the weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from pipeline_ops.artifacts.results import Epoch
from pipeline_ops.storage.atomic import open_atomically

Arrays = list[np.ndarray]


class DivergedStep(BaseModel):
    """A step that diverged. `loss` is text, because JSON has no NaN."""

    step: int
    loss: str
    is_skipped: bool


class EpochSums(NamedTuple):
    """The `BatchSums` of the running epoch, without metrics before its first step."""

    loss: float = 0.0
    metrics: list[float] = []
    count: Any = 0.0


class TrainingState(BaseModel):
    """The state of the loop besides weights and optimizer. It is the same on every worker.

    `patience` counts, by callback, the epochs without improvement.
    """

    model_config = ConfigDict(ser_json_inf_nan="strings")

    step: int = 0
    epoch_sums: EpochSums = EpochSums()
    learning_rate: float
    history: list[Epoch] = []
    best: dict[str, float] = {}
    patience: dict[str, int] = {}
    best_epoch: int = -1
    stopped_early: bool = False
    divergences: list[DivergedStep] = []
    memory: dict[str, dict[str, Any]] = {}
    """The memory of the user's own callbacks, by callback."""
    warnings: list[str] = []
    """Warnings to show at the end, such as a damaged checkpoint or a skipped batch."""

    @property
    def skipped(self) -> set[int]:
        """Steps whose batches are skipped."""
        return {diverged.step for diverged in self.divergences if diverged.is_skipped}


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Reads all arrays of an .npz file, and checks the CRC of each."""
    # Opened here, because numpy leaves a damaged file open.
    with open(path, "rb") as file, np.load(file) as stored:
        return dict(stored)


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes one .npz file, array by array, without a second copy in memory."""
    with open_atomically(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # taken for `allow_pickle`


def name_arrays(letter: str, arrays: Iterable[np.ndarray]) -> dict[str, np.ndarray]:
    """Names the arrays so that the names sort in the order of the arrays."""
    return {f"{letter}{i:04d}": array for i, array in enumerate(arrays)}


def select_arrays(letter: str, arrays: Mapping[str, np.ndarray]) -> Arrays:
    """Returns the arrays that `name_arrays` named, in order."""
    return [arrays[name] for name in sorted(arrays) if name.startswith(letter)]


def read_arrays(path: Path) -> Arrays:
    """Reads weights that `write_arrays` wrote."""
    return select_arrays("w", read_npz(path))


def write_arrays(path: Path, arrays: Sequence[np.ndarray]) -> None:
    """Writes weights as one .npz file."""
    write_npz(path, name_arrays("w", arrays))


def compute_weights_digest(weights: Sequence[np.ndarray]) -> str:
    """Returns a digest of 32 hex digits over shapes, types and bytes, in order."""
    digest = hashlib.blake2b(digest_size=16)
    for array in weights:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
