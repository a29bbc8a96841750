"""The import of Keras in our processes, after `tensorflow_start` and with the same aims.

    from pipeline_ops.input.keras_start import keras

A process that builds or trains models imports this module before any other module imports Keras.
"""

from __future__ import annotations

from pipeline_ops.input.tensorflow_start import UNNEEDED_PACKAGES, hide_packages

__all__ = ["keras"]

with hide_packages(*UNNEEDED_PACKAGES):
    import keras
