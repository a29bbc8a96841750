"""Anchors and their matches, compared with a plain computation of the papers' definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest


def plain_anchors(height, width, scale, octaves=3, ratios=(0.5, 1, 2)):
    """Computes anchors in loops over level, cell, scale and ratio: Lin et al. 2017, section 4."""
    anchors = []
    for level in range(3, 8):
        stride = 2**level
        for row in range(math.ceil(height / stride)):
            for column in range(math.ceil(width / stride)):
                for octave in range(octaves):
                    for ratio in ratios:
                        area = (scale * stride * 2 ** (octave / octaves)) ** 2
                        anchor_width = math.sqrt(area / ratio)
                        anchor_height = area / anchor_width
                        y, x = (row + 0.5) * stride, (column + 0.5) * stride
                        anchors.append(
                            [
                                y - anchor_height / 2,
                                x - anchor_width / 2,
                                y + anchor_height / 2,
                                x + anchor_width / 2,
                            ]
                        )
    return np.array(anchors)


def plain_iou(one, other):
    height = min(one[2], other[2]) - max(one[0], other[0])
    width = min(one[3], other[3]) - max(one[1], other[1])
    inter = max(height, 0) * max(width, 0)
    union = (
        (one[2] - one[0]) * (one[3] - one[1])
        + (other[2] - other[0]) * (other[3] - other[1])
        - inter
    )
    return inter / union if union > 0 else 0.0


def matched(anchors, boxes, learned=None, crowd=None):
    """Returns the box, None for background, or "ignored" for each anchor."""
    import tensorflow as tf

    from pipeline_ops.models.anchor_head import match_anchors

    count = len(boxes)
    crowd = crowd or [False] * count
    learned = learned or [not each for each in crowd]
    numbers = [i if learned[i] or crowd[i] else -1 for i in range(count)]
    found = match_anchors(
        tf.constant(anchors, tf.float32),
        tf.constant(boxes, tf.float32),
        tf.constant(numbers),
        tf.constant(crowd),
    )
    corners = found.corners.numpy()
    matches = []
    for anchor, number in enumerate(found.classes.numpy()):
        is_ignored = found.is_ignored.numpy()[anchor]
        assert found.is_object.numpy()[anchor] == (number >= 0)
        assert number < 0 or (corners[anchor] == np.array(boxes[number], np.float32)).all()
        matches.append(int(number) if number >= 0 else "ignored" if is_ignored else None)
    return matches


@pytest.mark.parametrize(("size", "scale"), [((64, 96), 4.0), ((128, 128), 2.0), ((640, 640), 4.0)])
def test_anchors_are_those_of_the_paper(size, scale):
    from pipeline_ops.models.anchor_head import make_anchors

    assert make_anchors(size, scale) == pytest.approx(plain_anchors(*size, scale), abs=1e-3)
    others = make_anchors(size, scale, 2, (1.0, 3.0))
    assert others == pytest.approx(plain_anchors(*size, scale, 2, (1, 3)), abs=1e-3)


def test_the_papers_anchors_cover_32_to_813_pixels():
    from pipeline_ops.models.anchor_head import make_anchors

    anchors = make_anchors((640, 640), 4.0)
    assert len(anchors) == 9 * (80**2 + 40**2 + 20**2 + 10**2 + 5**2)
    sides = np.sqrt((anchors[:, 2] - anchors[:, 0]) * (anchors[:, 3] - anchors[:, 1]))
    assert (sides.min(), sides.max()) == pytest.approx((32, 512 * 2 ** (2 / 3)), rel=1e-5)


A10 = [0, 0, 10, 10]


@pytest.mark.parametrize(
    ("anchors", "boxes", "wanted"),
    [
        pytest.param([A10, [50, 50, 60, 60]], [A10], [0, None], id="equal, and nowhere near"),
        pytest.param([A10, [0, 0, 10, 5]], [A10], [0, 0], id="from 0.5 on it is an object"),
        pytest.param(
            [A10, [0, 0, 10, 4.5]], [A10], [0, "ignored"], id="between 0.4 and 0.5 it is neither"
        ),
        pytest.param([A10, [0, 0, 10, 4]], [A10], [0, "ignored"], id="0.4 is not below 0.4"),
        pytest.param([A10, [0, 0, 10, 3.9]], [A10], [0, None], id="below 0.4 it is background"),
        pytest.param(
            [[0, 0, 10, 1], [0, 0, 10, 2]],
            [A10],
            [None, 0],
            id="the best one counts, be it ever so little",
        ),
        pytest.param([[0, 0, 10, 2], [0, 8, 10, 10]], [A10], [0, 0], id="of equally good ones all"),
        pytest.param([A10], [[0, 0, 10, 8], [0, 0, 10, 9]], [1], id="the box that overlaps most"),
        pytest.param([A10], [[0, 0, 10, 5], [0, 5, 10, 10]], [0], id="of equal boxes the first"),
        pytest.param(
            [[0, 0, 10, 10], [0, 20, 10, 30]],
            [[0, 0, 10, 9], [0, 9, 10, 12]],
            [0, None],
            id="the best for a box stands for the one it overlaps most itself",
        ),
        pytest.param([A10], [[5, 5, 5, 5]], [None], id="a box without extent has no best"),
        pytest.param(
            [A10, [0, 0, 5, 5]],
            [[60, 60, 70, 70]],
            [None, None],
            id="nor one that no anchor touches",
        ),
    ],
)
def test_an_anchor_stands_for(anchors, boxes, wanted):
    assert matched(anchors, boxes) == wanted


def test_padding_and_crowds_are_no_objects_and_in_a_crowd_is_no_background():
    anchors, inside, half = (
        [A10, [40, 40, 50, 50], [40, 55, 50, 65]],
        [38, 38, 60, 60],
        [0, 0, 0, 0],
    )
    assert matched(anchors, [A10, half], learned=[True, False], crowd=[False, False]) == [
        0,
        None,
        None,
    ]
    assert matched(anchors, [A10, inside], crowd=[False, True]) == [0, "ignored", None]
    assert matched(anchors, [A10, [0, 0, 20, 20]], crowd=[False, True])[0] == 0, (
        "an object in a crowd is one"
    )


def test_an_image_without_boxes_is_background():
    assert matched([A10, [0, 0, 5, 5]], [[0, 0, 0, 0]], learned=[False]) == [None, None]


def test_matching_is_the_definition_on_random_boxes():
    from pipeline_ops.models.anchor_head import make_anchors

    random = np.random.default_rng(5)
    anchors = make_anchors((64, 64), 2.0)
    corners = random.uniform(0, 48, (6, 2))
    boxes = np.concatenate([corners, corners + random.uniform(3, 40, (6, 2))], axis=1).astype(
        np.float32
    )
    ious = np.array([[plain_iou(anchor, box) for box in boxes] for anchor in anchors.astype(float)])
    wanted = []
    for row in ious:
        is_best = any(row[box] > 0 and row[box] > ious[:, box].max() - 1e-6 for box in range(6))
        wanted.append(
            int(row.argmax())
            if row.max() >= 0.5 or is_best
            else "ignored"
            if row.max() >= 0.4
            else None
        )
    assert matched(anchors, boxes) == wanted
    assert {None, "ignored", *range(6)} == set(wanted)


def test_boxes_as_distances_from_anchors_and_back():
    import tensorflow as tf

    from pipeline_ops.models.anchor_head import decode_boxes, encode_boxes

    anchors = tf.constant([[0, 0, 10, 20], [5, 5, 15, 9]], tf.float32)
    boxes = tf.constant([[1, 2, 21, 12], [5, 5, 15, 9]], tf.float32)
    deltas = encode_boxes(boxes, anchors).numpy()
    assert deltas == pytest.approx(
        np.array([[0.6, -0.15, math.log(2), math.log(0.5)], [0, 0, 0, 0]]), abs=1e-6
    )
    assert decode_boxes(tf.constant(deltas), anchors).numpy() == pytest.approx(
        boxes.numpy(), abs=1e-4
    )
    assert np.isfinite(decode_boxes(tf.fill([2, 4], 1e4), anchors).numpy()).all()
    assert np.isfinite(encode_boxes(tf.zeros([2, 4]), anchors).numpy()).all()
