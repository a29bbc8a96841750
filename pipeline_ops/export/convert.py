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

from pipeline_ops.artifacts.dataset import list_removed_positions, list_shard_paths
from pipeline_ops.artifacts.manifest import read_manifest
from pipeline_ops.errors import ConfigError, DataError, TrainyardError
from pipeline_ops.export.formats import (
    FORMAT_PATHS,
    IMAGES_INPUT,
    IMAGES_SIGNATURE,
    PORTABLE_SIGNATURE,
    require_onnx_extra,
)
from pipeline_ops.input.saved_model_client import SavedModelClient, read_encoded_batches
from pipeline_ops.storage.local_files import translate_write_errors
from pipeline_ops.storage.read_errors import to_exit_code

_BATCH = 32
_OPSET = 18
_NUM_EXAMPLES = 100  # from which the ranges of the activations are taken


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="folder of the SavedModel")
    parser.add_argument(
        "--dataset", required=True, help="manifest of the data set with representative examples"
    )
    parser.add_argument("--classes", type=int, required=True, help="number of classes")
    parser.add_argument("formats", nargs="+", choices=sorted(FORMAT_PATHS))
    arguments = parser.parse_args()
    try:
        frozen = _FrozenModel(arguments.folder)
        for name in arguments.formats:
            begin = time.monotonic()
            representative = (
                _read_representative_images(arguments) if name == "tflite_int8" else None
            )
            content = frozen.to_onnx() if name == "onnx" else frozen.to_tflite(representative)
            file = arguments.folder / FORMAT_PATHS[name]
            file.parent.mkdir(exist_ok=True)
            with translate_write_errors(file):
                file.write_bytes(content)
            print(
                json.dumps({"format": name, "seconds": round(time.monotonic() - begin, 3)}),
                flush=True,
            )
    except Exception as error:
        if not isinstance(error, TrainyardError):
            traceback.print_exc()
        print(" ".join(str(error).split()), file=sys.stderr)
        return to_exit_code(error)
    return 0


class _FrozenModel:
    """The signature of a SavedModel that other formats are made of.

    Its variables are constants, because converters lose variables otherwise. Loops stay as they
    are, because TFLite does not support the operations of their older form.
    """

    def __init__(self, folder: Path):
        from pipeline_ops.input.framework_internals import freeze_variables
        from pipeline_ops.input.tensorflow_start import tf

        self._model = tf.saved_model.load(str(folder))
        signatures = self._model.signatures
        is_portable = PORTABLE_SIGNATURE in signatures
        signature = signatures[PORTABLE_SIGNATURE if is_portable else IMAGES_SIGNATURE]
        names = sorted(signature.structured_outputs)
        frozen = freeze_variables(signature, lower_control_flow=False)
        self._spec = signature.structured_input_signature[1][IMAGES_INPUT]
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
        from pipeline_ops.input.tensorflow_start import tf

        with tempfile.TemporaryDirectory(prefix="trainyard-convert-") as folder:
            tf.saved_model.save(
                self._module, folder, signatures={IMAGES_SIGNATURE: self._module.images}
            )
            converter = tf.lite.TFLiteConverter.from_saved_model(
                folder, signature_keys=[IMAGES_SIGNATURE]
            )
            if representative is not None:
                converter.optimizations = [tf.lite.Optimize.DEFAULT]
                converter.representative_dataset = lambda: (
                    {IMAGES_INPUT: image} for image in representative
                )
                converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
            with _translate_errors("TFLite"):
                content: bytes = converter.convert()
            return content

    def to_onnx(self) -> bytes:
        with require_onnx_extra():
            import tf2onnx.convert
        with _translate_errors("ONNX"):
            model, _ = tf2onnx.convert.from_function(
                self._module.images, input_signature=[self._spec], opset=_OPSET
            )
        content: bytes = model.SerializeToString(deterministic=True)
        return content


def _read_representative_images(arguments: argparse.Namespace) -> Iterator[np.ndarray]:
    """Returns training images as the model takes them, one by one."""
    manifest = read_manifest(arguments.dataset)
    paths = list_shard_paths(arguments.dataset, manifest, "train")
    removed = list_removed_positions(manifest, "train")
    if missing := [path for path in paths if not Path(path).exists()]:
        raise DataError(
            f"{missing[0]} is gone, and export.int8 needs training examples. "
            "Run preprocess again, or remove tflite_int8 from export.formats."
        )
    model = SavedModelClient(arguments.folder, "the SavedModel", arguments.classes)
    batches = (
        model.call_signature("decode", image_bytes=batch.images)["images"]
        for batch in read_encoded_batches(paths, _BATCH, removed)
    )
    images = (image[np.newaxis] for batch in batches for image in batch)
    return itertools.islice(images, _NUM_EXAMPLES)


@contextlib.contextmanager
def _translate_errors(format_name: str) -> Iterator[None]:
    """Turns an error of a converter into a ConfigError.

    A converter raises errors of its C++ part as any type. Unless the machine refused something, the
    model cannot be converted to this format.
    """
    try:
        yield
    except Exception as error:
        if to_exit_code(error).is_retried:
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise ConfigError(
            f"export.formats: the model cannot be converted to {format_name}: {reason}. "
            "Remove the format from the list."
        ) from error


if __name__ == "__main__":
    sys.exit(main())
