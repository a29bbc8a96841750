"""Decodes the image file and rejects files that are not a whole image.

JPEG and PNG files of 8 bits keep their own bytes, even if grey becomes colour or colour becomes
grey: the reader of the shard decodes to the requested channels itself. Other formats, 16 bits,
CMYK, images that EXIF marks as turned, and images with transparent parts are encoded again. Images
with transparent parts are laid on a background. The first frame of an animation counts. A JPEG
whose middle was overwritten decodes without complaint in every library, so this stage does not
notice it.

With `check: header`, files that keep their bytes are not decoded until a later stage needs their
pixels. The size is that of the header. A JPEG must have its end mark after the start of its pixels,
and every chunk of a PNG must match its checksum, so no truncated file gets into a shard. Damage
that only a decoder would notice does get into a shard. Examples are a JPEG whose compressed data is
damaged but continues to its end mark, a JPEG with fewer rows than in its header, and a PNG whose
pixels were packed wrongly by the program that wrote it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from beam_jobs.stages.given_boxes import convert_boxes
from beam_jobs.stages.image_header import (
    Header,
    check_end,
    make_jpeg_reject,
    open_with_pillow,
    read_header,
)
from beam_jobs.stages.stage import Color, Example, LazyImage, Reject, parameters

if TYPE_CHECKING:
    import numpy as np


@parameters
class Decode:
    channels: Literal[1, 3] = 3
    """1 for grey, 3 for RGB, whatever the files have."""
    max_megapixels: float = Field(50.0, gt=0, le=1000)
    """Maximum size of an image. A larger one is rejected before it is decoded, because a file of
    400 kB may hold a gigabyte of pixels."""
    background: Color = (255, 255, 255)
    """The colour behind the transparent parts of an image, [red, green, blue]."""
    check: Literal["pixels", "header"] = "pixels"
    """pixels: decodes every image to its end. header: decodes an image only if its pixels are
    needed. Some damage then goes unnoticed, see `decode.py`."""


def decode(example: Example, parameters: Decode) -> Example:
    """Returns the boxes in pixels of the upright image, whatever frame the source gave them in.

    Raises Reject: empty, not_image, too_large, truncated, corrupt, size_mismatch, box_outside.
    """
    data = example.encoded
    if not data:
        raise Reject("empty", "the file has no bytes")
    header = read_header(data)
    _check_size(header, parameters.max_megapixels)
    if not header.is_whole:
        raise Reject("truncated", f"a part of the file is missing; it has {len(data)} bytes")
    pixels: np.ndarray | LazyImage
    if parameters.check == "header" and header.keeps_bytes:
        check_end(data, header)
        shape = header.height, header.width, parameters.channels
        pixels, is_kept = LazyImage(shape, lambda: _decode(data, header, parameters)[0]), True
    else:
        pixels, is_kept = _decode(data, header, parameters)
    boxes = example.boxes
    if boxes is not None:
        boxes = convert_boxes(boxes, example.frame, *header.read_orientation(data))
    return dataclasses.replace(example, pixels=pixels, is_original=is_kept, boxes=boxes, frame=None)


def _decode(data: bytes, header: Header, parameters: Decode) -> tuple[np.ndarray, bool]:
    """The image, and whether the shard may hold the file as it is.

    Raises Reject: truncated, corrupt.
    """
    is_kept = header.is_kept
    if header.is_plain_jpeg:
        image = _decode_jpeg(data, parameters.channels)
    elif header.has_alpha:
        image, is_opaque = _decode_onto_background(parameters.background, data, parameters.channels)
        is_kept = is_kept and is_opaque
    else:
        image = _decode_other(data, parameters.channels)
    if image.shape[:2] not in ((header.height, header.width), (header.width, header.height)):
        raise Reject(
            "corrupt",
            f"{header.width}x{header.height} pixels in the header, "
            f"in the data {image.shape[1]}x{image.shape[0]}",
        )
    return image, is_kept


def _check_size(header: Header, max_megapixels: float) -> None:
    if header.height * header.width > max_megapixels * 1e6:
        raise Reject(
            "too_large",
            f"{header.width}x{header.height} pixels, at most {max_megapixels:g} megapixels",
        )
    if not header.height * header.width:
        raise Reject("corrupt", f"{header.width}x{header.height} pixels")


def _decode_jpeg(data: bytes, channels: int) -> np.ndarray:
    import simplejpeg

    try:
        image: np.ndarray = simplejpeg.decode_jpeg(data, "GRAY" if channels == 1 else "RGB")
    except ValueError as error:
        raise make_jpeg_reject(data, error) from None
    return image


def _decode_onto_background(
    background: Color, data: bytes, channels: int
) -> tuple[np.ndarray, bool]:
    """The image on a background, and whether no pixel is transparent.

    Uses Pillow, which knows every kind of transparency.
    """
    import numpy as np
    from PIL import Image, ImageOps

    with open_with_pillow(data) as image:
        layer = ImageOps.exif_transpose(image).convert("RGBA")
        is_opaque = layer.getchannel("A").getextrema() == (255, 255)
        below = Image.new("RGBA", layer.size, (*background, 255))
        flat = Image.alpha_composite(below, layer).convert("L" if channels == 1 else "RGB")
        return np.array(flat).reshape(flat.height, flat.width, channels), is_opaque


def _decode_other(data: bytes, channels: int) -> np.ndarray:
    """Decodes with OpenCV, which applies EXIF's orientation and reduces 16 bits to 8."""
    import cv2
    import numpy as np

    mode = cv2.IMREAD_GRAYSCALE if channels == 1 else cv2.IMREAD_COLOR_RGB
    try:
        image: np.ndarray | None = cv2.imdecode(np.frombuffer(data, np.uint8), mode)
    except cv2.error as error:
        # The machine's fault: the same file can be decoded on the next try.
        if error.code == cv2.Error.StsNoMem:
            raise MemoryError(error.err) from None
        raise Reject("corrupt", error.err) from None
    if image is None:
        raise Reject("corrupt", f"{len(data)} bytes that cannot be decoded to the end")
    return image.reshape(*image.shape[:2], channels)
