"""The second process of the check: `python -m pipeline_ops.training.model_twin FOLDER`.

It calls a SavedModel before any module of the author's is imported, then builds the model again and
gives it the same weights. `self_consistency.py` starts it, and compares the answers.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pipeline_ops.input.keras_start  # noqa: F401  (before other imports of Keras)

# isort: split
import numpy as np
import tensorflow as tf

from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.job.model_check import ModelCheckRequest
from pipeline_ops.models import build_model
from pipeline_ops.storage.local_files import translate_write_errors, write_json
from pipeline_ops.training.check import exit_for_machine, use_code
from pipeline_ops.training.self_consistency import (
    ANSWERS,
    IMAGES,
    SAVED,
    VERDICT,
    WEIGHTS,
    LayerMeans,
)
from pipeline_ops.training.weight_files import number_paths, read_arrays


def answer(request: ModelCheckRequest, folder: Path) -> list[list[float]]:
    """Writes the answers of the SavedModel and of the model. Returns the means of its layers.

    Raises ConfigError.
    """
    images = tf.constant(np.load(folder / IMAGES))
    try:
        saved = tf.saved_model.load(str(folder / SAVED)).signatures["images"](images)
    except tf.errors.OpError as error:
        first = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"its SavedModel cannot be called by another process: {type(error).__name__}: {first}"
        ) from error
    with use_code(request, folder) as code_folder:
        config = Train.model_validate(request.train)
        model = build_model(
            config, request.image_shape, request.num_classes, code_folder, for_training=False
        )
        paths = number_paths(variable.path for variable in model.weights)
        model.set_weights(read_arrays(folder / WEIGHTS, paths))
        called = LayerMeans(model, images)
    built = {f"model{number}": each.numpy() for number, each in enumerate(called.answers)}
    with translate_write_errors(folder / ANSWERS):
        np.savez(folder / ANSWERS, saved=saved["probabilities"].numpy(), **built)
    return called.means


def main() -> None:
    folder = Path(sys.argv[1])
    try:
        means = answer(ModelCheckRequest.model_validate_json(sys.stdin.read()), folder)
    except ConfigError as error:
        verdict: dict[str, Any] = {"fault": str(error)}
    else:
        verdict = {"layers": means}
    write_json(folder / VERDICT, verdict)


if __name__ == "__main__":
    exit_for_machine(main)
