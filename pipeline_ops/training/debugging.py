"""`train.debug`: TensorFlow's debugging switches. To be turned on before a model is built."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import tensorflow as tf

from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.atomic import remove_own

DUMP = "debugger"
"""In TensorBoard's folder; a folder for each worker in it, because TensorBoard's debugger reads the records of one process only."""
_DETECTED = re.compile(r"Detected Infinity or NaN.*? op \S+", re.S)
_PLACE = re.compile(r"\+ (\S+ \(L\d+\) \S+)")


@contextlib.contextmanager
def debugging(switches: Sequence[str], board: Path, worker: str) -> Iterator[None]:
    """What each switch does is said in `config_watching.py`. Records of an incarnation that was lost give way to those of the next.

    Raises:
      ConfigError: the check of numbers has stopped an operation; with what TensorFlow says of it.
    """
    _turn_on(switches, board / DUMP / worker.replace(" ", "-"))
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        found = _DETECTED.search(str(error))
        if "numerics" not in switches or found is None:
            raise
        own = [place for place in _PLACE.findall(str(error)) if "packages/" not in place]
        raise ConfigError(f"train.debug: numerics: {' '.join(found.group(0).split())}, made by {' > '.join(own)}; the log has all of it") from error
    finally:
        if "dump" in switches:  # by itself it writes the last of it when the interpreter ends, which a worker's never does
            tf.debugging.experimental.disable_dump_debug_info()


def _turn_on(switches: Sequence[str], records: Path) -> None:
    if "determinism" in switches:
        tf.config.experimental.enable_op_determinism()
    if "dump" in switches:
        remove_own(records)
        tf.debugging.experimental.enable_dump_debug_info(str(records), tensor_debug_mode="FULL_HEALTH", circular_buffer_size=-1)
    if "numerics" in switches:
        tf.debugging.enable_check_numerics()
    if "eager" in switches:
        tf.config.run_functions_eagerly(True)
