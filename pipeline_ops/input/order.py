"""The endless order of training examples, and random numbers for each example.

Both are computed from (seed, epoch, position) alone. Every epoch is a permutation of the split, and
the epochs follow one another without a gap. No permutation of examples is ever built as a whole, so
the first step of the hundredth epoch costs as much as any other. All of it is graph code.

Legend: b positions or examples, u different epochs among them, S shards, n windows of an epoch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from pipeline_ops.input.tensorflow_start import tf

_MAX_DRAWS, _MAX_STREAMS = 16, 4
_SHARD_DRAW, _KEY_DRAW = 14, 15  # augment.py uses the lower numbers
_KEY_LIMIT = 1 << 31
_CIPHER_WORD, _CIPHER_ROUNDS = 498_247_692, 4
"""The first word of the key and the number of rounds of the permuting cipher, as in
`tf.random.experimental.index_shuffle`.
"""


@dataclasses.dataclass(frozen=True)
class StatelessRandom:
    """The random numbers of some examples. The `draw_id` of the methods names a draw, 0 to 15.

    They come from a hash, not from a generator. Any number is available without those before it, on
    any worker and after any restart of the gang.

    All tensors are int64. `streams_b`, 0 to 3, distinguishes several draws of one name for one
    example. None means 0 for all.
    """

    seed: int
    epochs_b: tf.Tensor
    examples_b: tf.Tensor
    streams_b: tf.Tensor | None = None

    def uniform(self, draw_id: int) -> tf.Tensor:
        """float32 [b] in [0, 1)."""
        top_bits = tf.bitwise.right_shift(self._hash(draw_id), tf.constant(40, tf.uint64))
        return tf.cast(top_bits, tf.float32) / (1 << 24)

    def uniform_many(self, draw_id: int, count: int) -> tf.Tensor:
        """float32 [b, count] in [0, 1): several numbers of one draw."""
        states = self._hash(draw_id)[:, None] + tf.cast(tf.range(count), tf.uint64)
        top_bits = tf.bitwise.right_shift(_mix(states), tf.constant(40, tf.uint64))
        return tf.cast(top_bits, tf.float32) / (1 << 24)

    def uniform_symmetric(self, draw_id: int) -> tf.Tensor:
        """float32 [b] in [-1, 1)."""
        return 2 * self.uniform(draw_id) - 1

    def uniform_int(self, limit: int, draw_id: int) -> tf.Tensor:
        """int64 [b] in [0, limit)."""
        return tf.cast(self._hash(draw_id) % tf.constant(limit, tf.uint64), tf.int64)

    def _hash(self, draw_id: int) -> tf.Tensor:
        state = tf.constant(self.seed * _MAX_DRAWS * _MAX_STREAMS + draw_id, tf.uint64)
        if self.streams_b is not None:
            state += _MAX_DRAWS * tf.cast(self.streams_b, tf.uint64)
        state = _mix(_mix(state) + tf.cast(self.epochs_b, tf.uint64))
        return _mix(state + tf.cast(self.examples_b, tf.uint64))


def _mix(value: tf.Tensor) -> tf.Tensor:
    """Returns one output of SplitMix64 (Steele, Lea and Flood 2014) for a state."""

    def xor_shift(value: tf.Tensor, bits: int) -> tf.Tensor:
        shifted = tf.bitwise.right_shift(value, tf.constant(bits, tf.uint64))
        return tf.bitwise.bitwise_xor(value, shifted)

    value += tf.constant(0x9E3779B97F4A7C15, tf.uint64)
    value = xor_shift(value, 30) * tf.constant(0xBF58476D1CE4E5B9, tf.uint64)
    value = xor_shift(value, 27) * tf.constant(0x94D049BB133111EB, tf.uint64)
    return xor_shift(value, 31)


@dataclasses.dataclass(frozen=True)
class GlobalOrder:
    """A permutation of the whole split in each epoch."""

    num_examples: int
    seed: int
    num_shards: int = 0

    def compute(self, positions_b: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (epochs_b, examples_b) of positions, all int64.

        A cipher with the key (seed, epoch) maps a position within an epoch to an example.
        """
        epochs_b = positions_b // self.num_examples
        ones_b = tf.ones_like(epochs_b)
        keys_b3 = tf.stack([_CIPHER_WORD * ones_b, self.seed * ones_b, epochs_b], axis=1)
        last = tf.constant(self.num_examples - 1, tf.int64)
        return epochs_b, _permute(positions_b % self.num_examples, keys_b3, last)

    def list_upcoming_shards(self, position: int) -> Sequence[int]:
        """Returns all shards by number: from any position on, all are used within a few steps."""
        return range(self.num_shards)


