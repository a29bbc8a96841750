"""Random augmentation: it depends only on seed, epoch and example."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline_ops.config.train import AugmentOptions, Scale

ALL = AugmentOptions(
    flip_left_right=True,
    flip_top_bottom=True,
    shift=0.2,
    scale={"min": 0.8, "max": 1.5},
    brightness=0.2,
    contrast=0.3,
    saturation=0.2,
)


def images(count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(60, 190, [count, 10, 10, 3], np.uint8)


def changed(
    config: AugmentOptions, batch: np.ndarray, first: int = 0, epoch: int = 0, seed: int = 1
) -> np.ndarray:
    import tensorflow as tf

    from pipeline_ops.input.augment import ImageAugmentation
    from pipeline_ops.input.order import StatelessRandom

    count = len(batch)
    rng = StatelessRandom(
        seed, tf.fill([count], np.int64(epoch)), tf.range(first, first + count, dtype=tf.int64)
    )
    return ImageAugmentation(config).apply(tf.constant(batch), None, rng)[0].numpy()


def test_without_a_change_images_are_what_they_were():
    assert (changed(AugmentOptions(), images(5)) == images(5)).all()


def test_an_example_is_changed_alike_in_any_batch():
    batch = images(12)
    whole = changed(ALL, batch)
    parts = [changed(ALL, batch[start : start + 4], first=start) for start in (0, 4, 8)]
    assert (whole == np.concatenate(parts)).all()
    assert whole.dtype == np.uint8


def test_each_epoch_and_each_seed_changes_otherwise():
    same = images(1).repeat(50, 0)
    results = [
        changed(ALL, same),
        changed(ALL, same, epoch=1),
        changed(ALL, same, seed=2),
        changed(ALL, same, first=50),
    ]
    assert len({result.tobytes() for result in results}) == 4
    assert len({image.tobytes() for image in results[0]}) > 45


def test_about_half_of_all_images_are_mirrored():
    batch = images(1).repeat(400, 0)
    mirrored = [
        (image == batch[0][:, ::-1]).all()
        for image in changed(AugmentOptions(flip_left_right=True), batch)
    ]
    assert 0.4 < np.mean(mirrored) < 0.6
    assert all(
        flipped or (image == batch[0]).all()
        for flipped, image in zip(
            mirrored, changed(AugmentOptions(flip_left_right=True), batch), strict=True
        )
    )


def test_a_shift_stays_within_its_bound_and_repeats_the_edge():
    batch = np.arange(10, dtype=np.uint8)[None, :, None, None].repeat(200, 0).repeat(10, 2)
    rows = changed(AugmentOptions(shift=0.2), batch)[:, :, 0, 0].astype(int)
    moves = {int(row[5]) - 5 for row in rows}
    assert moves == {-2, -1, 0, 1, 2}
    assert all((row == np.clip(np.arange(10) + row[5] - 5, 0, 9)).all() for row in rows)


def test_a_scaled_image_shows_a_part_of_itself_or_lies_within_its_repeated_edge():
    ramp = np.arange(40, 200, 4, dtype=np.uint8)[None, :, None, None].repeat(200, 0).repeat(40, 2)
    larger = changed(AugmentOptions(scale=Scale(max=2.0)), ramp)[:, :, 0, 0].astype(int)
    steps = np.diff(larger, axis=1)
    assert (
        {int(row.max() - row.min()) for row in larger} >= {90, 110, 130}
        and steps[:, 2:-2].min() >= 1
        and steps[:, 2:-2].max() <= 4
    )
    assert len({row[0] for row in larger}) > 15  # at different positions
    smaller = changed(AugmentOptions(scale=Scale(min=0.5)), ramp)[:, :, 0, 0].astype(int)
    assert (
        (smaller[:, 0] == 40).any()
        and (smaller[:, -1] == 196).any()
        and smaller.min() == 40
        and smaller.max() == 196
    )
    assert (np.diff(smaller, axis=1) >= 0).all() and (
        np.diff(smaller, axis=1)[:, 1:-1].max(1) > 4
    ).mean() > 0.8


def test_saturation_leaves_grey_as_it_is():
    grey = images(20)[..., :1].repeat(3, -1)
    assert (changed(AugmentOptions(saturation=0.5), grey) == grey).all()
    assert (changed(AugmentOptions(saturation=0.5), images(20)) != images(20)).mean() > 0.5


@pytest.mark.parametrize(
    ("config", "low", "high"),
    [
        (AugmentOptions(brightness=0.1), 100 - 26, 100 + 26),
        (AugmentOptions(contrast=0.5), 100, 100),
    ],
)
def test_brightness_moves_the_mean_and_contrast_does_not(config, low, high):
    batch = np.full([300, 4, 4, 1], 100, np.uint8)
    batch[:, ::2] = 50
    batch[:, 1::2] = 150
    result = changed(config, batch).astype(float)
    means = result.mean((1, 2, 3))
    assert low - 1 <= means.min() <= means.max() <= high + 1
    if config.contrast:
        assert 23 < result.std((1, 2, 3)).min() < 30 and 70 < result.std((1, 2, 3)).max() < 77
    else:
        assert means.max() - means.min() > 40


def test_a_crop_is_drawn_as_tensorflow_draws_it():
    """Each pixel tells its row and its column, so the corners of the result tell the part."""
    import tensorflow as tf
    from scipy.stats import ks_2samp

    size, count = 256, 3000
    rows, columns = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
    picture = np.stack([rows, columns, rows], axis=-1).astype(np.uint8)
    crop = {"min_area": 0.1, "max_area": 0.6, "min_aspect_ratio": 0.5, "max_aspect_ratio": 2.0}
    parts = []
    for first in range(0, count, 100):
        batch = np.broadcast_to(picture, [100, *picture.shape])
        cropped = changed(AugmentOptions(crops=[crop]), batch, first).astype(int)
        (top, left), (bottom, right) = (
            (cropped[:, corner, corner, 0], cropped[:, corner, corner, 1]) for corner in (0, -1)
        )
        parts.append(np.stack([top, left, bottom - top + 1, right - left + 1], axis=1))
    expected = []
    for seed in range(count):
        begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
            [size, size, 3],
            tf.zeros([1, 0, 4]),
            seed=[seed, 0],
            min_object_covered=0.0,
            aspect_ratio_range=(0.5, 2.0),
            area_range=(0.1, 0.6),
            use_image_if_no_bounding_boxes=True,
        )
        expected.append([*begin.numpy()[:2], *extent.numpy()[:2]])
    ours, theirs = np.concatenate(parts).astype(float), np.array(expected, float)
    for compute in (
        lambda part: part[:, 0],
        lambda part: part[:, 1],
        lambda part: part[:, 2] * part[:, 3],
        lambda part: part[:, 3] / part[:, 2],
    ):
        assert ks_2samp(compute(ours), compute(theirs)).statistic < 0.05


def test_crops_take_the_place_of_other_geometric_changes():
    with pytest.raises(ValueError, match="crops already vary size and place. Remove scale"):
        AugmentOptions(crops=[{}], shift=0.1)
    with pytest.raises(ValueError, match="min_area .0.5. is larger than max_area .0.2."):
        AugmentOptions(crops=[{"min_area": 0.5, "max_area": 0.2}])
