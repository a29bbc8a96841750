"""Augmentation of images with boxes: the boxes follow the pixels of their objects.

This holds for every change of an image, on every worker and after every restart.
"""

from __future__ import annotations

from math import ceil, floor

import numpy as np
import pytest

from pipeline_ops.config.train import AugmentOptions

HEIGHT, WIDTH = 48, 64
NUM_SCENES = 40
FULL = {
    "flip_left_right": True,
    "flip_top_bottom": True,
    "scale": {"min": 0.7, "max": 1.6},
    "mosaic": 0.5,
}
PIXELS = [
    pytest.param({"flip_left_right": True}, id="flip_left_right"),
    pytest.param({"flip_top_bottom": True}, id="flip_top_bottom"),
    pytest.param({"shift": 0.4}, id="shift"),
    pytest.param({"scale": {"max": 2.0}}, id="larger"),
    pytest.param({"scale": {"min": 0.5}}, id="smaller"),
    pytest.param({"mosaic": 1.0}, id="mosaic"),
    pytest.param(FULL, id="all"),
    pytest.param(
        {
            "crops": [{"min_area": 0.4, "min_overlap": 0}],
            "flip_left_right": True,
            "flip_top_bottom": True,
        },
        id="crop",
    ),
]


@pytest.fixture(scope="module")
def scenes():
    """Images and labels of a split.

    Each image is black and has one to four rectangles with different greys. They touch neither each
    other nor the edges.
    """
    return make_scenes()


