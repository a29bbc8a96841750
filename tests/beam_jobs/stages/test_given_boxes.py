"""Boxes from the source to the upright image: by table, and against what decoders make of EXIF."""

from __future__ import annotations

import io

import cv2
import numpy as np
import pytest
from PIL import Image

from beam_jobs.stages.boxes import FRACTIONS, convert_boxes
from beam_jobs.stages.decode import Decode, decode
from beam_jobs.stages.stage import Box, BoxFrame, Example, Reject

PATCH = Box(3, 5, 9, 21, "patch")
"""Where the stored image of 24x40 is white."""


def stored_image() -> np.ndarray:
    image = np.zeros((24, 40, 3), np.uint8)
    image[3:9, 5:21] = 255
    return image


def encoded(kind: str, orientation: int) -> bytes:
    picture, file = Image.fromarray(stored_image()), io.BytesIO()
    exif = picture.getexif()
    exif[0x0112] = orientation
    picture.save(
        file,
        kind,
        exif=exif,
        **(
            {"quality": 95, "subsampling": 0}
            if kind == "JPEG"
            else {"lossless": True}
            if kind == "WEBP"
            else {}
        ),
    )
    return file.getvalue()


def white(image: np.ndarray) -> Box:
    """The box around what is white."""
    ys, xs = np.nonzero(image[..., 0] > 128)
    return Box(ys.min(), xs.min(), ys.max() + 1, xs.max() + 1, "patch")


def run(data: bytes, boxes, size=None, drawn_on=None) -> Example:
    frame = BoxFrame(size, drawn_on)
    return decode(Example("1", "", data, boxes=tuple(boxes), frame=frame), Decode())


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("size", [None, (24, 40)])
def test_boxes_turn_with_their_image(kind, orientation, size):
    example = run(encoded(kind, orientation), [PATCH], size, "stored")
    assert example.boxes == (white(example.image),)
    assert example.frame is None


@pytest.mark.parametrize("orientation", range(1, 9))
def test_fractions_are_of_the_stored_image(orientation):
    fractions = Box(3 / 24, 5 / 40, 9 / 24, 21 / 40, "patch")
    example = run(encoded("JPEG", orientation), [fractions], FRACTIONS, "stored")
    found, wanted = example.boxes[0], white(example.image)
    assert [found.ymin, found.xmin, found.ymax, found.xmax] == pytest.approx(
        [wanted.ymin, wanted.xmin, wanted.ymax, wanted.xmax]
    )


@pytest.mark.parametrize("orientation", range(1, 9))
def test_fractions_may_be_of_the_upright_image(orientation):
    image = run(encoded("JPEG", orientation), []).image
    height, width, _ = image.shape
    wanted = white(image)
    fractions = wanted.transform(1 / height, 1 / width)
    [found] = run(encoded("JPEG", orientation), [fractions], FRACTIONS, "upright").boxes
    assert [found.ymin, found.xmin, found.ymax, found.xmax] == pytest.approx(
        [wanted.ymin, wanted.xmin, wanted.ymax, wanted.xmax]
    )


@pytest.mark.parametrize("orientation", [5, 6, 7, 8])
@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_boxes_that_were_drawn_on_the_upright_image_stay(kind, orientation):
    upright = white(run(encoded(kind, orientation), []).image)
    example = run(encoded(kind, orientation), [upright], (40, 24))
    assert example.boxes == (upright,)


def test_a_size_that_is_neither_the_stored_nor_the_upright_is_another_images():
    with pytest.raises(Reject) as caught:
        run(encoded("JPEG", 6), [PATCH], (24, 41))
    assert (caught.value.reason, caught.value.detail) == (
        "size_mismatch",
        "annotated as 41x24, but the image has 40x24 pixels",
    )


@pytest.mark.parametrize(
    "box, wanted",
    [
        (Box(-1, -0.5, 25, 41, "a"), Box(0, 0, 24, 40, "a")),
        (Box(1, 2, 3, 40.5, "a", True, True), Box(1, 2, 3, 40, "a", True, True)),
        (PATCH, PATCH),
    ],
)
def test_a_box_that_leaves_the_image_by_a_pixel_is_clipped(box, wanted):
    assert convert_boxes([box], BoxFrame(outside="reject"), (24, 40), 1) == (wanted,)


@pytest.mark.parametrize(
    "box",
    [
        Box(0, 0, 24, 41.1, "a"),
        Box(-1.1, 0, 24, 40, "a"),
        Box(0, 40, 24, 41, "a"),
        Box(-1, 0, 0, 40, "a"),
    ],
)
def test_a_box_that_leaves_the_image_by_more_or_as_a_whole_keeps_it_out(box):
    with pytest.raises(Reject) as caught:
        convert_boxes([box], BoxFrame(outside="reject"), (24, 40), 1)
    assert caught.value.reason == "box_outside"
    assert "40x24 pixels" in caught.value.detail


@pytest.mark.parametrize("orientation", [0, 9, 255, "6", None])
def test_an_orientation_that_exif_does_not_know_is_upright(orientation):
    assert convert_boxes([PATCH], BoxFrame((24, 40)), (24, 40), orientation) == (PATCH,)


def test_an_example_for_classification_has_no_boxes_to_settle():
    assert (
        decode(
            Example("1", "cat", cv2.imencode(".png", stored_image())[1].tobytes()), Decode()
        ).boxes
        is None
    )