class RepeatedOrder:
    """A permutation of the whole split in which some examples come several times.

    Args:
      factors_N: float64 [N], the mean number of copies of each example, 1 or more. In each round
        an example has the next smaller or the next larger whole number of copies.

    A round is a number of positions, the sum of the factors. It takes the place of an epoch.
    """

    def __init__(self, factors_N: np.ndarray, seed: int, num_shards: int = 0):
        total = int(np.ceil(factors_N.sum()))
        self._ends_N = np.cumsum(factors_N) * (total / factors_N.sum())
        self._ends_N[-1] = total
        self._order, self._seed = GlobalOrder(total, seed, num_shards), seed
        self.list_upcoming_shards = self._order.list_upcoming_shards

    def compute(self, positions_b: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (positions_b, examples_b), both int64.

        The positions take the place of epochs, so that each copy has its own random changes. The
        examples are a systematic sample: points one apart on the cumulative factors, from a random
        offset.
        """
        rounds_b, places_b = self._order.compute(positions_b)
        rng = StatelessRandom(self._seed, rounds_b, tf.zeros_like(rounds_b))
        starts_b = tf.cast(rng.uniform(_SHARD_DRAW), tf.float64)
        points_b = tf.cast(places_b, tf.float64) + starts_b
        return positions_b, tf.searchsorted(self._ends_N, points_b, "right", tf.int64)


def compute_repeat_factors(
    examples_P: np.ndarray, classes_P: np.ndarray, num_examples: int, threshold: float
) -> np.ndarray:
    """Returns float64 [N], the repeat factor of each example (Gupta et al. 2019, section 5.2).

    It is the largest one of its classes, and 1 without any. The factor of a class is
    max(1, sqrt(threshold / share)), with the share of the examples that hold it. `examples_P` and
    `classes_P` are pairs of an example and a class, which may come several times.
    """
    examples_Q, classes_Q = np.unique(np.stack([examples_P, classes_P]), axis=1)
    shares_C = np.bincount(classes_Q) / num_examples
    factors_N = np.ones(num_examples)
    found_Q = np.sqrt(threshold / shares_C[classes_Q])
    np.maximum.at(factors_N, examples_Q, found_Q)
    return factors_N


class WindowOrder:
    """A permutation of the shards in each epoch, and of the examples of each window of it.

    A window is a number of consecutive shards of the permuted order. The last window of an epoch
    may have fewer. `shard_sizes` are the numbers of examples.
    """

    def __init__(self, shard_sizes: Sequence[int], seed: int, window: int):
        self._sizes_S = np.array(shard_sizes, np.int64)
        self._starts_S = np.cumsum(self._sizes_S) - self._sizes_S
        self._num_examples = int(self._sizes_S.sum())
        self.window, self._seed = window, seed
        self._last_of_windows_n = np.minimum(
            np.arange(window, len(shard_sizes) + window, window), len(shard_sizes)
        )
        self._list_upcoming = functools.lru_cache(maxsize=64)(self._list_shards_from)
        self._compute_shard_order = functools.lru_cache(maxsize=8)(self._sort_shards)

    def compute(self, positions_b: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (epochs_b, examples_b) of positions, all int64.

        Finds the window of each position, permutes it there, and finds the shard.

        The examples of the epochs u, in the order of their shards, have consecutive numbers, which
        are called places here.
        """
        epochs_b = positions_b // self._num_examples
        epochs_u, which_b = tf.unique(epochs_b, out_idx=tf.int64)
        order_uS = self._permute_shards(epochs_u)
        ends_uS = tf.cumsum(tf.gather(self._sizes_S, order_uS), axis=1)
        ends_uS += self._num_examples * tf.range(tf.size(epochs_u, tf.int64))[:, None]
        starts_of_windows, ends_of_windows = _to_bounds(
            tf.gather(ends_uS, self._last_of_windows_n - 1, axis=1)
        )
        places_b = which_b * self._num_examples + positions_b % self._num_examples
        window_b = tf.searchsorted(ends_of_windows, places_b, "right", tf.int64)
        start_b = tf.gather(starts_of_windows, window_b)
        places_b = start_b + _permute(
            places_b - start_b,
            self._make_keys(epochs_b, window_b - which_b * len(self._last_of_windows_n)),
            tf.gather(ends_of_windows, window_b) - start_b - 1,
        )
        starts, ends = _to_bounds(ends_uS)
        slot_b = tf.searchsorted(ends, places_b, "right", tf.int64)
        shard_b = tf.gather(tf.reshape(order_uS, [-1]), slot_b)
        return epochs_b, tf.gather(self._starts_S, shard_b) + places_b - tf.gather(starts, slot_b)

    def list_upcoming_shards(self, position: int) -> Sequence[int]:
        """Returns the shards of the position's window first, and then those of later windows."""
        epoch, place = divmod(position, self._num_examples)
        ends_S = np.cumsum(self._sizes_S[self._compute_shard_order(epoch)])
        ends_n = ends_S[self._last_of_windows_n - 1]
        return self._list_upcoming(epoch, int(np.searchsorted(ends_n, place, "right")))

    def _list_shards_from(self, epoch: int, window: int) -> Sequence[int]:
        this, following = (self._compute_shard_order(each) for each in (epoch, epoch + 1))
        order = np.concatenate([this[window * self.window :], following])
        return tuple(dict.fromkeys(order.tolist()))

    def _sort_shards(self, epoch: int) -> np.ndarray:
        with tf.device("/cpu:0"):
            return self._permute_shards(tf.constant([epoch], tf.int64)).numpy()[0]

    def _permute_shards(self, epochs_u: tf.Tensor) -> tf.Tensor:
        """Returns the numbers of the shards in the order of each epoch, int64 [u, S]."""
        shards_1S = tf.range(len(self._sizes_S), dtype=tf.int64)[None]
        rng = StatelessRandom(self._seed, epochs_u[:, None], shards_1S)
        sorted_uS = tf.argsort(rng.uniform_int(1 << 62, _SHARD_DRAW), axis=1, stable=True)
        return tf.cast(sorted_uS, tf.int64)

    def _make_keys(self, epochs_b: tf.Tensor, windows_b: tf.Tensor) -> tf.Tensor:
        """Returns a key for each window of each epoch, int64 [b, 3]."""

        def draw_word(word: int) -> tf.Tensor:
            rng = StatelessRandom(self._seed, epochs_b, windows_b, tf.constant(word, tf.int64))
            return rng.uniform_int(_KEY_LIMIT, _KEY_DRAW)

        return tf.stack([draw_word(word) for word in range(3)], axis=1)


ExampleOrder = GlobalOrder | RepeatedOrder | WindowOrder
"""The numbers of the examples at the positions of the order."""


def _permute(indices_b: tf.Tensor, keys_b3: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
    """Maps each index in [0, last] to another one there, by a permutation that its key chooses."""
    return tf.raw_ops.RandomIndexShuffle(
        index=indices_b, seed=keys_b3, max_index=last, rounds=_CIPHER_ROUNDS
    )


def _to_bounds(ends: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns starts and ends of consecutive ranges, flat."""
    flat = tf.reshape(ends, [-1])
    return tf.concat([tf.zeros([1], tf.int64), flat[:-1]], 0), flat
