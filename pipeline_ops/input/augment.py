"""Random changes of training images, drawn from (seed, epoch, example) and from nothing else.

So an example is changed in the same way whichever worker has it and however often the gang was restarted, and
differently in each epoch. Whole batches at once, after the cache, in the threads that prepare batches.

Legend: b examples, H W C image.
"""

from __future__ import annotations

from pipeline_ops.contracts.config_input import Augment
from pipeline_ops.input.tensorflow_start import import_tensorflow

tf = import_tensorflow()

_FLIP, _DOWN, _RIGHT, _BRIGHTNESS, _CONTRAST = range(5)
"""Each change draws numbers of its own."""


def augment(config: Augment, images_bHWC: tf.Tensor, seed: int, epochs_b: tf.Tensor, examples_b: tf.Tensor) -> tf.Tensor:
    """uint8 images, changed as the config says; epochs and examples are int64 numbers."""
    def draw(what: int) -> tf.Tensor:
        return _uniform(seed, epochs_b, examples_b, what)

    if config.flip_left_right:
        images_bHWC = tf.where((draw(_FLIP) < 0.5)[:, None, None, None], tf.reverse(images_bHWC, [2]), images_bHWC)
    if config.shift:
        images_bHWC = _shift(images_bHWC, config.shift * (2 * draw(_DOWN) - 1), axis=1)
        images_bHWC = _shift(images_bHWC, config.shift * (2 * draw(_RIGHT) - 1), axis=2)
    if config.brightness or config.contrast:
        values = tf.cast(images_bHWC, tf.float32)
        mean = tf.reduce_mean(values, axis=[1, 2], keepdims=True)
        stretch = 1 + config.contrast * (2 * draw(_CONTRAST) - 1)
        offset = 255 * config.brightness * (2 * draw(_BRIGHTNESS) - 1)
        values = (values - mean) * stretch[:, None, None, None] + mean + offset[:, None, None, None]
        images_bHWC = tf.cast(tf.clip_by_value(tf.round(values), 0, 255), tf.uint8)
    return images_bHWC


def _shift(images_bHWC: tf.Tensor, fractions_b: tf.Tensor, axis: int) -> tf.Tensor:
    """Moves each image along one axis by a fraction of it, repeating the edge."""
    size = tf.shape(images_bHWC)[axis]
    pixels_b = tf.cast(tf.round(fractions_b * tf.cast(size, tf.float32)), tf.int32)
    sources = tf.clip_by_value(tf.range(size)[None, :] - pixels_b[:, None], 0, size - 1)
    moved = tf.gather(images_bHWC, sources, axis=axis, batch_dims=1)
    return tf.ensure_shape(moved, images_bHWC.shape)


def _uniform(seed: int, epochs_b: tf.Tensor, examples_b: tf.Tensor, what: int) -> tf.Tensor:
    """float32 [b] in [0, 1): a hash, so that any number can be had without those before it."""
    state = _mix(tf.constant(seed * 64 + what, tf.uint64))
    state = _mix(state + tf.cast(epochs_b, tf.uint64))
    state = _mix(state + tf.cast(examples_b, tf.uint64))
    return tf.cast(tf.bitwise.right_shift(state, tf.constant(40, tf.uint64)), tf.float32) / (1 << 24)


def _mix(value: tf.Tensor) -> tf.Tensor:
    """One output of SplitMix64 (Steele, Lea and Flood 2014) for a state."""
    value += tf.constant(0x9E3779B97F4A7C15, tf.uint64)
    value = _xor_shift(value, 30) * tf.constant(0xBF58476D1CE4E5B9, tf.uint64)
    value = _xor_shift(value, 27) * tf.constant(0x94D049BB133111EB, tf.uint64)
    return _xor_shift(value, 31)


def _xor_shift(value: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(value, tf.bitwise.right_shift(value, tf.constant(bits, tf.uint64)))
