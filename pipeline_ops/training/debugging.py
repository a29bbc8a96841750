"""TensorFlow's debugging switches (`train.debug`), to be turned on before a model is built."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import tensorflow as tf

from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.staging import remove_own_folder

DUMP_FOLDER = "debugger"
"""In TensorBoard's folder. Has a folder for each worker, because TensorBoard reads one process."""
_DETECTED = re.compile(r"Detected Infinity or NaN.*? op \S+", re.S)
_NOT_REPEATABLE = re.compile(r"^.*determinis.*$", re.M | re.I)
_FRAME = re.compile(r"\+ (\S+ \(L\d+\) \S+)")


@contextlib.contextmanager
def enable_debugging(
    switches: Sequence[str], tensorboard_folder: Path, worker: str
) -> Iterator[None]:
    """Enables the switches that `config/diagnostics.py` documents while the block runs.

    The records of a lost incarnation are replaced by those of the next one. Raises ConfigError if
    the numerics check stopped an operation, or if an operation has no repeatable form.
    """
    if "determinism" in switches:
        tf.config.experimental.enable_op_determinism()
    if "dump" in switches:
        records = tensorboard_folder / DUMP_FOLDER / worker.replace(" ", "-")
        remove_own_folder(records)
        tf.debugging.experimental.enable_dump_debug_info(
            str(records), tensor_debug_mode="FULL_HEALTH", circular_buffer_size=-1
        )
    if "numerics" in switches:
        tf.debugging.enable_check_numerics()
    if "eager" in switches:
        tf.config.run_functions_eagerly(True)
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        detected = _DETECTED.search(str(error))
        if "numerics" not in switches or detected is None:
            raise
        user_frames = [frame for frame in _FRAME.findall(str(error)) if "packages/" not in frame]
        raise ConfigError(
            f"train.debug: numerics: {' '.join(detected.group(0).split())}, "
            f"computed in {' > '.join(user_frames)}. See the log for the whole message."
        ) from error
    except tf.errors.UnimplementedError as error:
        refused = _NOT_REPEATABLE.search(str(error))
        if "determinism" not in switches or refused is None:
            raise
        raise ConfigError(
            f"train.debug: determinism: {refused.group(0).strip()} Leave out determinism, or "
            "train.xla if it is set: fewer operations are repeatable under XLA."
        ) from error
    finally:
        # Otherwise it writes its last records when the interpreter shuts down, which a worker's
        # never does.
        if "dump" in switches:
            tf.debugging.experimental.disable_dump_debug_info()
