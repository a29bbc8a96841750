"""Drawn pictures whose pixels tell what is in them: a cat is a red rectangle, a dog a blue one."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 128, 96
RED, BLUE, GREEN = (225, 25, 25), (25, 25, 225), (25, 225, 25)
COLOURS = {"red": RED, "blue": BLUE, "green": GREEN}
PAINTS = {"cat": RED, "dog": BLUE, "bird": GREEN}
_STORED_BY_ORIENTATION = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


class Box(NamedTuple):
    """A rectangle of a class in pixels. Its ends are exclusive."""

    label: str
    x0: float
    y0: float
    x1: float
    y1: float

    @property
    def corners(self) -> tuple[float, float, float, float]:
        return self[1:]

    @property
    def xywh(self) -> tuple[float, float, float, float]:
        return self.x0, self.y0, self.x1 - self.x0, self.y1 - self.y0

    @property
    def centre(self) -> tuple[float, float, float, float]:
        x, y, width, height = self.xywh
        return x + width / 2, y + height / 2, width, height


def in_fractions(
    numbers: tuple[float, ...], width: int = WIDTH, height: int = HEIGHT
) -> list[float]:
    """Four numbers of a box, as fractions of the size of its image."""
    return [value / side for value, side in zip(numbers, (width, height) * 2, strict=True)]


def make_ground(number: int, width: int, height: int) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    waves = np.sin(x / (9 + number % 7) + number) + np.cos(y / (7 + number % 5) + 2 * number)
    return np.repeat((90 + 40 * waves)[:, :, None], 3, 2).astype(np.uint8)


def paint(image: Image.Image, box: Box) -> Image.Image:
    """The picture with one more rectangle, as far as it lies inside."""
    pixels = np.array(image)
    x0, y0, x1, y1 = (max(0, round(value)) for value in box.corners)
    pixels[y0:y1, x0:x1] = PAINTS[box.label]
    return Image.fromarray(pixels)


def draw_scene(
    number: int, width: int = WIDTH, height: int = HEIGHT
) -> tuple[Image.Image, list[Box]]:
    """A cat in the left half of the picture, and a dog in the right half."""
    rng, image, boxes = random.Random(number), make_ground(number, width, height), []
    for left, label in ((0, "cat"), (width // 2, "dog")):
        w, h = rng.randrange(width // 6, width // 3), rng.randrange(height // 6, height // 3)
        x0 = left + rng.randrange(2, width // 2 - w - 2)
        y0 = rng.randrange(2, height - h - 2)
        image[y0 : y0 + h, x0 : x0 + w] = PAINTS[label]
        boxes.append(Box(label, x0, y0, x0 + w, y0 + h))
    return Image.fromarray(image), boxes


def iterate_scenes(
    count: int = 24, start: int = 0, width: int = WIDTH, height: int = HEIGHT
) -> Iterator[tuple[int, Image.Image, list[Box]]]:
    for number in range(start, start + count):
        yield number, *draw_scene(number, width, height)


def draw_blob(number: int, label: str = "cat", size: int = 48) -> Image.Image:
    """A picture of one class."""
    image, side = Image.fromarray(make_ground(number, size, size)), 10 + number % 9
    return paint(image, Box(label, 8, 8, 8 + side + number % 5, 8 + side))


def store_turned(image: Image.Image, orientation: int) -> Image.Image:
    """The picture as a camera stores it, which its EXIF turns upright again."""
    turn = _STORED_BY_ORIENTATION.get(orientation)
    return image if turn is None else image.transpose(turn)


def make_exif(orientation: int) -> bytes:
    value = Image.Exif()
    value[0x0112] = orientation
    return value.tobytes()


def save(image: Image.Image, path: Path, **options) -> None:
    """Writes a picture. A JPEG keeps its full colours, for sharp edges."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = options.get("format", path.suffix.lower())
    sharp = {"quality": 95, "subsampling": 0} if kind in ("JPEG", ".jpg", ".jpeg") else {}
    image.save(path, **sharp, **options)


def save_turned(image: Image.Image, path: Path, orientation: int) -> None:
    save(store_turned(image, orientation), path, exif=make_exif(orientation))


def encode_png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def write(path: Path, content: str | bytes, encoding: str = "utf-8") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
