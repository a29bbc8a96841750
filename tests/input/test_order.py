"""The order of training examples: arithmetic on (seed, epoch, position)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.input.batches import find_worker_slice
from pipeline_ops.input.reading import SplitShards
from pipeline_ops.served.client import read_true_boxes
from pipeline_ops.storage.open_store import open_path

GOLDEN = [418, 289, 35, 595, 518, 515, 634, 449, 292, 533]
"""Five examples at the end of an epoch of 700, and five at the beginning of the next."""


def make_split(sizes) -> SplitShards:
    return SplitShards(
        tuple(f"{number}" for number in range(len(sizes))), sum(sizes), 0, (), tuple(sizes)
    )


def numbers(order, start: int, end: int) -> np.ndarray:
    import tensorflow as tf

    return order.compute(tf.range(start, end, dtype=tf.int64))[1].numpy()


def shards_of(sizes, examples: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.cumsum(sizes), examples, "right")


SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(lambda s: sum(s) >= 3)
WINDOWS = st.none() | st.integers(1, 14)
SEEDS = st.integers(0, 2**31)


@settings(max_examples=40, deadline=None)
@given(sizes=SIZES, window=WINDOWS, seed=SEEDS, epoch=st.integers(0, 10**6))
def test_each_example_comes_exactly_once_in_an_epoch(sizes, window, seed, epoch):
    from pipeline_ops.input.batches import make_order

    order, total = make_order(make_split(sizes), seed, window), sum(sizes)
    assert sorted(numbers(order, epoch * total, (epoch + 1) * total)) == list(range(total))


@settings(max_examples=40, deadline=None)
@given(sizes=SIZES, window=WINDOWS, seed=SEEDS, data=st.data())
def test_any_part_of_the_order_is_the_same_without_what_comes_before_it(sizes, window, seed, data):
    """This is why a gang of any size resumes at any step, and why its slices make up the batch."""
    from pipeline_ops.input.batches import make_order

    order, total = make_order(make_split(sizes), seed, window), sum(sizes)
    end = 3 * total
    whole = numbers(order, 0, end)
    batch = data.draw(st.integers(3, total))
    step = data.draw(st.integers(0, end // batch - 1))
    expected = whole[step * batch : (step + 1) * batch].tolist()
    for workers in (1, 2, 3):
        parts = [find_worker_slice(worker, workers, batch) for worker in range(workers)]
        found = [
            example
            for part in parts
            for example in numbers(order, step * batch + part.start, step * batch + part.stop)
        ]
        assert found == expected


@settings(max_examples=40, deadline=None)
@given(sizes=SIZES, window=st.integers(1, 14), seed=SEEDS, epoch=st.integers(0, 1000))
def test_a_window_is_used_up_before_the_next_one_begins(sizes, window, seed, epoch):
    from pipeline_ops.input.batches import make_order

    order, total = make_order(make_split(sizes), seed, window), sum(sizes)
    found = shards_of(sizes, numbers(order, epoch * total, (epoch + 1) * total))
    place = 0
    upcoming = list(order.list_upcoming_shards(epoch * total))
    assert sorted(upcoming) == list(range(len(sizes)))
    for first in range(0, len(sizes), window):
        shards = upcoming[first : first + window]
        count = sum(sizes[shard] for shard in shards)
        assert set(found[place : place + count]) <= set(shards)
        if count:
            ahead = order.list_upcoming_shards(epoch * total + place)
            assert set(found[place : place + count]) <= set(ahead[:window])
        place += count


def test_the_order_of_all_examples_is_that_of_earlier_versions():
    from pipeline_ops.input.batches import make_order

    assert numbers(make_order(make_split([700]), 3, None), 695, 705).tolist() == GOLDEN


@pytest.mark.parametrize("window", [4, 40])
def test_a_window_has_no_trace_of_the_order_in_the_shards(window):
    from pipeline_ops.input.batches import make_order

    sizes = [50] * 40
    order, total = make_order(make_split(sizes), 5, window), 2000
    epochs = [numbers(order, epoch * total, (epoch + 1) * total) for epoch in range(3)]
    within = [examples % 50 for examples in epochs]
    pairs = [
        (within[0], within[1]),
        (within[1], within[2]),
        (within[0], np.arange(total) % 50),
        (within[0][1:], within[0][:-1]),
        (shards_of(sizes, epochs[0]), shards_of(sizes, epochs[1])),
    ]
    assert max(abs(np.corrcoef(a, b)[0, 1]) for a, b in pairs) < 0.15


def test_another_seed_is_another_order():
    from pipeline_ops.input.batches import make_order

    split = make_split([50] * 40)
    first, second = (numbers(make_order(split, seed, 4), 0, 100).tolist() for seed in (1, 2))
    assert first != second


def test_repeat_factors_are_those_of_the_paper():
    """Eight images hold class 0, two of them class 1, one class 2 and none class 3."""
    from pipeline_ops.input.order import compute_repeat_factors

    examples = [0, 1, 2, 3, 4, 5, 6, 7, 1, 5, 5, 5]
    classes = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 2]
    factors = compute_repeat_factors(np.array(examples), np.array(classes), 8, threshold=0.5)
    assert factors == pytest.approx([1, np.sqrt(2), 1, 1, 1, 2, 1, 1])
    nothing = np.empty(0, np.int64)
    assert compute_repeat_factors(nothing, nothing, 3, threshold=0.5).tolist() == [1, 1, 1]


FACTORS = st.lists(st.floats(1, 9), min_size=2, max_size=40).map(np.array)


@settings(max_examples=40, deadline=None)
@given(factors=FACTORS, seed=SEEDS, number=st.integers(0, 10**6))
def test_each_example_comes_as_often_in_a_round_as_its_factor_says(factors, seed, number):
    from pipeline_ops.input.order import RepeatedOrder

    order, total = RepeatedOrder(factors, seed), int(np.ceil(factors.sum()))
    found = numbers(order, number * total, (number + 1) * total)
    exact = factors * total / factors.sum()
    copies = np.bincount(found, minlength=len(factors))
    assert (copies >= np.floor(exact - 1e-6)).all() and (copies <= np.ceil(exact + 1e-6)).all()
    # Any part is the same without what comes before it.
    start = number * total + 1
    assert numbers(order, start, start + 1).tolist() == found[1:2].tolist()


def test_over_many_rounds_the_copies_have_the_mean_of_the_factors_and_their_own_changes():
    import tensorflow as tf

    from pipeline_ops.input.order import RepeatedOrder

    factors = np.array([1.0, 1.5, 1.25, 3.0, 2.25])
    order = RepeatedOrder(factors, 1)
    positions = tf.range(9 * 2000, dtype=tf.int64)
    changes, examples = order.compute(positions)
    assert np.bincount(examples) / 2000 == pytest.approx(factors, abs=0.05)
    assert len(np.unique(changes)) == len(positions)
    assert numbers(order, 0, 90).tolist() != numbers(order, 90, 180).tolist()
    assert numbers(RepeatedOrder(factors, 2), 0, 90).tolist() != numbers(order, 0, 90).tolist()


def test_the_classes_of_all_examples_are_read_from_their_labels(scenes, tmp_path):
    from pipeline_ops.input.batches import repeat_rare_classes
    from pipeline_ops.input.reading import open_split
    from pipeline_ops.job.local_inputs import HostDataset
    from pipeline_ops.models.center_detector import make_head
    from pipeline_ops.models.detection import Detection
    from pipeline_ops.system.disk_cache import HostCache

    cache = HostCache(tmp_path, 1 << 30)
    dataset = HostDataset(scenes, read_manifest(open_path(scenes)), cache, is_streamed=False)
    split, shape = open_split(dataset, "train"), (128, 128, 1)
    task = Detection(shape, make_head(shape, 10))
    factors = repeat_rare_classes(split, task.parse, task.list_classes, 0.9, cache).repeat_factors
    boxes = [scene.classes for scene in read_true_boxes(split.paths)]
    shares = [np.mean([index in each for each in boxes]) for index in range(10)]
    assert factors == pytest.approx(
        [max(1, *(np.sqrt(0.9 / shares[index]) for index in each)) for each in boxes]
    )
    assert factors.max() > 1.2


def test_the_class_of_each_example_of_a_classifier_is_read_from_its_label(dataset, tmp_path):
    from pipeline_ops.input.batches import repeat_rare_classes
    from pipeline_ops.input.reading import open_split
    from pipeline_ops.job.local_inputs import HostDataset
    from pipeline_ops.models.classification import Classification
    from pipeline_ops.served.client import read_encoded_batches
    from pipeline_ops.system.disk_cache import HostCache

    cache = HostCache(tmp_path, 1 << 30)
    opened = HostDataset(dataset, read_manifest(open_path(dataset)), cache, is_streamed=False)
    split, task = open_split(opened, "train"), Classification(opened.figures.image_shape)
    told: list[tuple[int, int, str]] = []
    factors = repeat_rare_classes(
        split, task.parse, task.list_classes, 0.1, cache, lambda *each: told.append(each)
    ).repeat_factors
    assert told[-1] == (split.num_examples, split.num_examples, "labels")
    [batch] = read_encoded_batches(split.paths, split.num_examples)
    shares = np.bincount(batch.labels) / split.num_examples
    assert factors == pytest.approx(np.maximum(1, np.sqrt(0.1 / shares[batch.labels])))
    assert factors.max() > 1


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("workers", [2, 4])
def test_the_parts_of_the_workers_are_balanced_by_class_to_within_chance(workers, window):
    """The split lies sorted by class in its shards. A worker's part is a slice of each batch,
    and batches follow the permutation. All classes of 20 epochs are looked at."""
    from scipy.stats import chi2_contingency

    from pipeline_ops.input.batches import make_order

    sizes, batch = (100,) * 8, 32
    total = sum(sizes)
    for seed in range(20):
        examples = numbers(make_order(make_split(sizes), seed, window), 0, total)
        batches = examples.reshape(-1, batch)
        parts = [batches[:, find_worker_slice(worker, workers, batch)] for worker in range(workers)]
        table = [np.bincount(part.ravel() // 80, minlength=total // 80) for part in parts]
        assert chi2_contingency(table).pvalue > 1e-4
