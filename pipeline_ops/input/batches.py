"""Training batches in an order that depends only on seed and step.

Records are read at random places instead of by `interleave`, `shuffle` and `batch`, so that a gang
of any size resumes at any step with exactly the next examples, and reads no earlier ones. A
pipeline of stateful transformations would have to save and restore buffers of every worker. Grain
with ArrayRecord does the same for JAX.

Every epoch is a permutation of the split (`order.py`), and the epochs follow one another without a
gap. A batch may hold the end of one epoch and the beginning of the next, so every example comes
exactly once in an epoch with any global batch, and all batches have the same size. The examples of
a step follow from arithmetic. Therefore a worker reads only its own slice of each global batch, and
the global batches are the same sets for any number of workers. The task (`models/task.py`) defines
the contents of an example.

Legend: B global batch, b this worker's part of it, N examples of the split.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pipeline_ops.config.train import AugmentOptions
from pipeline_ops.input.augment import Augmentation, ImageAugmentation
from pipeline_ops.input.order import (
    ExampleOrder,
    GlobalOrder,
    RepeatedOrder,
    StatelessRandom,
    WindowOrder,
    compute_repeat_factors,
)
from pipeline_ops.input.reading import (
    PARSE_BATCH,
    Parse,
    SplitShards,
    Tell,
    TellPart,
    iterate_records,
    load_arrays,
    prepare_parts,
    read_batches,
    save_arrays,
)
from pipeline_ops.input.sources import EncodedSource, ExampleSource, StreamedSource
from pipeline_ops.input.tensorflow_start import tf
from pipeline_ops.system.disk_cache import HostCache

_CLASSES = "classes.npz"
_MAX_STEPS = 1 << 40
_UNCHANGED = ImageAugmentation(AugmentOptions())


def make_order(split: SplitShards, seed: int, window: int | None) -> ExampleOrder:
    """Makes the order of a split. `window` is the number of shards whose examples are permuted
    together. None permutes the whole split.
    """
    if split.repeat_factors is not None:
        return RepeatedOrder(split.repeat_factors, seed, len(split.paths))
    if window is None:
        return GlobalOrder(split.num_examples, seed, len(split.paths))
    return WindowOrder(split.shard_sizes, seed, window)


def repeat_rare_classes(
    split: SplitShards,
    parse: Parse,
    list_classes: Callable[[Any], tf.Tensor],
    threshold: float,
    cache: HostCache,
    tell: Tell = lambda *_: None,
) -> SplitShards:
    """Returns the split with the repeat factors of its examples.

    The labels of all examples are read once, and their classes are kept in the host's cache.
    `list_classes` takes labels and returns int64 [b, n], -1 for none.
    """

    def write(part: SplitShards, tell: TellPart, folder: Path) -> None:
        start, pairs = 0, [np.empty((2, 0), np.int64)]
        batches = read_batches(part, PARSE_BATCH)
        labels = batches.map(lambda serialized_b: list_classes(parse(serialized_b)[1]))
        for classes_bn in iterate_records(labels, part.paths):
            examples, columns = np.nonzero(classes_bn >= 0)
            pairs.append(np.stack([start + examples, classes_bn[examples, columns]]))
            start += len(classes_bn)
            tell(start)
        part.release()
        save_arrays(folder / _CLASSES, [np.concatenate(pairs, axis=1)])

    start, pairs = 0, []
    for part, folder in prepare_parts(split, cache, "parsed", [_CLASSES], write, tell, "labels"):
        [(examples, classes)] = load_arrays(folder / _CLASSES)
        pairs.append(np.stack([start + examples, classes]))
        start += part.num_examples
    examples, classes = np.concatenate(pairs, axis=1)
    factors = compute_repeat_factors(examples, classes, split.num_examples, threshold)
    return dataclasses.replace(split, repeat_factors=factors)


def find_worker_slice(worker: int, workers: int, global_batch_size: int) -> range:
    """Returns the examples of each global batch that a worker reads, counted in the batch."""
    return range(worker * global_batch_size // workers, (worker + 1) * global_batch_size // workers)


def build_training_dataset(
    split: SplitShards,
    source: ExampleSource,
    global_batch_size: int,
    batch_slice: range,
    seed: int,
    start_step: int,
    augmentation: Augmentation = _UNCHANGED,
    window: int | None = None,
) -> tf.data.Dataset:
    """Returns endless batches from `start_step` on: this worker's part of each.

    `window` is the number of shards whose examples are permuted together. None is the whole split.
    """
    order = make_order(split, seed, window)
    slice_b = tf.constant(batch_slice, tf.int64)

    def draw(step: tf.Tensor) -> StatelessRandom:
        return StatelessRandom(seed, *order.compute(step * global_batch_size + slice_b))

    steps = tf.data.Dataset.range(start_step, _MAX_STEPS)
    return source.make_batches(steps, draw, augmentation, global_batch_size).prefetch(2)


def read_step_examples(
    split: SplitShards,
    global_batch_size: int,
    seed: int,
    step: int,
    source: EncodedSource | StreamedSource,
    augmentation: Augmentation = _UNCHANGED,
    window: int | None = None,
) -> list[bytes]:
    """Returns the whole global batch of one step, as it lies in the shards.

    The batch consists of serialised tf.train.Examples, in the order of the batch. The three other
    examples of a mosaic follow its own example. Those that others are mixed with come last.
    """
    positions_B = step * global_batch_size + tf.range(global_batch_size, dtype=tf.int64)
    rng = StatelessRandom(seed, *make_order(split, seed, window).compute(positions_B))
    return list(source.read(augmentation.get_example_indices(rng)).numpy())
