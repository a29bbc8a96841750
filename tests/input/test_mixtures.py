"""Mixup and cutmix: partner, share and pixels depend on (seed, epoch, example) alone, and are those
of the papers.
"""

from __future__ import annotations

import numpy as np
import pytest

from pipeline_ops.config.train import AugmentOptions

COUNT = 60
SHAPE = (14, 18, 3)


@pytest.fixture(scope="module")
def split() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, [COUNT, *SHAPE], np.uint8)


def draw_rng(examples, epoch: int = 0, seed: int = 1):
    import tensorflow as tf

    from pipeline_ops.input.order import StatelessRandom

    examples = tf.constant([*examples], tf.int64)
    return StatelessRandom(seed, tf.zeros_like(examples) + epoch, examples)


def mix(split, options, examples=range(COUNT), **draws):
    """Returns images, and numbers of both examples and the share, as arrays."""
    import tensorflow as tf

    from pipeline_ops.input.augment import build_augmentation

    rng = draw_rng(examples, **draws)
    changes = build_augmentation(AugmentOptions(**options), "classification", len(split))
    wanted = changes.get_example_indices(rng)
    images, labels = changes.apply(tf.gather(split, wanted), wanted, rng)
    assert images.dtype == tf.uint8 and (labels.first == rng.examples_b).numpy().all()
    return images.numpy(), *(each.numpy() for each in labels)


def mix_up(images_one, images_two, share):
    """Mixes as the example "mixup" of keras.io does."""
    weights = share.reshape(-1, 1, 1, 1)
    return images_one * weights + images_two * (1 - weights)


