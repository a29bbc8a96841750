from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from workshop import remove_from_tests

from pipeline_ops.contracts.manifest import read_manifest, write_manifest
from pipeline_ops.contracts.shards import DatasetFigures, shard_paths, shards_of

BATCH = 60
DIGITS = Path(__file__).resolve().parents[2] / "configs" / "digits.yaml"


REMOVED = ((0, 3, 174), (), (5,), tuple(range(20, 60)))
"""By shard: positions that a later generation has removed; each shard of the train split holds 175."""


@pytest.fixture(params=["in memory", "streamed", "in memory with removals", "streamed with removals"])
def split(request, dataset):
    """The train split, small enough for memory, and the same as if it were not; whole, and after removals."""
    from pipeline_ops.input.dataset import MAX_BYTES_IN_MEMORY, Split

    manifest = read_manifest(dataset)
    figures = DatasetFigures.model_validate(manifest.figures)
    num_bytes = sum(f.num_bytes for f in shards_of(manifest, "train")) if "in memory" in request.param else MAX_BYTES_IN_MEMORY + 1
    split = Split(tuple(shard_paths(dataset, manifest, "train")), figures.num_examples["train"], num_bytes)
    if "removals" not in request.param:
        return split
    return dataclasses.replace(split, removed=REMOVED, num_examples=split.num_examples - sum(map(len, REMOVED)))


def parse():
    from pipeline_ops.models.classification import Classification

    return Classification((16, 16, 1)).parse


def batches(split, count, worker=0, workers=1, start_step=0, seed=3):
    """Images and labels of the first batches."""
    from pipeline_ops.input.dataset import Slice, training_batches

    part = Slice.of(worker, workers, BATCH)
    return [(x.numpy(), y.numpy()) for x, y in training_batches(split, parse(), BATCH, part, seed, start_step).take(count)]


def same(a, b) -> bool:
    return len(a) == len(b) and all((x == u).all() and (y == v).all() for (x, y), (u, v) in zip(a, b, strict=True))


def test_the_workers_slices_make_up_the_global_batches(split):
    whole, parts = batches(split, 15), [batches(split, 15, worker, 4) for worker in range(4)]
    joined = [tuple(np.concatenate([parts[w][step][i] for w in range(4)]) for i in range(2)) for step in range(15)]
    assert same(whole, joined)


@pytest.mark.parametrize("step", [1, 10, 11, 12, 25])
def test_resuming_at_a_step_gives_what_would_have_come(split, step):
    assert split.steps_per_epoch(BATCH) == (10 if split.removed else 11)  # so the steps lie within, at and beyond the end of an epoch
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

    counts = [sum(len(y) for _, y in evaluation_batches(split, parse(), 64, worker, 3)) for worker in range(3)]
    assert sum(counts) == split.num_examples
    assert max(counts) - min(counts) <= 1


def examples_of(split) -> list[bytes]:
    from pipeline_ops.input.records import read_records

    return list(read_records(split.paths, split.removed).as_numpy_iterator())


def test_what_is_removed_is_read_by_nobody(split):
    """Training, evaluation, and what a served model is asked, against the shards as they are."""
    from pipeline_ops.input.dataset import evaluation_batches
    from pipeline_ops.input.records import read_records
    from pipeline_ops.input.served import read_encoded

    every = [list(read_records([path]).as_numpy_iterator()) for path in split.paths]
    removed = split.removed or ((),) * len(every)
    wanted = [example for examples, positions in zip(every, removed, strict=True) for i, example in enumerate(examples) if i not in positions]
    assert len(wanted) == split.num_examples
    assert examples_of(split) == wanted
    assert sum(len(y) for _, y in evaluation_batches(split, parse(), 64)) == len(wanted)
    keys = [key for batch in read_encoded(split.paths, 100, split.removed) for key in batch.keys]
    assert len(keys) == len(set(keys)) == len(wanted)
    one_epoch = np.concatenate([y for _, y in batches(split, split.steps_per_epoch(BATCH))])
    assert len(one_epoch) == len(wanted) // BATCH * BATCH


def test_training_never_sees_an_image_that_is_removed(split):
    import tensorflow as tf

    from pipeline_ops.contracts.shards import ENCODED

    def images(examples) -> set[bytes]:
        parsed = tf.io.parse_example(examples, {ENCODED: tf.io.FixedLenFeature([], tf.string)})[ENCODED].numpy()
        return {tf.io.decode_image(encoded).numpy().tobytes() for encoded in parsed}

    seen = {image.tobytes() for x, _ in batches(split, 4 * split.steps_per_epoch(BATCH)) for image in x}
    assert seen <= images(examples_of(split))


def test_training_opens_a_data_set_without_what_was_removed_from_it(dataset, tmp_path):
    """The splits of a worker, as its manifest says them."""
    from pipeline_ops.contracts.config import load_config
    from pipeline_ops.contracts.plan import plan_job
    from pipeline_ops.training.worker import open_splits

    uri = remove_from_tests(dataset, tmp_path / "later", [1, 2])
    manifest = read_manifest(uri)
    validation = shards_of(manifest, "validation")[1].path
    write_manifest(tmp_path / "later", manifest.model_copy(update={"figures": manifest.figures | {"removed": {validation: [3]}}}))
    config = load_config(DIGITS, {"storage.root": str(tmp_path / "root")})
    train, found, _ = open_splits(plan_job("train", config, "run", {"preprocess": uri}).request)
    assert train.removed == ((), (), (), ())
    assert found.removed == ((), (3,), (), ())
