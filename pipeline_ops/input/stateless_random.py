"""Random numbers for the examples of a batch, drawn only from (seed, epoch, example).

They come from a hash, not from a generator. Any number is available without those before it, on any
worker and after any restart of the gang.

Legend: b examples.
"""

from __future__ import annotations

import dataclasses

from pipeline_ops.input.tensorflow_start import tf

_MAX_DRAWS = 16
_MAX_STREAMS = 4


@dataclasses.dataclass(frozen=True)
class StatelessRandom:
    """The random numbers of some examples. The `draw_id` of the methods names a draw, 0 to 15.

    Attributes:
      epochs_b, examples_b: int64 numbers.
      streams_b: int64, 0 to 3. Distinguishes several draws of one name for one example. None means
          0 for all.
    """

    seed: int
    epochs_b: tf.Tensor
    examples_b: tf.Tensor
    streams_b: tf.Tensor | None = None

    def uniform(self, draw_id: int) -> tf.Tensor:
        """float32 [b] in [0, 1)."""
        return tf.cast(
            tf.bitwise.right_shift(self._hash(draw_id), tf.constant(40, tf.uint64)), tf.float32
        ) / (1 << 24)

    def uniform_symmetric(self, draw_id: int) -> tf.Tensor:
        """float32 [b] in [-1, 1)."""
        return 2 * self.uniform(draw_id) - 1

    def uniform_int(self, limit: int, draw_id: int) -> tf.Tensor:
        """int64 [b] in [0, limit)."""
        return tf.cast(self._hash(draw_id) % tf.constant(limit, tf.uint64), tf.int64)

    def _hash(self, draw_id: int) -> tf.Tensor:
        state = tf.constant(self.seed * _MAX_DRAWS * _MAX_STREAMS + draw_id, tf.uint64)
        state = _mix(
            state
            if self.streams_b is None
            else state + _MAX_DRAWS * tf.cast(self.streams_b, tf.uint64)
        )
        state = _mix(state + tf.cast(self.epochs_b, tf.uint64))
        return _mix(state + tf.cast(self.examples_b, tf.uint64))


def _mix(value: tf.Tensor) -> tf.Tensor:
    """Returns one output of SplitMix64 (Steele, Lea and Flood 2014) for a state."""
    value += tf.constant(0x9E3779B97F4A7C15, tf.uint64)
    value = _xor_shift(value, 30) * tf.constant(0xBF58476D1CE4E5B9, tf.uint64)
    value = _xor_shift(value, 27) * tf.constant(0x94D049BB133111EB, tf.uint64)
    return _xor_shift(value, 31)


def _xor_shift(value: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(
        value, tf.bitwise.right_shift(value, tf.constant(bits, tf.uint64))
    )
