"""The formats of a published model beside the SavedModel: their conversion and their loading.

A format takes decoded images, float32 [N, H, W, C] in 0..255, as the SavedModel's signature
`images` does, and gives the same answers. The export job converts in a process of its own, which is
this module as a program, while it checks the SavedModel itself. The program prints the seconds of
each format as JSON. If it fails, the last line of its error output gives the reason, and its exit
code is that of the error.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline_ops.contract.dataset import list_removed_positions, list_shard_paths
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.errors import ConfigError, DataError, MachineError, TrainyardError, make_error
from pipeline_ops.served import contract
from pipeline_ops.served.client import SavedModelClient, decode_pixels, read_encoded_batches
from pipeline_ops.storage.local_files import translate_write_errors
from pipeline_ops.storage.read_errors import to_exit_code

FORMAT_PATHS = {
    "tflite": "formats/model.tflite",
    "tflite_int8": "formats/model_int8.tflite",
    "onnx": "formats/model.onnx",
}
"""Paths below a version's folder, next to the files that TensorFlow Serving loads.

The SavedModel is the folder itself.
"""
_IMAGES = contract.IMAGES
"""The signature of a format, its input, and the SavedModel's signature that it is made of.

A SavedModel may have a signature for this purpose, `PORTABLE`. Then a format is made of that one.
"""
_BATCH = 32
_OPSET = 18
_NUM_EXAMPLES = 100  # from which the ranges of the activations are taken

PredictFunction = Callable[[np.ndarray], dict[str, np.ndarray]]
"""A function from images to the outputs by name."""


@contextlib.contextmanager
def run_converter(
    folder: Path, dataset: str, formats: Sequence[str], num_classes: int
) -> Iterator[Callable[[], dict[str, float]]]:
    """Converts the SavedModel in a folder while the `with` block runs.

    `dataset` is the manifest of a data set with representative examples. Yields a function that
    waits for the formats and returns the seconds that each took. It raises ConfigError if the model
    cannot be converted, DataError without representative examples, and MachineError if the process
    was killed or the disk refused a format.
    """
    if not formats:
        yield dict
        return
    command = [
        *(sys.executable, "-m", "pipeline_ops.export.formats"),
        *("--folder", str(folder), "--dataset", dataset, "--classes", str(num_classes)),
        *formats,
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:

        def wait() -> dict[str, float]:
            output, errors = process.communicate()
            code = process.returncode
            if code < 0:
                raise MachineError(f"signal {-code} ended the converter. Retry.")
            if code:
                sys.stderr.write(errors)
                reason = errors.strip() or f"the converter ended with exit code {code}"
                raise make_error(code, reason.splitlines()[-1])
            seconds: dict[str, float] = json.loads(output.splitlines()[-1])
            return seconds

        try:
            yield wait
        finally:
            process.kill()


def load_format(name: str, file: Path) -> PredictFunction:
    """Loads one of FORMAT_PATHS."""
    if name == "onnx":
        with _explain_missing_extra():
            import onnxruntime
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return lambda images: dict(zip(names, session.run(names, {_IMAGES: images}), strict=True))

    from pipeline_ops.input.tensorflow_start import tf

    with warnings.catch_warnings():
        # TensorFlow 2.21 warns that the interpreter will move. Our version is pinned.
        warnings.simplefilter("ignore", UserWarning)
        interpreter = tf.lite.Interpreter(model_path=str(file))
    runner = interpreter.get_signature_runner(_IMAGES)  # it takes any number of images
    return lambda images: {key: value.copy() for key, value in runner(images=images).items()}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("formats", nargs="+", choices=sorted(FORMAT_PATHS))
    arguments = parser.parse_args()
    try:
        print(json.dumps(_convert(arguments)))
    except Exception as error:
        if not isinstance(error, TrainyardError):
            traceback.print_exc()
        print(" ".join(str(error).split()), file=sys.stderr)
        return to_exit_code(error)
    return 0


def _convert(arguments: argparse.Namespace) -> dict[str, float]:
    from pipeline_ops.input.tensorflow_start import tf

    model = tf.saved_model.load(str(arguments.folder))
    module, seconds = _freeze(model), {}
    for name in arguments.formats:
        begin = time.monotonic()
        if name == "onnx":
            content = _to_onnx(module)
        elif name == "tflite":
            content = _to_tflite(module)
        else:
            content = _to_tflite(module, _read_representative_images(arguments))
        file = arguments.folder / FORMAT_PATHS[name]
        file.parent.mkdir(exist_ok=True)
        with translate_write_errors(file):
            file.write_bytes(content)
        seconds[name] = round(time.monotonic() - begin, 3)
    return seconds


def _freeze(model: Any) -> Any:
    """Returns a module with the function `images` that the formats are made of.

    Its variables are constants, because converters lose variables otherwise. Loops stay as they
    are, because TFLite does not support the operations of their older form.
    """
    from pipeline_ops.input.framework_internals import freeze_variables
    from pipeline_ops.input.tensorflow_start import tf

    signature = model.signatures.get(contract.PORTABLE) or model.signatures[_IMAGES]
    names = sorted(signature.structured_outputs)
    module = tf.Module()
    module.frozen = freeze_variables(signature, lower_control_flow=False)
    module.images = tf.function(
        lambda images: dict(zip(names, module.frozen(images), strict=True)),
        input_signature=[signature.structured_input_signature[1][_IMAGES]],
    )
    return module


def _to_tflite(module: Any, representative: Iterator[np.ndarray] | None = None) -> bytes:
    """With representative images [1, H, W, C], weights and activations have eight bits."""
    from pipeline_ops.input.tensorflow_start import tf

    with tempfile.TemporaryDirectory(prefix="trainyard-convert-") as folder:
        # Gradients of tf.nn.silu cannot be saved here, and no converter needs them.
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        tf.saved_model.save(module, folder, {_IMAGES: module.images}, options)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=[_IMAGES])
        if representative is not None:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.representative_dataset = lambda: (
                {_IMAGES: image} for image in representative
            )
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        with _translate_errors("TFLite"):
            content: bytes = converter.convert()
        return content


def _to_onnx(module: Any) -> bytes:
    with _explain_missing_extra():
        import tf2onnx.convert
    with _translate_errors("ONNX"):
        model, _ = tf2onnx.convert.from_function(
            module.images, input_signature=module.images.input_signature, opset=_OPSET
        )
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def _read_representative_images(arguments: argparse.Namespace) -> Iterator[np.ndarray]:
    """Returns training images as the model takes them, one by one."""
    manifest = read_manifest(arguments.dataset)
    paths = list_shard_paths(arguments.dataset, manifest, "train")
    if missing := [path for path in paths if not Path(path).exists()]:
        raise DataError(
            f"{missing[0]} is gone, and export.int8 needs training examples. "
            "Run preprocess again, or remove tflite_int8 from export.formats."
        )
    shape = SavedModelClient(arguments.folder, "the SavedModel", arguments.classes).image_shape
    batches = read_encoded_batches(paths, _BATCH, list_removed_positions(manifest, "train"))
    images = (
        image[np.newaxis]
        for batch in batches
        for image in decode_pixels(batch.images.tolist(), shape)
    )
    return itertools.islice(images, _NUM_EXAMPLES)


@contextlib.contextmanager
def _explain_missing_extra() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"export.formats: onnx needs {error.name}. Install the extra onnx "
            "(pip install '.[onnx]' in a clone of Trainyard), or remove onnx from the list."
        ) from None


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
