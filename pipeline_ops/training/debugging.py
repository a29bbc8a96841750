"""`train.debug`: TensorFlow's debugging switches. To be turned on before a model is built."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import tensorflow as tf

from pipeline_ops.contracts.errors import ConfigError

DUMP = "debugger"
"""In TensorBoard's folder."""


def turn_on(switches: Sequence[str], board: Path) -> None:
    """What each does is said in `config_watching.py`."""
    if "determinism" in switches:
        tf.config.experimental.enable_op_determinism()
    if "dump" in switches:
        tf.debugging.experimental.enable_dump_debug_info(str(board / DUMP), tensor_debug_mode="FULL_HEALTH", circular_buffer_size=-1)
    if "numerics" in switches:
        tf.debugging.enable_check_numerics()
    if "eager" in switches:
        tf.config.run_functions_eagerly(True)


@contextlib.contextmanager
def naming_operations(switches: Sequence[str]) -> Iterator[None]:
    """Raises ConfigError with what TensorFlow says where the check of numbers has stopped an operation."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        if "numerics" not in switches or "TensorFlow's check" not in str(error) and "CheckNumerics" not in str(error) and "Inf" not in str(error):
            raise
        raise ConfigError(f"train.debug: numerics: {' '.join(line.strip() for line in str(error).splitlines() if line.strip())}") from error
