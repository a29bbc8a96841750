from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from pipeline_ops.config.train import InputOptions
from pipeline_ops.contract.dataset import DatasetFigures, list_shard_paths, list_shards
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.errors import MachineError
from pipeline_ops.system.disk_cache import HostCache

BATCH = 60
UNUSED = HostCache(Path("unused"), 0)

REMOVED = ((0, 3, 174), (), (5,), tuple(range(20, 60)))
"""The positions that a later generation has removed, by shard.

Each shard of the train split holds 175 examples.
"""

SOURCES = ("encoded in memory", "encoded on disk", "decoded in memory", "decoded on disk")


@pytest.fixture(params=["whole", "with removals"])
def split(request, dataset):
    """The train split, whole and after removals."""
    from pipeline_ops.input.reading import SplitShards

    manifest = read_manifest(dataset)
    figures = DatasetFigures.model_validate(manifest.figures)
    num_bytes = sum(f.num_bytes for f in list_shards(manifest, "train"))
    split = SplitShards(
        tuple(list_shard_paths(dataset, manifest, "train")),
        figures.num_examples["train"],
        num_bytes,
    )
    if request.param == "whole":
        return split
    return dataclasses.replace(
        split, removed=REMOVED, num_examples=split.num_examples - sum(map(len, REMOVED))
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return HostCache(tmp_path_factory.mktemp("host"), 1 << 30)


def parse(image_shape=(16, 16, 1)):
    from pipeline_ops.models.classification import Classification

    return Classification(image_shape).parse


def source_of(name, split, cache):
    from pipeline_ops.input.sources import DiskSource, EncodedSource, MemorySource

    match name:
        case "encoded in memory":
            return EncodedSource(split, parse(), UNUSED)
        case "encoded on disk":
            return EncodedSource(split, parse(), cache, max_bytes_in_memory=0)
        case "decoded in memory":
            return MemorySource(split, parse())
        case "decoded on disk":
            return DiskSource(split, parse(), cache, "1")


def batches(split, count, worker=0, workers=1, start_step=0, seed=3, source=None):
    """Returns images and labels of the first batches."""
    from pipeline_ops.input.batches import build_training_dataset, find_worker_slice
    from pipeline_ops.input.sources import EncodedSource

    part, source = (
        find_worker_slice(worker, workers, BATCH),
        source or EncodedSource(split, parse(), UNUSED),
    )
    return [
        (x.numpy(), y.numpy())
        for x, y in build_training_dataset(split, source, BATCH, part, seed, start_step).take(count)
    ]


def same(a, b) -> bool:
    return len(a) == len(b) and all(
        (x == u).all() and (y == v).all() for (x, y), (u, v) in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("name", SOURCES)
def test_it_does_not_matter_where_examples_come_from(split, cache, name):
    assert same(batches(split, 15), batches(split, 15, source=source_of(name, split, cache)))


def test_long_preparations_tell_how_far_they_are(split, tmp_path):
    from pipeline_ops.input.sources import DiskSource, EncodedSource, MemorySource

    told: list[tuple[int, int, str]] = []
    cache = HostCache(tmp_path, 1 << 30)
    DiskSource(split, parse(), cache, "1", lambda *each: told.append(each))
    assert len(told) > 1 and told[-1] == (split.num_examples, split.num_examples, "decoded images")
    told.clear()
    MemorySource(split, parse(), lambda *each: told.append(each))
    assert told[0] == (0, split.num_examples, "decoded images")
    assert len(told) > 2 and told[-1] == (split.num_examples, split.num_examples, "decoded images")
    told.clear()
    EncodedSource(split, parse(), cache, 0, lambda *each: told.append(each))
    assert told[-1] == (len(split.paths), len(split.paths), "scanned shards")


def test_the_workers_slices_make_up_the_global_batches(split):
    whole = batches(split, 15)
    for workers in (2, 4):
        parts = [batches(split, 15, worker, workers) for worker in range(workers)]
        assert same(
            whole,
            [
                tuple(np.concatenate([part[step][i] for part in parts]) for i in range(2))
                for step in range(15)
            ],
        )


@pytest.mark.parametrize("step", [1, 10, 11, 12, 25])
def test_resuming_at_a_step_gives_what_would_have_come(split, step):
    assert split.compute_epoch_end_step(0, BATCH) == (
        11 if split.removed else 12
    )  # the steps are within, at and beyond the end of an epoch
    assert same(batches(split, 30)[step:], batches(split, 30 - step, start_step=step))


def test_a_step_far_away_costs_what_the_first_one_costs(split):
    """Earlier steps cost nothing: the ten-millionth step comes at once."""
    [(images, labels)] = batches(split, 1, start_step=10_000_000)
    assert images.shape == (BATCH, 16, 16, 1)
    assert len(labels) == BATCH


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_every_example_comes_exactly_once_in_each_epoch_whatever_the_number_of_workers(
    split, workers
):
    """No batch size divides the split, so the last batch continues with the next epoch."""
    from pipeline_ops.input.batches import read_step_examples
    from pipeline_ops.input.sources import EncodedSource

    epochs, source = 3, EncodedSource(split, parse(), UNUSED)
    steps = split.compute_epoch_end_step(epochs - 1, BATCH)
    assert split.num_examples % BATCH
    stream = [
        example
        for step in range(steps)
        for example in read_step_examples(split, BATCH, 3, step, source)
    ]
    for epoch in range(epochs):
        of_epoch = stream[epoch * split.num_examples : (epoch + 1) * split.num_examples]
        assert len(of_epoch) == split.num_examples
        assert sorted(of_epoch) == sorted(examples_of(split))
    parts = [batches(split, steps, worker, workers) for worker in range(workers)]
    labels = np.concatenate([part[step][1] for step in range(steps) for part in parts])
    assert (labels == labels_of(stream)).all()


def labels_of(examples) -> np.ndarray:
    import tensorflow as tf

    from pipeline_ops.contract.dataset import LABEL

    return tf.io.parse_example(examples, {LABEL: tf.io.FixedLenFeature([], tf.int64)})[
        LABEL
    ].numpy()


@pytest.mark.parametrize(
    ("num_examples", "batch", "ends"),
    [(700, 60, [12, 24, 35]), (660, 60, [11, 22, 33]), (61, 60, [2, 3, 4]), (60, 60, [1, 2, 3])],
)
def test_an_epoch_ends_with_the_step_that_uses_its_last_example(num_examples, batch, ends):
    from pipeline_ops.input.reading import SplitShards

    split = SplitShards((), num_examples, 0)
    assert [split.compute_epoch_end_step(epoch, batch) for epoch in range(3)] == ends


def test_every_epoch_and_every_seed_has_an_order_of_its_own(split):
    assert not same(
        batches(split, 2), batches(split, 2, start_step=split.compute_epoch_end_step(0, BATCH))
    )
    assert not same(batches(split, 2), batches(split, 2, seed=4))


def test_an_order_has_no_trace_of_the_order_in_the_shards(split):
    import tensorflow as tf

    from pipeline_ops.input.batches import make_order

    order = make_order(split, 3, None)
    numbers = [
        order.compute(epoch * split.num_examples + tf.range(split.num_examples, dtype=tf.int64))[
            1
        ].numpy()
        for epoch in range(3)
    ]
    pairs = [
        (numbers[0], numbers[1]),
        (numbers[1], numbers[2]),
        (numbers[0], np.arange(split.num_examples)),
        (numbers[0][1:], numbers[0][:-1]),
    ]
    assert max(abs(np.corrcoef(a, b)[0, 1]) for a, b in pairs) < 0.15


def test_what_does_not_fit_is_not_cached_and_that_is_said(split, cache):
    from pipeline_ops.input.order import GlobalOrder
    from pipeline_ops.input.sources import EncodedSource, open_example_source

    said = []
    options = InputOptions(cache="memory", cache_limit_mib=1)
    source = open_example_source(
        split, parse((16, 16, 1000)), options, cache, "1", said.append, GlobalOrder(1, 1)
    )
    assert isinstance(source, EncodedSource)
    assert "train.input.cache_limit_mib is 1" in said[0]


def test_offsets_and_decoded_images_are_made_once_for_a_host(split, tmp_path):
    cache = HostCache(tmp_path, 1 << 30)
    made = {}
    for _ in range(2):
        source_of("encoded on disk", split, cache), source_of("decoded on disk", split, cache)
        files = {
            path: path.stat().st_ino
            for path in tmp_path.rglob("*")
            if path.is_file() and not path.name.startswith(".")
        }
        assert len(files) == 3
        assert made in ({}, files)
        made = files


@pytest.mark.parametrize("kept", [slice(0, -5), slice(0, 5)])
def test_a_shard_that_is_cut_off_is_named(split, tmp_path, kept):
    from pipeline_ops.input.streaming import read_record_offsets

    shard = tmp_path / "train-00000-of-00001.tfrecord"
    shard.write_bytes(Path(split.paths[0]).read_bytes()[kept])
    with pytest.raises(
        MachineError, match=r"train-00000-of-00001.tfrecord is truncated .* record at byte \d+"
    ):
        read_record_offsets(shard)


def test_evaluation_sees_every_example_once_over_all_workers(split):
    from pipeline_ops.input.reading import build_evaluation_dataset

    counts = [
        sum(len(y) for _, y in build_evaluation_dataset(split, parse(), 64, worker, 3))
        for worker in range(3)
    ]
    assert sum(counts) == split.num_examples
    assert max(counts) - min(counts) <= 1


def examples_of(split) -> list[bytes]:
    from pipeline_ops.input.reading import read_records

    return list(read_records(split.paths, split.removed).as_numpy_iterator())


def test_what_is_removed_is_read_by_nobody(split):
    """Compares training, evaluation and the inputs of a served model with the shards."""
    from pipeline_ops.input.reading import build_evaluation_dataset, read_records
    from pipeline_ops.served.client import read_encoded_batches

    every = [list(read_records([path]).as_numpy_iterator()) for path in split.paths]
    removed = split.removed or ((),) * len(every)
    wanted = [
        example
        for examples, positions in zip(every, removed, strict=True)
        for i, example in enumerate(examples)
        if i not in positions
    ]
    assert len(wanted) == split.num_examples
    assert examples_of(split) == wanted
    assert sum(len(y) for _, y in build_evaluation_dataset(split, parse(), 64)) == len(wanted)
    keys = [
        key for batch in read_encoded_batches(split.paths, 100, split.removed) for key in batch.keys
    ]
    assert len(keys) == len(set(keys)) == len(wanted)


def test_training_never_sees_an_image_that_is_removed(split):
    import tensorflow as tf

    from pipeline_ops.contract.dataset import ENCODED

    def images(examples) -> set[bytes]:
        parsed = tf.io.parse_example(examples, {ENCODED: tf.io.FixedLenFeature([], tf.string)})[
            ENCODED
        ].numpy()
        return {tf.io.decode_image(encoded).numpy().tobytes() for encoded in parsed}

    seen = {
        image.tobytes()
        for x, _ in batches(split, split.compute_epoch_end_step(3, BATCH))
        for image in x
    }
    assert seen <= images(examples_of(split))
