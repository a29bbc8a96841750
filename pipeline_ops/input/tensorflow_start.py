"""The only import of TensorFlow in our processes: with a quiet log, and without unneeded packages.

Every job that uses TensorFlow calls `import_tensorflow` before any other module imports TensorFlow.
So does the process from which workers are forked. It runs no TensorFlow operation, so it is safe
before a fork.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType

# Keras imports scikit-learn for wrappers that we don't use, and TensorFlow's old Keras asks SciPy
# what a sparse matrix is. Both work without the package. This saves 0.6 s and 0.15 s of 2.5 s of
# CPU time.
_NOT_NEEDED = ("sklearn", "scipy")


def import_tensorflow() -> ModuleType:
    """Returns TensorFlow, with Keras loaded. Its C++ log shows only errors, unless
    TF_CPP_MIN_LOG_LEVEL says otherwise.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with _hidden(*_NOT_NEEDED):
        import tensorflow
    return tensorflow


@contextlib.contextmanager
def _hidden(*packages: str) -> Iterator[None]:
    """Makes packages that are not imported yet appear as not installed while the block runs."""
    hidden = [package for package in packages if package not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # None is how Python notes "can't be imported"
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]
