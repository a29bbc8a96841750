"""The serialised examples of shards, without those that a later generation of the data set has removed.

Called by whatever reads a data set: training, evaluation, and the candidate's references.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline_ops.input.tensorflow_start import import_tensorflow

tf = import_tensorflow()


def read_records(paths: Sequence[str], removed: Sequence[Sequence[int]] = ()) -> tf.data.Dataset:
    """Every example once, shard after shard.

    Args:
      paths: the shards.
      removed: for each shard the positions to skip; empty where nothing is removed anywhere.
    """
    if not any(removed):
        return tf.data.TFRecordDataset(list(paths))
    return tf.data.Dataset.range(len(paths)).flat_map(shard_reader(paths, removed))


def shard_reader(paths: Sequence[str], removed: Sequence[Sequence[int]] = ()):
    """A function from the index of a shard, a scalar int64 tensor, to its examples; for `flat_map` and `interleave`."""
    names = tf.constant(list(paths))
    if not any(removed):
        return lambda shard: tf.data.TFRecordDataset(names[shard])
    skipped = tf.ragged.constant([list(positions) for positions in removed], dtype=tf.int64, ragged_rank=1)

    def read(shard: tf.Tensor) -> tf.data.Dataset:
        positions = skipped[shard]
        kept = tf.data.TFRecordDataset(names[shard]).enumerate().filter(lambda position, _: tf.reduce_all(positions != position))
        return kept.map(lambda _, record: record)

    return read
