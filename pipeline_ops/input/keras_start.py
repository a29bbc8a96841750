"""The import of Keras in our processes, after `tensorflow_start` and with the same aims.

    from pipeline_ops.input.keras_start import keras

A process that builds or trains models imports this module before any other module imports Keras.
"""

from __future__ import annotations

from pipeline_ops.input.tensorflow_start import UNNEEDED_PACKAGES, hide_packages, tf

__all__ = ["keras"]

with hide_packages(*UNNEEDED_PACKAGES):
    import keras
# `from tensorflow.keras import layers` of the author. Keras was hidden while TensorFlow looked.
tf.__path__.append(f"{keras.__path__[0]}/_tf_keras")
