"""The import of TensorFlow in our processes: with a quiet log, and without unneeded packages.

    from pipeline_ops.input.tensorflow_start import tf

A process that uses TensorFlow imports this module before any other module imports TensorFlow. So
does the process from which workers are forked: the import runs no TensorFlow operation, so it is
safe before a fork. Keras is not loaded, because a process that only calls SavedModels has no use
for it; others import `keras_start`. TensorFlow's C++ log shows only errors, unless
TF_CPP_MIN_LOG_LEVEL is set. On a GPU it takes memory as it needs it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from pipeline_ops.system.gpus import open_cusolver

__all__ = ["hide_packages", "tf"]

UNNEEDED_PACKAGES = ("sklearn", "scipy")
"""Keras imports scikit-learn for wrappers that we do not use, and TensorFlow's old Keras asks SciPy
what a sparse matrix is. Both work without the package. This saves 0.6 s and 0.15 s of 2.5 s of CPU
time."""

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# As nvidia-smi counts. By default, CUDA's number 0 is the fastest GPU.
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
# Otherwise the first process on a GPU takes all of its memory.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
open_cusolver()


@contextlib.contextmanager
def hide_packages(*packages: str) -> Iterator[None]:
    """Lets imports of packages fail in the `with` block, except of those that are loaded."""
    hidden = [package for package in packages if package not in sys.modules]
    for package in hidden:
        sys.modules[package] = None  # type: ignore[assignment]  # "cannot be imported"
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]


with hide_packages(*UNNEEDED_PACKAGES, "keras"):  # TensorFlow loads Keras at the first use
    import tensorflow as tf
