"""Where a training stands, beside its weights; and arrays as files.

`checkpoints.py` writes and reads it, together with the weights. It is the same on every worker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from pipeline_ops.artifacts.results import Epoch
from pipeline_ops.storage.atomic import whole_file

Arrays = list[np.ndarray]


class Diverged(BaseModel):
    """A step that did harm. `loss` is text, because JSON has no word for what is no number."""

    step: int
    loss: str
    is_skipped: bool


class TrainingState(BaseModel):
    """What the loop remembers beside weights and optimizer. It is the same on every worker.

    `epoch_sums` are those of the running epoch; `patience` counts, by callback, the epochs without improvement.
    """

    model_config = ConfigDict(ser_json_inf_nan="strings")

    step: int = 0
    epoch_sums: list[float] = []
    learning_rate: float
    history: list[Epoch] = []
    best: dict[str, float] = {}
    patience: dict[str, int] = {}
    best_epoch: int = -1
    stopped_early: bool = False
    divergences: list[Diverged] = []
    memory: dict[str, dict[str, Any]] = {}
    """What the user's own callbacks remember, by callback."""
    warnings: list[str] = []
    """What a person should hear of at the end: a checkpoint that was damaged, a batch that was left out."""

    @property
    def skipped(self) -> set[int]:
        """Steps whose batches are left out."""
        return {diverged.step for diverged in self.divergences if diverged.is_skipped}


def read_arrays(path: Path) -> Arrays:
    """Weights as `write_arrays` wrote them."""
    with open(path, "rb") as file, np.load(file) as stored:  # opened here, because numpy leaves a damaged file open
        return [stored[name] for name in sorted(stored.files) if name.startswith("w")]


def write_arrays(path: Path, arrays: Sequence[np.ndarray]) -> None:
    write_named(path, name_arrays("w", arrays))


def name_arrays(letter: str, arrays: Iterable[np.ndarray]) -> dict[str, np.ndarray]:
    """Names whose order as text is that of the arrays."""
    return {f"{letter}{i:04d}": array for i, array in enumerate(arrays)}


def write_named(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """One .npz, written to the disk as it is packed: it is never in memory a second time."""
    with whole_file(path) as file:
        np.savez(file, **arrays)


def digest_of_weights(weights: Sequence[np.ndarray]) -> str:
    """32 hex digits over shapes, types and bytes, in order."""
    digest = hashlib.blake2b(digest_size=16)
    for array in weights:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return digest.hexdigest()
