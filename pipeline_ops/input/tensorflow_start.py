"""The import of TensorFlow in our processes: with a quiet log, and without unneeded packages.

    from pipeline_ops.input.tensorflow_start import tf

A process that uses TensorFlow imports this module before any other module imports TensorFlow. So
does the process from which workers are forked: the import runs no TensorFlow operation, so it is
safe before a fork. Keras is loaded, too. TensorFlow's C++ log shows only errors, unless
TF_CPP_MIN_LOG_LEVEL is set. On a GPU it takes memory as it needs it.
"""

from __future__ import annotations

import os
import sys

from pipeline_ops.system.gpus import open_cusolver

__all__ = ["tf"]

# Keras imports scikit-learn for wrappers that we do not use, and TensorFlow's old Keras asks SciPy
# what a sparse matrix is. Both work without the package. This saves 0.6 s and 0.15 s of 2.5 s of
# CPU time.
_UNNEEDED_PACKAGES = ("sklearn", "scipy")

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# As nvidia-smi counts. By default, CUDA's number 0 is the fastest GPU.
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
# Otherwise the first process on a GPU takes all of its memory.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
open_cusolver()
_hidden = [package for package in _UNNEEDED_PACKAGES if package not in sys.modules]
for _package in _hidden:
    sys.modules[_package] = None  # type: ignore[assignment]  # Python's mark of "cannot be imported"
try:
    import tensorflow as tf
finally:
    for _package in _hidden:
        del sys.modules[_package]
