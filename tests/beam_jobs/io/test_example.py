"""Serialised examples."""

from __future__ import annotations

import numpy as np
import pytest

from beam_jobs.io.example import encode_png, serialise
from beam_jobs.stages.stage import Example


def test_a_record_is_the_one_that_tensorflow_would_write():
    """`tf.train.Example(...).SerializeToString(deterministic=True)` gave these bytes."""
    assert serialise(Example("cat/ä.png", "cat", b"file \xff\x00"), {"cat": 300}).hex() == (
        "0a580a1b0a11696d6167652f636c6173732f6c6162656c12061a040a02ac020a1c0a0d696d6167652f656e636f646564"
        "120b0a090a0766696c6520ff000a1b0a09696d6167652f6b6579120e0a0c0a0a6361742fc3a42e706e67")


@pytest.mark.parametrize("channels", [1, 3])
def test_new_pixels_become_a_png_without_loss(channels):
    import cv2

    image = np.random.default_rng(0).integers(0, 256, (5, 7, channels), dtype=np.uint8)
    read = cv2.imdecode(np.frombuffer(encode_png(image), np.uint8), cv2.IMREAD_GRAYSCALE if channels == 1 else cv2.IMREAD_COLOR_RGB)
    assert (read.reshape(image.shape) == image).all()


def test_new_pixels_go_into_the_record_and_old_ones_do_not():
    image = np.full((5, 7, 1), 9, np.uint8)
    example = Example("cat/1.png", "cat", b"the file", image)
    assert b"the file" in serialise(example, {"cat": 0})
    assert b"the file" not in serialise(example.with_image(image), {"cat": 0})
    assert encode_png(image) in serialise(example.with_image(image), {"cat": 0})
