"""Makes the other formats of a SavedModel, in a process of its own.

The export job starts it as `python -m pipeline_ops.export.convert ...` while it checks the
SavedModel itself. It prints a line of JSON for each format that it has written. If it fails, the
last line of its error output gives the reason, and its exit code is that of the error.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pipeline_ops.artifacts.dataset import removed_positions, shard_paths
from pipeline_ops.artifacts.manifest import read_manifest
from pipeline_ops.errors import ConfigError, DataError, TrainyardError
from pipeline_ops.export.formats import INPUT, PATHS, PORTABLE, SIGNATURE
from pipeline_ops.input.saved_model_client import ServedModel, read_encoded
from pipeline_ops.input.tensorflow_start import import_tensorflow
from pipeline_ops.storage.atomic import names_file
from pipeline_ops.storage.read_errors import exit_code_of

_BATCH = 32
_OPSET = 18


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--folder", type=Path, required=True, help="a SavedModel; the formats are written below it"
    )
    parser.add_argument(
        "--dataset",
        required=True,
        help="the manifest of the data set that the representative examples are from",
    )
    parser.add_argument("--examples", type=int, required=True, help="how many of them")
    parser.add_argument(
        "--classes", type=int, required=True, help="how many classes the model knows"
    )
    parser.add_argument("formats", nargs="+", choices=sorted(PATHS))
    arguments = parser.parse_args()
    try:
        frozen = _Frozen(arguments.folder)
        for name in arguments.formats:
            begin = time.monotonic()
            representative = _representative(arguments) if name == "tflite_int8" else None
            content = frozen.to_onnx() if name == "onnx" else frozen.to_tflite(representative)
            file = arguments.folder / PATHS[name]
            file.parent.mkdir(exist_ok=True)
            with names_file(file):
                file.write_bytes(content)
            print(
                json.dumps({"format": name, "seconds": round(time.monotonic() - begin, 3)}),
                flush=True,
            )
    except Exception as error:
        if not isinstance(error, TrainyardError):
            traceback.print_exc()
        print(" ".join(str(error).split()), file=sys.stderr)
        return exit_code_of(error)
    return 0


class _Frozen:
    """The signature of a SavedModel that other formats are made of.

    Its variables are constants, because converters lose variables otherwise. Loops stay as they
    are, because TFLite does not support the operations of their older form.
    """

    def __init__(self, folder: Path):
        from tensorflow.python.framework.convert_to_constants import (
            convert_variables_to_constants_v2,
        )

        tf = import_tensorflow()
        self._model = tf.saved_model.load(str(folder))
        signatures = self._model.signatures
        signature = signatures[PORTABLE if PORTABLE in signatures else SIGNATURE]
        names, frozen = (
            sorted(signature.structured_outputs),
            convert_variables_to_constants_v2(signature, lower_control_flow=False),
        )
        self._spec = signature.structured_input_signature[1][INPUT]
        self._module = tf.Module()
        self._module.frozen = frozen
        self._module.images = tf.function(
            lambda images: dict(zip(names, frozen(images), strict=True)),
            input_signature=[self._spec],
        )

    def to_tflite(self, representative: Iterator[np.ndarray] | None) -> bytes:
        """Converts with floats.

        With representative images [1, H, W, C], weights and activations have eight bits.
        """
        tf = import_tensorflow()
        with tempfile.TemporaryDirectory(prefix="trainyard-convert-") as folder:
            tf.saved_model.save(self._module, folder, signatures={SIGNATURE: self._module.images})
            converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=[SIGNATURE])
            if representative is not None:
                converter.optimizations = [tf.lite.Optimize.DEFAULT]
                converter.representative_dataset = lambda: (
                    {INPUT: image} for image in representative
                )
                converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
            with _converting_to("TFLite"):
                return converter.convert()

    def to_onnx(self) -> bytes:
        try:
            import tf2onnx.convert
        except ImportError as error:
            raise ConfigError(
                f"export.formats: onnx needs {error.name}; install trainyard[onnx], or take it out"
            ) from None
        with _converting_to("ONNX"):
            model, _ = tf2onnx.convert.from_function(
                self._module.images, input_signature=[self._spec], opset=_OPSET
            )
        return model.SerializeToString(deterministic=True)


def _representative(arguments: argparse.Namespace) -> Iterator[np.ndarray]:
    """Returns training images as the model takes them, one by one."""
    manifest = read_manifest(arguments.dataset)
    paths, removed = (
        shard_paths(arguments.dataset, manifest, "train"),
        removed_positions(manifest, "train"),
    )
    if missing := [path for path in paths if not Path(path).exists()]:
        raise DataError(
            f"{missing[0]} is gone, and export.int8 needs training examples; "
            "run preprocess again, or take tflite_int8 out"
        )
    model = ServedModel(arguments.folder, "the SavedModel", arguments.classes)
    batches = (
        model.ask("decode", image_bytes=batch.images)["images"]
        for batch in read_encoded(paths, _BATCH, removed)
    )
    images = (image[np.newaxis] for batch in batches for image in batch)
    return itertools.islice(images, arguments.examples)


@contextlib.contextmanager
def _converting_to(format_name: str) -> Iterator[None]:
    """Turns an error of a converter into a ConfigError.

    A converter raises errors of its C++ part as any type. Unless the machine refused something, the
    model does not fit this format.
    """
    try:
        yield
    except Exception as error:
        if exit_code_of(error).is_retried:
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise ConfigError(
            f"export.formats: the model can't be converted to {format_name}: {reason}; "
            "take the format out"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