def cut_mix(image_one, image_two, share, row, column):
    """Mixes two images as the example "cutmix" of keras.io does. The center is given.

    Returns the image and the share of the first.
    """
    height, width = image_one.shape[:2]
    ratio = np.sqrt(1 - share)
    cut_height, cut_width = int(height * ratio), int(width * ratio)
    top, bottom = (np.clip(row + sign * (cut_height // 2), 0, height) for sign in (-1, 1))
    left, right = (np.clip(column + sign * (cut_width // 2), 0, width) for sign in (-1, 1))
    mixed = image_one.copy()
    mixed[top:bottom, left:right] = image_two[top:bottom, left:right]
    return mixed, 1 - (bottom - top) * (right - left) / (height * width)


def find_draws(rng, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the share that was drawn for each example, and the numbers of its center."""
    from scipy.stats import beta

    from pipeline_ops.input.augment import MIXTURE

    numbers = rng.uniform_many(MIXTURE, 4).numpy().astype(float)
    return beta.ppf((np.floor(numbers[:, 1] * 4096) + 0.5) / 4096, alpha, alpha), numbers[:, 2:]


def test_mixup_is_that_of_the_example(split):
    images, first, second, share = mix(split, {"mixup": 0.2})
    expected = mix_up(split[first].astype(float), split[second].astype(float), share)
    assert abs(images - expected).max() <= 0.51
    assert share == pytest.approx(find_draws(draw_rng(range(COUNT)), 0.2)[0], abs=1e-6)


@pytest.mark.parametrize("alpha", [0.25, 1.0])
def test_cutmix_is_that_of_the_example(split, alpha):
    images, first, second, shares = mix(split, {"cutmix": alpha})
    drawn, centers = find_draws(draw_rng(range(COUNT)), alpha)
    rows, columns = np.floor(centers * SHAPE[:2]).astype(int).T
    for number in range(COUNT):
        expected, share = cut_mix(
            split[first[number]],
            split[second[number]],
            drawn[number],
            rows[number],
            columns[number],
        )
        assert (images[number] == expected).all()
        assert shares[number] == pytest.approx(share, abs=1e-6)
    assert len(set(shares)) > 20


@pytest.mark.parametrize("alpha", [0.1, 0.4, 1.0, 3.0])
def test_shares_have_their_distribution_and_partners_are_any_examples(alpha):
    from scipy.stats import beta, chisquare, ks_2samp

    split = np.zeros([COUNT, 1, 1, 1], np.uint8)
    parts = [mix(split, {"mixup": alpha}, epoch=epoch)[1:] for epoch in range(50)]
    first, second, share = (np.concatenate(each) for each in zip(*parts, strict=True))
    expected = beta.rvs(alpha, alpha, size=20_000, random_state=1).astype(np.float32)
    assert ks_2samp(share, expected).statistic < 0.04
    assert chisquare(np.bincount(second, minlength=COUNT)).pvalue > 1e-3
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05
    assert abs(np.corrcoef(second, share)[0, 1]) < 0.05


def test_with_both_each_example_has_one_of_the_two(split):
    images, first, second, share = mix(split, {"mixup": 1.0, "cutmix": 1.0})
    pairs = zip(images, split[first], split[second], strict=True)
    is_cut = [((image == one) | (image == other)).all() for image, one, other in pairs]
    assert 0.3 < np.mean(is_cut) < 0.7
    blended = mix_up(split[first].astype(float), split[second].astype(float), share)
    assert abs(images - blended)[~np.array(is_cut)].max() <= 0.51


@pytest.mark.parametrize(
    "options", [{"mixup": 0.3}, {"cutmix": 1.0}, {"mixup": 1.0, "cutmix": 1.0}]
)
def test_an_example_is_mixed_alike_in_any_batch_and_otherwise_in_each_epoch(split, options):
    options = options | {"flip_left_right": True, "rotation": 20.0, "brightness": 0.2}
    whole = mix(split, options)
    parts = [mix(split, options, range(n, min(n + 7, COUNT))) for n in range(0, COUNT, 7)]
    for one, others in zip(whole, zip(*parts, strict=True), strict=True):
        assert (one == np.concatenate(others)).all()
    for other in (mix(split, options, epoch=1), mix(split, options, seed=2)):
        assert (other[0] != whole[0]).any(axis=(1, 2, 3)).mean() > 0.9
        assert (other[2] != whole[2]).mean() > 0.9


def test_both_images_are_changed_before_and_the_own_one_as_without_a_mixture(split):
    import tensorflow as tf

    from pipeline_ops.input.augment import build_augmentation

    options = {"flip_left_right": True, "shift": 0.2, "brightness": 0.2}
    rng = draw_rng(range(COUNT))
    plain = build_augmentation(AugmentOptions(**options), "classification", COUNT)
    own = plain.apply(tf.constant(split), None, rng)[0].numpy()
    images, _, second, _ = mix(split, options | {"cutmix": 1.0})
    is_own = (images == own).all(-1)
    assert 0.3 < is_own.mean() < 0.9
    is_other = (images == split[second]).all(-1)
    assert (is_own | is_other).mean() < 0.95  # the others are changed, too


def test_the_batches_of_any_number_of_workers_and_after_a_restart_are_the_same(dataset):
    from pipeline_ops.contract.dataset import list_shard_paths
    from pipeline_ops.contract.manifest import read_manifest
    from pipeline_ops.input.augment import build_augmentation
    from pipeline_ops.input.batches import (
        build_training_dataset,
        find_worker_slice,
        read_step_examples,
    )
    from pipeline_ops.input.reading import SplitShards
    from pipeline_ops.input.sources import MemorySource
    from pipeline_ops.models.classification import Classification

    paths = tuple(list_shard_paths(dataset, read_manifest(dataset), "train"))
    shards = SplitShards(paths, 700, 1 << 20)
    source = MemorySource(shards, Classification((16, 16, 1)).parse)
    config = AugmentOptions(mixup=0.4, cutmix=1.0, rotation=15, flip_left_right=True)
    changes = build_augmentation(config, "classification", 700)

    def read(worker=0, workers=1, start=0, count=8):
        part = find_worker_slice(worker, workers, 60)
        batches = build_training_dataset(shards, source, 60, part, 3, start, changes)
        assert batches.element_spec[0].shape == (len(part), 16, 16, 1)
        return [[images, *labels] for images, labels in batches.take(count).as_numpy_iterator()]

    whole = read()
    parts = [read(worker, 3) for worker in range(3)]
    for step, pieces in zip(whole, zip(*parts, strict=True), strict=True):
        for one, others in zip(step, zip(*pieces, strict=True), strict=True):
            assert (one == np.concatenate(others)).all()
    for step, again in zip(whole[5:], read(start=5, count=3), strict=True):
        assert all((a == b).all() for a, b in zip(step, again, strict=True))
    assert len(read_step_examples(shards, 60, 3, 2, source_of(shards), changes)) == 120


def source_of(shards):
    from pathlib import Path

    from pipeline_ops.input.sources import EncodedSource
    from pipeline_ops.models.classification import Classification
    from pipeline_ops.system.disk_cache import HostCache

    return EncodedSource(shards, Classification((16, 16, 1)).parse, HostCache(Path("unused"), 0))
