"""The one way in which our processes import TensorFlow: quietly, and without what only makes the start slower.

Called by every job that uses TensorFlow, before anything else has imported it, and by the process that workers are
forked from. It runs no TensorFlow operation, so it is safe before a fork.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType

# Keras imports scikit-learn for wrappers that we don't use, and TensorFlow's old Keras asks SciPy what a sparse matrix
# is. Both take "not installed" for an answer. Of 2.5 s of CPU time, that saves 0.6 s and 0.15 s.
_NOT_NEEDED = ("sklearn", "scipy")


def import_tensorflow() -> ModuleType:
    """TensorFlow, with Keras loaded. Its C++ log keeps to warnings, unless TF_CPP_MIN_LOG_LEVEL says otherwise."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with _hidden(*_NOT_NEEDED):
        import tensorflow
    return tensorflow


@contextlib.contextmanager
def _hidden(*packages: str) -> Iterator[None]:
    """Makes packages that are not imported yet look as if they were not installed, while the block runs."""
    hidden = [package for package in packages if package not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # None is how Python notes "can't be imported"
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]
