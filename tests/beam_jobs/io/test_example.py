"""Serialised examples."""

from __future__ import annotations

import numpy as np
import pytest

from beam_jobs.io.example import _TrainExample, encode_png, serialise
from beam_jobs.stages.stage import Box, Example


def test_a_record_is_the_one_that_tensorflow_would_write():
    """`tf.train.Example(...).SerializeToString(deterministic=True)` gave these bytes."""
    assert b"".join(
        serialise(Example("cat/ä.png", "cat", b"file \xff\x00"), {"cat": 300})
    ).hex() == (
        "0a580a1b0a11696d6167652f636c6173732f6c6162656c12061a040a02ac02"
        "0a1c0a0d696d6167652f656e636f646564"
        "120b0a090a0766696c6520ff000a1b0a09696d6167652f6b6579120e0a0c0a0a6361742fc3a42e706e67"
    )


@pytest.mark.parametrize("channels", [1, 3])
def test_new_pixels_become_a_png_without_loss(channels):
    import cv2

    image = np.random.default_rng(0).integers(0, 256, (5, 7, channels), dtype=np.uint8)
    read = cv2.imdecode(
        np.frombuffer(encode_png(image), np.uint8),
        cv2.IMREAD_GRAYSCALE if channels == 1 else cv2.IMREAD_COLOR_RGB,
    )
    assert (read.reshape(image.shape) == image).all()


def test_new_pixels_go_into_the_record_and_old_ones_do_not():
    image = np.full((5, 7, 1), 9, np.uint8)
    example = Example("cat/1.png", "cat", b"the file", image)
    assert serialise(example, {"cat": 0})[1] == b"the file"
    assert serialise(example.with_image(image), {"cat": 0})[1] == encode_png(image)


@pytest.mark.parametrize("num_bytes", [0, 1, 100, 127, 128, 20_000, 3_000_000])
@pytest.mark.parametrize(
    "boxes",
    [
        None,
        (),
        (Box(1, 2, 3, 4, "cat", True), Box(0, 0, 5.5, 7, "dog", is_crowd=True)),
        (Box(1, 1, 2, 2, "dog"),) * 200,
    ],
)
def test_the_bytes_are_those_that_protobuf_writes(num_bytes, boxes):
    example = Example(
        "cat/ä.png", "dog", bytes(num_bytes), np.zeros((300, 7, 3), np.uint8), boxes=boxes
    )
    message = _TrainExample()
    feature = message.features.feature
    feature["image/encoded"].bytes_list.value.append(example.encoded)
    feature["image/key"].bytes_list.value.append(example.key.encode())
    if boxes is None:
        feature["image/class/label"].int64_list.value.append(1)
    else:
        feature["image/height"].int64_list.value.append(300)
        feature["image/width"].int64_list.value.append(7)
        for edge, side in (("ymin", 300), ("xmin", 7), ("ymax", 300), ("xmax", 7)):
            feature[f"image/object/bbox/{edge}"].float_list.value.extend(
                getattr(box, edge) / side for box in boxes
            )
        feature["image/object/class/label"].int64_list.value.extend(
            {"cat": 0, "dog": 1}[box.label] for box in boxes
        )
        feature["image/object/is_crowd"].int64_list.value.extend(int(box.is_crowd) for box in boxes)
        feature["image/object/difficult"].int64_list.value.extend(
            int(box.is_difficult) for box in boxes
        )
    assert b"".join(serialise(example, {"cat": 0, "dog": 1})) == message.SerializeToString(
        deterministic=True
    )
