"""TensorFlow's debugging switches (`train.debug`), to be turned on before a model is built."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import tensorflow as tf

from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.atomic import remove_own

DUMP = "debugger"
"""The name of the folder of dumps in TensorBoard's folder.

Each worker has a folder in it, because TensorBoard's debugger reads the records of one process.
"""
_DETECTED = re.compile(r"Detected Infinity or NaN.*? op \S+", re.S)
_PLACE = re.compile(r"\+ (\S+ \(L\d+\) \S+)")


@contextlib.contextmanager
def debugging(switches: Sequence[str], board: Path, worker: str) -> Iterator[None]:
    """Turns on the switches that `config/diagnostics.py` documents.

    The records of a lost incarnation are replaced by those of the next one.

    Raises:
      ConfigError: The numerics check has stopped an operation. The message quotes TensorFlow's.
    """
    _turn_on(switches, board / DUMP / worker.replace(" ", "-"))
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        found = _DETECTED.search(str(error))
        if "numerics" not in switches or found is None:
            raise
        own = [place for place in _PLACE.findall(str(error)) if "packages/" not in place]
        raise ConfigError(
            f"train.debug: numerics: {' '.join(found.group(0).split())}, "
            f"made by {' > '.join(own)}; the log has all of it"
        ) from error
    finally:
        # Otherwise it writes the rest when the interpreter shuts down, which a worker's never does.
        if "dump" in switches:
            tf.debugging.experimental.disable_dump_debug_info()


def _turn_on(switches: Sequence[str], records: Path) -> None:
    if "determinism" in switches:
        tf.config.experimental.enable_op_determinism()
    if "dump" in switches:
        remove_own(records)
        tf.debugging.experimental.enable_dump_debug_info(
            str(records), tensor_debug_mode="FULL_HEALTH", circular_buffer_size=-1
        )
    if "numerics" in switches:
        tf.debugging.enable_check_numerics()
    if "eager" in switches:
        tf.config.run_functions_eagerly(True)
