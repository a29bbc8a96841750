"""The stage equalize."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest

from beam_jobs.stages.equalize import Equalize, equalize, serve
from beam_jobs.stages.stage import Box, Example

RAMP = np.linspace(100, 120, 64 * 64).reshape(64, 64, 1).astype(np.uint8)  # hardly any contrast


@pytest.mark.parametrize("channels", [1, 3])
def test_a_flat_image_gets_more_contrast_and_keeps_its_shape(channels):
    flat = Example("lung/1.png", "lung", b"the file", RAMP.repeat(channels, axis=2))
    after = equalize(flat, Equalize(limit=8, parts=1))
    assert after.image.std() > 1.5 * flat.image.std()
    assert (after.image.shape, after.image.dtype, after.is_original) == (
        (64, 64, channels),
        np.uint8,
        False,
    )


def test_a_higher_limit_gives_more_contrast():
    flat = Example("lung/1.png", "lung", b"the file", RAMP)
    low, high = (equalize(flat, Equalize(limit=limit, parts=1)).image.std() for limit in (1.0, 8.0))
    assert low < high


def test_colours_keep_their_hue():
    red = np.concatenate([RAMP, RAMP // 4, RAMP // 4], axis=2)
    after = equalize(Example("a", "a", b"", red), Equalize()).image.astype(float)
    assert after[:, :, 0].mean() > 2 * after[:, :, 1:].mean()


def test_boxes_stay_where_they_are():
    boxes = (Box(1, 2, 3, 4, "nodule"),)
    assert equalize(Example("a", "", b"", RAMP, boxes=boxes), Equalize()).boxes == boxes


# In TensorFlow ------------------------------------------------------------------------------------

SIZES = [(1, 1), (1, 200), (7, 5), (64, 64), (65, 63), (250, 333)]


def trace(options: Equalize, channels: int) -> Callable[[np.ndarray], np.ndarray]:
    """`serve` as a graph for images of any size."""
    import tensorflow as tf

    images = tf.TensorSpec([None, None, channels], tf.uint8)
    graph = tf.function(lambda image: serve(image, options), [images], autograph=False)
    return lambda image: graph(image).numpy()


@functools.cache
def make_images(height: int, width: int) -> dict[str, np.ndarray]:
    """Images RGB of a size."""
    from sklearn.datasets import load_sample_image

    noise, shape = np.random.default_rng(4), (height, width, 3)
    photograph = load_sample_image("china.jpg")[100 : 100 + height, 200 : 200 + width]
    images = {
        "photograph": photograph,
        "flower": load_sample_image("flower.jpg")[50 : 50 + height, 150 : 150 + width],
        "dark": photograph // 12,
        "flat": noise.normal((90, 120, 150), 5, shape).clip(0, 255),
        "noise": noise.integers(0, 256, shape),
        "constant": np.broadcast_to([10, 200, 90], shape),
        "checkerboard": np.broadcast_to(np.indices(shape[:2]).sum(0)[..., None] % 2 * 255, shape),
    }
    return {name: np.ascontiguousarray(image, np.uint8) for name, image in images.items()}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("parts", [1, 2, 8])
@pytest.mark.parametrize("limit", [1.0, 2.0, 4.0, 40.0])
@pytest.mark.models
def test_a_served_model_equalises_as_the_stage_does(limit, parts, channels):
    options = Equalize(limit=limit, parts=parts)
    served = trace(options, channels)
    for height, width in SIZES:
        for name, image in make_images(height, width).items():
            image = image[..., :channels]
            wanted = equalize(Example("a", "a", b"", image), options).image
            assert np.array_equal(served(image), wanted), (name, height, width)


def test_a_served_model_converts_colours_as_the_stage_does():
    """All mixtures of green and blue, each with 52 reds."""
    options = Equalize(limit=1.0, parts=1)
    image = np.stack(np.meshgrid(np.arange(256), np.arange(256), np.arange(0, 256, 5)), axis=-1)
    image = image[..., ::-1].reshape(2048, -1, 3).astype(np.uint8)
    wanted = equalize(Example("a", "a", b"", image), options).image
    assert np.array_equal(trace(options, 3)(image), wanted)


def test_a_served_model_equalises_each_image_of_a_request():
    import tensorflow as tf

    options = Equalize()
    images = np.stack(list(make_images(65, 63).values()))
    graph = tf.function(
        lambda batch: tf.map_fn(lambda image: serve(image, options), batch),
        [tf.TensorSpec([None, None, None, 3], tf.uint8)],
    )
    wanted = [equalize(Example("a", "a", b"", image), options).image for image in images]
    assert np.array_equal(graph(images).numpy(), wanted)
    # Python functions cannot run in TensorFlow Serving.
    assert not any("Py" in name for name in list_operations(graph))


def list_operations(graph) -> set[str]:
    """The operations of a traced function, also of those that it calls."""
    definition = graph.get_concrete_function().graph.as_graph_def()
    nodes = [*definition.node, *(node for f in definition.library.function for node in f.node_def)]
    return {node.op for node in nodes}
