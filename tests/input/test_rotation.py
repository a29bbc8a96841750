"""Rotation: that of an independent computation, by the drawn angle, also of boxes."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline_ops.config.train import AugmentOptions

DEGREES = 40


def draw_rng(count: int, first: int = 0):
    import tensorflow as tf

    from pipeline_ops.input.order import StatelessRandom

    examples = tf.range(first, first + count, dtype=tf.int64)
    return StatelessRandom(1, tf.zeros_like(examples), examples)


def find_angles(rng, degrees: float) -> np.ndarray:
    """Returns the drawn angles, float [b], in radians."""
    from pipeline_ops.input.augment import ANGLE

    places = np.floor(rng.uniform_many(ANGLE, 1).numpy()[:, 0] * 4096)
    return np.radians(-degrees + 2 * degrees * places / 4095)


@pytest.fixture(scope="module", params=["china.jpg", "flower.jpg"])
def picture(request) -> np.ndarray:
    from sklearn.datasets import load_sample_image

    return load_sample_image(request.param)[::3, ::3]


def rotate(images: np.ndarray, rng, degrees: float) -> np.ndarray:
    import tensorflow as tf

    from pipeline_ops.input.augment import ImageAugmentation

    config = AugmentOptions(rotation=degrees)
    return ImageAugmentation(config).apply(tf.constant(images), None, rng)[0].numpy()


@pytest.mark.parametrize("degrees", [5, DEGREES, 180])
def test_pictures_are_turned_as_scipy_turns_them(picture, degrees):
    from scipy.ndimage import affine_transform

    rng = draw_rng(6)
    found = rotate(np.repeat(picture[None], 6, 0), rng, degrees)
    center = (np.array(picture.shape[:2]) - 1) / 2
    for image, angle in zip(found, find_angles(rng, degrees), strict=True):
        # Of rows and columns.
        matrix = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        expected = np.stack(
            [
                affine_transform(
                    picture[..., channel].astype(float),
                    matrix,
                    center - matrix @ center,
                    order=1,
                    mode="nearest",
                )
                for channel in range(3)
            ],
            axis=-1,
        )
        assert abs(image - expected).max() <= 0.51


def test_all_angles_up_to_the_given_one_are_drawn_alike():
    from scipy.stats import kstest

    angles = np.degrees(find_angles(draw_rng(4000), DEGREES))
    assert kstest(angles, "uniform", (-DEGREES, 2 * DEGREES)).statistic < 0.03
    one = np.zeros([4000, 9, 9, 1], np.uint8)
    one[:, 4, 8] = 255  # at the right end of the middle row
    bright = rotate(one, draw_rng(4000), DEGREES)[..., 0].astype(float)
    rows = (bright.sum(2) * np.arange(9)).sum(1) / bright.sum((1, 2))
    expected = 4 - 4 * np.sin(np.radians(angles))
    inside = abs(angles) < 25
    assert abs(rows - expected)[inside].max() < 0.7


def test_an_example_is_turned_alike_in_any_batch_and_on_its_own():
    images = np.random.default_rng(1).integers(0, 256, [40, 11, 15, 3], np.uint8)
    whole = rotate(images, draw_rng(40), DEGREES)
    parts = [
        rotate(images[n : n + 3], draw_rng(len(images[n : n + 3]), n), 40) for n in range(0, 40, 3)
    ]
    assert (whole == np.concatenate(parts)).all()


@pytest.mark.parametrize("degrees", [10, 90])
def test_a_box_is_the_one_around_the_turned_object(degrees):
    """The test measures boxes in the pixels: those of one rectangle in each image."""
    import tensorflow as tf

    from pipeline_ops.input.augment import build_augmentation
    from pipeline_ops.models.boxes import Boxes

    count, height, width = 60, 90, 120
    generator = np.random.default_rng(2)
    images, corners = np.zeros([count, height, width, 1], np.uint8), []
    for image in images:
        top, left = generator.integers(5, 50), generator.integers(5, 70)
        bottom, right = top + generator.integers(15, 35), left + generator.integers(15, 45)
        image[top:bottom, left:right] = 255
        corners.append([[top / height, left / width, bottom / height, right / width]])
    boxes = Boxes(
        tf.constant(corners, tf.float32), tf.zeros([count, 1], tf.int32), tf.zeros([count, 1], bool)
    )
    config = AugmentOptions(rotation=degrees, min_visible=0.9)
    changes = build_augmentation(config, "detection", count)
    turned, labels = changes.apply(tf.constant(images), boxes, draw_rng(count))
    plain = build_augmentation(AugmentOptions(), "detection", count)
    assert (plain.apply(tf.constant(images), boxes, draw_rng(count))[0].numpy() == images).all()
    pixels, crowds = labels.to_pixels(height, width).numpy()[:, 0], labels.is_crowd.numpy()[:, 0]
    touches = (pixels[:, :2] < 0.01).any(1) | (pixels[:, 2:] > [height - 0.01, width - 0.01]).any(1)
    for image, box, is_cut in zip(turned.numpy()[..., 0], pixels, touches, strict=True):
        rows, columns = np.nonzero(image > 200)
        measured = np.array([rows.min(), columns.min(), rows.max() + 1, columns.max() + 1])
        outside = (measured - box) * [1, 1, -1, -1]
        assert outside.min() > -1.5 and (outside.max() < 2.5 or is_cut)
    assert (degrees == 90) <= crowds.sum() <= touches.sum()


def test_mosaics_and_crops_are_made_of_turned_images():
    import tensorflow as tf

    from pipeline_ops.input.augment import build_augmentation
    from pipeline_ops.models.boxes import Boxes

    images = np.random.default_rng(1).integers(0, 256, [8, 24, 24, 1], np.uint8)
    boxes = Boxes(
        tf.tile(tf.constant([[[0.3, 0.3, 0.6, 0.6]]]), [8, 1, 1]),
        tf.zeros([8, 1], tf.int32),
        tf.zeros([8, 1], bool),
    )
    for options in ({"mosaic": 1.0}, {"crops": [{}]}, {"scale": {"max": 1.5}}):
        found = []
        for rotation in (0.0, 30.0):
            config = AugmentOptions(rotation=rotation, **options)
            changes = build_augmentation(config, "detection", 8)
            wanted = changes.get_example_indices(draw_rng(8))
            loaded = tf.gather(images, wanted), Boxes(*(tf.gather(each, wanted) for each in boxes))
            found.append(changes.apply(*loaded, draw_rng(8)))
        (plain, _), (turned, labels) = found
        assert plain.shape == turned.shape and (plain != turned).numpy().any(axis=(1, 2, 3)).all()
        corners = labels.corners.numpy()
        assert ((corners >= 0) & (corners <= 1)).all()