def make_scenes():
    generator = np.random.default_rng(4)
    images, all_boxes = np.zeros([NUM_SCENES, HEIGHT, WIDTH, 1], np.uint8), []
    for image in images:
        boxes = []
        for number in range(generator.integers(1, 5)):
            top, left = 3 + 24 * (number // 2), 3 + 32 * (number % 2)
            height, width = generator.integers(8, 18, 2)
            image[top : top + height, left : left + width] = grey_of(number)
            boxes.append(
                [top / HEIGHT, left / WIDTH, (top + height) / HEIGHT, (left + width) / WIDTH]
            )
        all_boxes.append(boxes)
    return images, all_boxes


def grey_of(label: int) -> int:
    return 160 + 25 * label


def load_from(scenes, pad_to=None):
    """Loads examples as a source does, with boxes padded as in a split that is held in memory."""
    import tensorflow as tf

    from pipeline_ops.models.boxes import Boxes

    images, all_boxes = scenes
    most = pad_to or max(map(len, all_boxes))
    corners, classes = (
        np.zeros([NUM_SCENES, most, 4], np.float32),
        np.full([NUM_SCENES, most], -1, np.int32),
    )
    for number, boxes in enumerate(all_boxes):
        corners[number, : len(boxes)], classes[number, : len(boxes)] = boxes, range(len(boxes))

    def load(examples):
        return tf.gather(images, examples), Boxes(
            tf.gather(corners, examples),
            tf.gather(classes, examples),
            tf.zeros([len(examples), most], bool),
        )

    return load


def changed(scenes, options, epoch=0, examples=range(NUM_SCENES), seed=1, max_boxes=None):
    """Returns images, and for each image its boxes in pixels, their classes and `is_crowd`."""
    import tensorflow as tf

    from pipeline_ops.input.augment import build_augmentation
    from pipeline_ops.input.order import StatelessRandom

    rng = StatelessRandom(
        seed, tf.fill([len(examples)], np.int64(epoch)), tf.constant(list(examples), tf.int64)
    )
    augmentation = build_augmentation(AugmentOptions(**options), "detection", NUM_SCENES, max_boxes)
    loaded = load_from(scenes, max_boxes)(augmentation.get_example_indices(rng))
    images, labels = augmentation.apply(*loaded, rng)
    assert images.dtype == tf.uint8 and images.shape[1:] == (HEIGHT, WIDTH, 1)
    return images.numpy(), labels


def found(labels, number):
    """Returns [(class, corners in pixels, is_crowd)] of one image."""
    pixels = labels.to_pixels(HEIGHT, WIDTH).numpy()
    rows = zip(
        labels.classes[number].numpy(), pixels[number], labels.is_crowd[number].numpy(), strict=True
    )
    return [(int(label), box, bool(is_crowd)) for label, box, is_crowd in rows if label >= 0]


def slices(low, high) -> tuple[slice, ...]:
    """Returns the whole pixels between two corners."""
    return tuple(
        slice(max(0, ceil(start)), max(0, floor(end))) for start, end in zip(low, high, strict=True)
    )


@pytest.mark.parametrize("options", PIXELS)
def test_each_box_holds_its_object_and_nothing_is_painted_outside_of_a_box(scenes, options):
    seen = 0
    for epoch in range(4):
        images, labels = changed(scenes, options, epoch)
        for number, image in enumerate(images[..., 0].astype(int)):
            rest = image.copy()
            for label, (ymin, xmin, ymax, xmax), _ in found(labels, number):
                assert 0 <= ymin < ymax <= HEIGHT and 0 <= xmin < xmax <= WIDTH
                low, high = np.array([ymin, xmin]), np.array([ymax, xmax])
                inside = image[
                    slices(low + 1, high - 1)
                ]  # twice as large, an edge is two pixels wide
                assert (abs(inside - grey_of(label)) <= 1).all()
                rest[slices(np.floor(low - 1), np.ceil(high + 1))] = 0
                seen += inside.size > 0
            assert rest.max() <= 129  # black, padding, or between the two
    assert seen > 200


def test_pixels_that_are_not_scaled_are_the_very_same(scenes):
    """The test measures a tight box in the pixels. It equals the label to the last digit."""
    images, labels = changed(
        scenes,
        {
            "flip_left_right": True,
            "flip_top_bottom": True,
            "shift": 0.1,
            "mosaic": 0.5,
            "min_visible": 0.01,
        },
    )
    for number, image in enumerate(images[..., 0]):
        boxes = found(labels, number)
        if len({label for label, _, _ in boxes}) == len(boxes):
            for label, box, _ in boxes:
                rows, columns = np.nonzero(image == grey_of(label))
                assert box == pytest.approx(
                    [rows.min(), columns.min(), rows.max() + 1, columns.max() + 1], abs=1e-4
                )


@pytest.mark.parametrize("least", [0.2, 0.8])
def test_what_is_cut_off_too_much_is_left_alone_and_what_is_out_of_sight_is_gone(scenes, least):
    total, crowds = 0, 0
    for epoch in range(4):
        _, labels = changed(scenes, {"shift": 0.4, "min_visible": least}, epoch)
        for number in range(NUM_SCENES):
            for label, (ymin, xmin, ymax, xmax), is_crowd in found(labels, number):
                top, left, bottom, right = scenes[1][number][label]
                visible = (
                    (ymax - ymin)
                    * (xmax - xmin)
                    / ((bottom - top) * HEIGHT * (right - left) * WIDTH)
                )
                assert is_crowd == (visible < least - 1e-3)
                total, crowds = total + 1, crowds + is_crowd
    assert total < 4 * sum(map(len, scenes[1])) and 0 < crowds < total


def list_shares(scenes, crop, epochs=8):
    """Returns for each image how much each crop shows of its boxes that are left, in whole or in
    part: 1 for a box that does not touch the edge."""
    shares = []
    for epoch in range(epochs):
        images, labels = changed(
            scenes, {"crops": [crop], "flip_left_right": True, "flip_top_bottom": True}, epoch
        )
        for number in range(len(images)):
            shares.append(
                [
                    0 < ymin < ymax < HEIGHT and 0 < xmin < xmax < WIDTH
                    for _, (ymin, xmin, ymax, xmax), _ in found(labels, number)
                ]
            )
    return shares


def test_a_crop_shows_enough_of_one_object_or_the_image_stays_whole(scenes):
    wide = {"min_area": 0.05, "max_area": 0.3, "min_aspect_ratio": 0.5, "max_aspect_ratio": 2}
    loose = list_shares(scenes, wide | {"min_overlap": 0})
    assert np.mean([any(each) for each in loose]) < 0.6
    strict = list_shares(scenes, wide | {"min_object_covered": 1, "min_overlap": 0})
    assert all(any(each) for each in strict)
    assert not all(all(each) for each in strict)


def test_a_box_of_which_a_crop_shows_too_little_is_left_out(scenes):
    crop = {"min_area": 0.3, "max_area": 0.6, "min_overlap": 1}
    whole, cut = (
        np.concatenate(list_shares(scenes, crop | {"min_overlap": least})) for least in (1, 0)
    )
    assert whole.mean() > 0.98 and cut.mean() < 0.8
    numbers = [
        sum(map(len, list_shares(scenes, crop | {"min_overlap": least}))) for least in (0, 0.5, 1)
    ]
    assert numbers == sorted(numbers, reverse=True) and len(set(numbers)) == 3
    _, labels = changed(scenes, {"crops": [crop | {"min_overlap": 0}], "min_visible": 0.9})
    assert not any(
        is_crowd for number in range(NUM_SCENES) for _, _, is_crowd in found(labels, number)
    )


def test_images_that_stay_whole_are_unchanged(scenes):
    images, _ = changed(scenes, {"crops": [{"max_area": 0.5, "keep_whole": 0.4}]})
    kept = [(new == old).all() for new, old in zip(images, scenes[0], strict=True)]
    assert 0.2 < np.mean(kept) < 0.6
    whole, labels = changed(scenes, {"crops": [{"keep_whole": 1}]})
    assert (whole == scenes[0]).all()
    assert [len(found(labels, number)) for number in range(NUM_SCENES)] == list(map(len, scenes[1]))


@pytest.mark.parametrize("options", [FULL, {"crops": [{}, {"min_area": 0.5}]}], ids=["all", "crop"])
def test_an_example_is_changed_alike_in_any_batch_and_otherwise_in_each_epoch(scenes, options):
    whole, labels = changed(scenes, options | {"brightness": 0.2})
    for start in (0, 10, 20, 30):
        part, part_labels = changed(
            scenes, options | {"brightness": 0.2}, examples=range(start, start + 10)
        )
        assert (part == whole[start : start + 10]).all()
        for number in range(10):
            one, other = found(part_labels, number), found(labels, start + number)
            assert [(c, b.tolist(), i) for c, b, i in one] == [
                (c, b.tolist(), i) for c, b, i in other
            ]
    others = [
        changed(scenes, options, epoch=1)[0],
        changed(scenes, options, seed=2)[0],
        changed(scenes, options)[0],
    ]
    assert len({each.tobytes() for each in others}) == 3


def test_a_mosaic_is_its_own_image_and_three_of_the_whole_split(scenes):
    """The test paints one image in a unique grey and looks for the mosaics that contain it."""
    images = (
        np.arange(NUM_SCENES, dtype=np.uint8)[:, None, None, None]
        .repeat(HEIGHT, 1)
        .repeat(WIDTH, 2)
        + 1
    )
    mosaics, _ = changed((images, [[[0, 0, 1, 1]]] * NUM_SCENES), {"mosaic": 1.0})
    members = [
        [int(image[y, x, 0]) - 1 for y, x in ((0, 0), (0, -1), (-1, 0), (-1, -1))]
        for image in mosaics
    ]
    assert [first for first, *_ in members] == list(range(NUM_SCENES))
    assert len({other for _, *others in members for other in others}) > 0.8 * NUM_SCENES
    meeting = {
        (
            int((image[:, 0, 0] == image[0, 0, 0]).sum()),
            int((image[0, :, 0] == image[0, 0, 0]).sum()),
        )
        for image in mosaics
    }
    rows, columns = zip(*meeting, strict=True)
    assert (
        len(meeting) > 30 and min(rows) >= 12 and max(columns) <= 48 or max(columns) == WIDTH
    )  # equal neighbours look like one part
    share = [
        len(set(image.ravel().tolist())) > 1
        for image in changed((images, [[[0, 0, 1, 1]]] * NUM_SCENES), {"mosaic": 0.4})[0]
    ]
    assert 0.2 < np.mean(share) < 0.6


def test_boxes_need_no_more_room_than_the_fullest_example(scenes):
    for options in ({}, FULL):
        _, labels = changed(scenes, options)
        counts = [len(found(labels, number)) for number in range(NUM_SCENES)]
        assert labels.classes.shape == (NUM_SCENES, max(counts))
    _, few = changed(scenes, {}, examples=[n for n in range(NUM_SCENES) if len(scenes[1][n]) == 1])
    assert few.classes.shape[1] == 1


def test_a_detector_that_wants_one_shape_always_gets_it(scenes):
    for options, columns in (({}, 6), ({"shift": 0.2}, 6), (FULL, 24)):
        for examples in (range(10), range(10, 20)):
            _, fixed = changed(scenes, options, examples=examples, max_boxes=6)
            _, fitted = changed(scenes, options, examples=examples)
            assert fixed.classes.shape[1] == columns
            assert [str(found(fixed, n)) for n in range(10)] == [
                str(found(fitted, n)) for n in range(10)
            ]
