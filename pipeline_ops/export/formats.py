"""The formats of a published model: their paths in a version's folder, and their loading.

A format takes decoded images, float32 [N, H, W, C] in 0..255, as the SavedModel's signature
`images` does, and gives the same answers. `convert.py` makes it in a process of its own. This
module loads it in a process that has never seen the model.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from pipeline_ops.errors import ConfigError

IMAGES_SIGNATURE, PORTABLE_SIGNATURE, IMAGES_INPUT = "images", "portable", "images"
"""Names of signatures and of their input.

`IMAGES_SIGNATURE` is a format's own signature. `PORTABLE_SIGNATURE` is that of the SavedModel
that the format is made of, if there is one. `IMAGES_INPUT` is the name of the input of both.
"""
FORMAT_PATHS = {
    "tflite": "formats/model.tflite",
    "tflite_int8": "formats/model_int8.tflite",
    "onnx": "formats/model.onnx",
}
"""Paths below a version's folder, next to the files that TensorFlow Serving loads.

The SavedModel is the folder itself.
"""
PredictFunction = Callable[[np.ndarray], dict[str, np.ndarray]]
"""A function from images to the outputs by name."""


def load_format(name: str, file: Path) -> PredictFunction:
    """Loads one of FORMAT_PATHS."""
    return _load_onnx(file) if name == "onnx" else _load_tflite(file)


def _load_tflite(file: Path) -> PredictFunction:
    from pipeline_ops.input.tensorflow_start import tf

    with warnings.catch_warnings():
        # TensorFlow 2.21 warns that the interpreter will move. Our version is pinned.
        warnings.simplefilter("ignore", UserWarning)
        interpreter = tf.lite.Interpreter(model_path=str(file))
    runner = interpreter.get_signature_runner(IMAGES_SIGNATURE)  # it takes any number of images
    return lambda images_NHWC: {
        name: value.copy() for name, value in runner(**{IMAGES_INPUT: images_NHWC}).items()
    }


@contextlib.contextmanager
def require_onnx_extra() -> Iterator[None]:
    """Turns the ImportError of an optional package into a ConfigError that names the extra."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"export.formats: onnx needs {error.name}. Install the extra onnx "
            "(pip install '.[onnx]' in a clone of Trainyard), or remove onnx from the list."
        ) from None


def _load_onnx(file: Path) -> PredictFunction:
    with require_onnx_extra():
        import onnxruntime
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda images_NHWC: dict(
        zip(names, session.run(names, {IMAGES_INPUT: images_NHWC}), strict=True)
    )
