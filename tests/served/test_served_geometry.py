"""A served detector brings images to its size as the stage `resize` does, and boxes back."""

from __future__ import annotations

import numpy as np
import pytest

from beam_jobs.stages.resize import Resize, resize
from beam_jobs.stages.stage import Box, Example
from pipeline_ops.contract.dataset import StageFigures
from pipeline_ops.served.preprocessing import Preprocessing

pytestmark = pytest.mark.models
RED = (200, 30, 30)
SIZES = [(60, 90), (33, 80), (10, 23), (70, 31)]
MODES = ["stretch", "letterbox", "crop"]


def make_picture(height: int, width: int) -> tuple[np.ndarray, Box]:
    """A gradient, which any good method resizes alike, with a box in the middle."""
    rows, columns = np.mgrid[0:height, 0:width]
    image = np.stack(
        [rows * 255 / height, columns * 255 / width, np.full((height, width), 99)], axis=-1
    )
    box = Box(0.4 * height, 0.45 * width, 0.6 * height, 0.55 * width, "cell")
    return image.astype(np.uint8), box


def resizing(mode: str, channels: int = 3) -> Preprocessing:
    size = {"height": 32, "width": 48, "mode": mode, "pad_color": RED}
    stages = {"decode": {"channels": channels}, "resize": size}
    return Preprocessing(
        tuple(
            StageFigures(name=name, parameters=each, served="in_graph")
            for name, each in stages.items()
        ),
        has_boxes=True,
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_box_comes_back_to_its_place_in_the_image_of_the_request(mode):
    """The detector answers with the box that the stage has made of the annotated one."""
    import tensorflow as tf

    from pipeline_ops.models.boxes import Detections
    from pipeline_ops.served.model import ServedDetector

    class Head:
        def detect(self, corners):
            boxes = tf.stack([corners, tf.zeros_like(corners)], axis=1)
            one = tf.constant([[1.0, 0.0]])
            return Detections(boxes, one, tf.zeros([1, 2], tf.int64), tf.constant([1]))

        detect_portably = detect

    for height, width in SIZES:
        image, box = make_picture(height, width)
        options = Resize(height=32, width=48, mode=mode)
        [seen] = resize(Example("key", "", b"", image, boxes=(box,)), options).boxes
        corners = np.array(
            [[seen.ymin / 32, seen.xmin / 48, seen.ymax / 32, seen.xmax / 48]], np.float32
        )
        model = tf.Module()
        model.__class__ = type(
            "Model", (tf.Module,), {"__call__": lambda *_, corners=corners, **__: corners}
        )
        served = ServedDetector(model, (32, 48, 3), Head(), [1], resizing(mode))
        png = tf.io.encode_png(image).numpy()
        [found, padding] = served.serving_default(tf.constant([png]))["boxes"][0].numpy()
        assert found == pytest.approx([0.4, 0.45, 0.6, 0.55], abs=0.01), (height, width)
        assert not padding.any()


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("mode", MODES)
def test_the_signature_of_the_object_detection_api_gives_the_same_answers(mode, channels):
    """The detector's answer depends on all pixels that it sees. Each third entry is padding."""
    import tensorflow as tf

    from pipeline_ops.models.boxes import Detections
    from pipeline_ops.served.model import ServedDetector

    class Head:
        def detect(self, images):
            half = tf.reduce_mean(images[:, :16], [1, 2, 3]) / 1000
            boxes = tf.stack([half, half / 2, 1 - half, 1 - half / 3], axis=-1)
            scores = tf.stack([0.5 + half, half, 0 * half], axis=-1)
            boxes = tf.where(scores[..., None] > 0, boxes[:, None], 0.0)
            classes = tf.tile(tf.constant([[4, 0, 0]], tf.int64), [tf.shape(half)[0], 1])
            return Detections(boxes, scores, classes, 2 + tf.cast(0 * half, tf.int32))

        detect_portably = detect

    model = tf.Module()
    model.__class__ = type("Model", (tf.Module,), {"__call__": lambda _, images, training: images})
    served = ServedDetector(
        model, (32, 48, channels), Head(), [3, 1, 7, 8, 90], resizing(mode, channels)
    )
    for height, width in SIZES:
        image, _ = make_picture(height, width)
        image = image if channels == 3 else np.repeat(image[..., :1], 3, axis=2)
        images = np.stack([image, image[::-1]])
        encoded = [tf.io.encode_png(each[..., :channels]).numpy() for each in images]
        wanted = served.serving_default(tf.constant(encoded))
        found = served.signatures["detection_api"](tf.constant(images))
        assert {name: (value.dtype, value.shape) for name, value in found.items()} == {
            "detection_boxes": (tf.float32, (2, 3, 4)),
            "detection_scores": (tf.float32, (2, 3)),
            "detection_classes": (tf.float32, (2, 3)),
            "num_detections": (tf.float32, (2,)),
        }
        assert (found["detection_boxes"].numpy() == wanted["boxes"].numpy()).all()
        assert (found["detection_scores"].numpy() == wanted["scores"].numpy()).all()
        assert not found["detection_scores"][:, 2].numpy().any()
        assert found["detection_classes"].numpy().tolist() == [[90, 3, 1]] * 2
        assert found["num_detections"].numpy().tolist() == [2, 2]


def test_the_boxes_of_overlapping_tiles_become_one_at_its_place():
    """A bright square of 12 pixels lies in four tiles, and another one in one tile."""
    import tensorflow as tf

    from pipeline_ops.models.boxes import Detections
    from pipeline_ops.served.model import ServedDetector

    class Head:
        num_classes, max_detections = 1, 100

        def detect(self, images):
            """The box of all bright pixels of an image, 64 x 96."""
            bright = tf.cast(images[..., 0] > 200, tf.float32)

            def find(sums, length):
                edges = tf.range(length, dtype=tf.float32)
                low = tf.reduce_min(tf.where(sums > 0, edges, 1e3), axis=1)
                return low / length, tf.reduce_max(tf.where(sums > 0, edges + 1, 0), 1) / length

            (top, bottom), (left, right) = (
                find(tf.reduce_sum(bright, axis=axis), length)
                for axis, length in ((2, 64), (1, 96))
            )
            area = tf.reduce_sum(bright, axis=[1, 2])
            scores = area / 200
            boxes = tf.where(area[:, None] > 0, tf.stack([top, left, bottom, right], 1), 0.0)
            found = tf.cast(area > 0, tf.int32)
            classes = tf.zeros_like(found[:, None], tf.int64)
            return Detections(boxes[:, None], scores[:, None], classes, found)

        detect_portably = detect

    figures = tuple(
        StageFigures(name=name, parameters=parameters, served="in_graph")
        for name, parameters in (
            ("decode", {}),
            ("tile", {"height": 64, "width": 96, "overlap": 32}),
            ("resize", {"height": 64, "width": 96}),
        )
    )
    model = tf.Module()
    model.__class__ = type("Model", (tf.Module,), {"__call__": lambda _, images, training: images})
    served = ServedDetector(model, (64, 96, 3), Head(), [1], Preprocessing(figures, has_boxes=True))
    image = np.zeros((180, 330, 3), np.uint8)
    image[45:57, 75:87] = image[150:162, 300:312] = 255
    small = np.zeros((40, 50, 3), np.uint8)
    encoded = [tf.io.encode_png(each).numpy() for each in (image, small, image[:, ::-1])]
    found = served.serving_default(tf.constant(encoded))
    assert found["num_detections"].numpy().tolist() == [2, 0, 2]
    boxes = found["boxes"].numpy()[0][:2] * [180, 330, 180, 330]
    assert sorted(boxes.round().tolist()) == [[45, 75, 57, 87], [150, 300, 162, 312]]
    assert not found["boxes"].numpy()[1].any()
    counts = served.decode(tf.constant(encoded))["num_images"].numpy()
    assert counts.tolist() == [25, 1, 25]
