from __future__ import annotations

import numpy as np
import pytest

from pipeline_ops.contracts.manifest import read_manifest
from pipeline_ops.contracts.shards import DatasetFigures, shard_paths, shards_of

BATCH = 60


@pytest.fixture(params=["in memory", "streamed"])
def split(request, dataset):
    """The train split, small enough for memory, and the same as if it were not."""
    from pipeline_ops.input.dataset import MAX_BYTES_IN_MEMORY, Split

    manifest = read_manifest(dataset)
    figures = DatasetFigures.model_validate(manifest.figures)
    num_bytes = sum(f.num_bytes for f in shards_of(manifest, "train")) if request.param == "in memory" else MAX_BYTES_IN_MEMORY + 1
    return Split(tuple(shard_paths(dataset, manifest, "train")), figures.num_examples["train"], num_bytes, figures.image_shape)


def batches(split, count, worker=0, workers=1, start_step=0, seed=3):
    """Images and labels of the first batches."""
    from pipeline_ops.input.dataset import Slice, training_batches

    part = Slice.of(worker, workers, BATCH)
    return [(x.numpy(), y.numpy()) for x, y in training_batches(split, BATCH, part, seed, start_step).take(count)]


def same(a, b) -> bool:
    return len(a) == len(b) and all((x == u).all() and (y == v).all() for (x, y), (u, v) in zip(a, b, strict=True))


def test_the_workers_slices_make_up_the_global_batches(split):
    whole, parts = batches(split, 15), [batches(split, 15, worker, 4) for worker in range(4)]
    joined = [tuple(np.concatenate([parts[w][step][i] for w in range(4)]) for i in range(2)) for step in range(15)]
    assert same(whole, joined)


@pytest.mark.parametrize("step", [1, 10, 11, 12, 25])
def test_resuming_at_a_step_gives_what_would_have_come(split, step):
    assert split.steps_per_epoch(BATCH) == 11  # so the steps lie within, at and beyond the end of an epoch
    assert same(batches(split, 30)[step:], batches(split, 30 - step, start_step=step))


def test_no_example_comes_twice_in_an_epoch(split):
    steps = split.steps_per_epoch(BATCH)
    images = np.concatenate([x for x, _ in batches(split, steps)])
    assert len({image.tobytes() for image in images}) > 0.99 * steps * BATCH  # a few digits are equal to the pixel


def test_every_epoch_and_every_seed_has_an_order_of_its_own(split):
    steps = split.steps_per_epoch(BATCH)
    assert not same(batches(split, 2), batches(split, 2, start_step=steps))
    assert not same(batches(split, 2), batches(split, 2, seed=4))


def test_evaluation_sees_every_example_once_over_all_workers(split):
    from pipeline_ops.input.dataset import evaluation_batches

    counts = [sum(len(y) for _, y in evaluation_batches(split, 64, worker, 3)) for worker in range(3)]
    assert sum(counts) == split.num_examples
    assert max(counts) - min(counts) <= 1
