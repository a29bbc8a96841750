"""Test images on the page, and those with predictions."""

from __future__ import annotations

import base64
import dataclasses
import io

import numpy as np
import pytest
from PIL import Image

from pipeline_ops.evaluation.classifier import rank_key
from pipeline_ops.evaluation.detector import DetectorFindings
from pipeline_ops.evaluation.report import draw_predictions, to_data_uri
from pipeline_ops.served.client import ImageDetections, TrueBoxes


def encode(kind: str, side: int = 8, mode: str = "L") -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (side, side, 3), dtype=np.uint8)
    output = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(output, kind)
    return output.getvalue()


def decode(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.split(",", 1)[1])))


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_what_a_browser_shows_stays_as_it_is(kind):
    image = encode(kind)
    assert (
        to_data_uri(image) == f"data:image/{kind.lower()};base64,{base64.b64encode(image).decode()}"
    )


@pytest.mark.parametrize(
    "kind, mode", [("BMP", "L"), ("GIF", "L"), ("TIFF", "CMYK"), ("WEBP", "RGB")]
)
def test_any_other_format_becomes_a_png(kind, mode):
    uri = to_data_uri(encode(kind, mode=mode))
    assert uri.startswith("data:image/png;base64,") and decode(uri).size == (8, 8)


def test_a_large_picture_is_shown_small():
    """It has few bytes, so that 48 of them are below 2 MB: noise is the worst that there is."""
    uri = to_data_uri(encode("PNG", side=600, mode="RGB"))
    assert max(decode(uri).size) == 256 and len(uri) < 2e6 / 48


@pytest.mark.parametrize(
    "image", [b"", b"<svg onload='alert(1)'/>", b"\x89PNG\r\n\x1a\n" + b"0" * 60_000, b"BM garbage"]
)
def test_what_is_no_image_is_not_shown_as_one(image):
    assert to_data_uri(image) is None


def find_scene(key: str, num_true: int) -> tuple[TrueBoxes, ImageDetections]:
    """A dark scene with true boxes at its left, and two detections at its right."""
    image = io.BytesIO()
    Image.new("RGB", (40, 40)).save(image, "PNG")
    left, right = [0.1, 0.1, 0.5, 0.4], [0.1, 0.6, 0.5, 0.9]
    true = np.array([left] * num_true).reshape(-1, 4)
    classes = np.zeros(num_true, int)
    detected = ImageDetections(np.array([right, left]), np.array([1, 1]), np.array([0.9, 0.3]))
    return TrueBoxes(key, image.getvalue(), true, classes, classes > 0), detected


def draw(keys: list[str]) -> bytes:
    scenes, detections = zip(*(find_scene(key, 1) for key in keys), strict=True)
    images = {scene.key: scene.image for scene in scenes}
    bare = [dataclasses.replace(scene, image=b"") for scene in scenes]

    def read_images(keys):
        return {key: images[key] for key in keys}

    found = DetectorFindings(None, [], {}, bare, [*detections], 0.5, read_images)
    return draw_predictions(found, ["cat", "dog"])


def test_the_truth_is_on_the_left_and_what_is_above_the_threshold_on_the_right():
    picture = Image.open(io.BytesIO(draw(["a"])))
    assert picture.size == (2 * 348 + 8, 382 + 8)
    edges = [8 + start + x for start in (0, 348) for x in (34, 204)]  # 0.1 and 0.6 of 340 pixels
    assert [picture.getpixel((x, 8 + 100)) != (0, 0, 0) for x in edges] == [
        True,  # a true box
        False,
        False,  # its score is below the threshold
        True,
    ]


def test_the_scenes_with_predictions_are_three_whatever_their_order():
    keys = [f"{number}.png" for number in range(20)]
    picture = draw(keys)
    assert picture == draw(keys[::-1])
    assert picture == draw(sorted(keys, key=rank_key)[-3:])
    assert Image.open(io.BytesIO(picture)).size == (2 * 348 + 8, 3 * 382 + 8)
