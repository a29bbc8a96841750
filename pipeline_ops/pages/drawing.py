"""Pictures of examples for a person, as PNG files: images with their boxes and two lines of text.

The commands and the evaluation draw with these functions. Equal arguments give equal bytes.
"""

from __future__ import annotations

import functools
import hashlib
import io
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

CELL_PIXELS, LARGE_CELL_PIXELS = 260, 340
"""The side of the square that holds an image."""
TEXT_PIXELS = 34
"""The height of the two lines below it."""
GAP_PIXELS = 8
_COLORS = ("#e6194b", "#0082c8", "#f58231", "#3cb44b", "#911eb4", "#008080", "#aa6e28", "#808000")
load_font = functools.cache(ImageFont.load_default)


class LabelledBox(NamedTuple):
    """A box. `edges` are ymin, xmin, ymax, xmax as fractions of the image."""

    edges: Sequence[float]
    label: str
    score: float | None = None


def decode_image(file: bytes) -> Image.Image | None:
    """Decodes an image file. Returns None if Pillow cannot."""
    try:
        return Image.open(io.BytesIO(file)).convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None  # Pillow raises SyntaxError for a broken PNG


def draw_cell(
    image: Image.Image | None,
    boxes: Sequence[LabelledBox],
    title: str,
    text: str,
    color: str = "#666",
    side: int = CELL_PIXELS,
) -> Image.Image:
    """Draws an image with its boxes, or a grey square, and title and text below it.

    `color` is the text's. A long title, such as a key, is shortened at its start.
    """
    cell = Image.new("RGB", (side, side + TEXT_PIXELS), "white")
    pen = ImageDraw.Draw(cell)
    if image is None:
        pen.rectangle((0, 0, side - 1, side - 1), fill="#eee")
    else:
        picture = _draw_boxes(image, boxes, side)
        cell.paste(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
    write_line(pen, side, side + 2, title, "black", keep_end=True)
    write_line(pen, side, side + 18, text, color)
    return cell


def draw_grid(cells: Sequence[Image.Image], columns: int) -> bytes:
    """Returns a PNG of cells that all have the size of the first one, row by row."""
    width, height = cells[0].width + GAP_PIXELS, cells[0].height + GAP_PIXELS
    lines = -(-len(cells) // columns)
    page = Image.new("RGB", (columns * width + GAP_PIXELS, lines * height + GAP_PIXELS), "white")
    for index, cell in enumerate(cells):
        left, top = index % columns * width, index // columns * height
        page.paste(cell, (left + GAP_PIXELS, top + GAP_PIXELS))
    file = io.BytesIO()
    page.save(file, "PNG")
    return file.getvalue()


def write_line(
    pen: ImageDraw.ImageDraw, width: int, top: int, text: str, color: str, keep_end: bool = False
) -> None:
    """Writes a line below an image, shortened to a width."""
    font, shown = load_font(12), (text := _to_base_letters(text))
    while pen.textlength(shown, font) > width - 4:
        text = text[1:] if keep_end else text[:-1]
        shown = f"...{text}" if keep_end else f"{text}..."
    pen.text((2, top), shown, fill=color, font=font)


def _to_base_letters(text: str) -> str:
    """Removes accents, because Pillow's font has no letters with them."""
    parts = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in parts if not unicodedata.combining(letter))


def _draw_boxes(image: Image.Image, boxes: Sequence[LabelledBox], side: int) -> Image.Image:
    """Draws an image with its boxes in the size of a cell. Small images are not smoothed."""
    scale = side / max(image.size)
    width, height = (max(1, round(pixels * scale)) for pixels in image.size)
    method = Image.Resampling.NEAREST if scale > 2 else Image.Resampling.BILINEAR
    picture = image.convert("RGB").resize((width, height), method)
    pen, texts = ImageDraw.Draw(picture), []
    for box in boxes:
        digest = hashlib.blake2b(box.label.encode(), digest_size=2).digest()
        color = _COLORS[digest[0] % len(_COLORS)]
        ymin, xmin, ymax, xmax = box.edges
        left, top = xmin * width, ymin * height
        right, bottom = max(left, xmax * width - 1), max(top, ymax * height - 1)
        pen.rectangle((left, top, right, bottom), outline=color, width=2)
        text = box.label if box.score is None else f"{box.label} {box.score:.2f}"
        texts.append((left + 3, top + 1, text, color))
    _write_texts(pen, texts, width, height)  # last, so that no box crosses them
    return picture


def _write_texts(
    pen: ImageDraw.ImageDraw,
    texts: Sequence[tuple[float, float, str, str]],
    width: int,
    height: int,
) -> None:
    """Writes texts, each with its left, its top and its color.

    Moves a text to the left if it would leave the image, and down if it would hide another one.
    """
    font, line_pixels, written = load_font(11), 13, list[tuple[float, float, float]]()
    for left, top, name, color in texts:
        text = _to_base_letters(name)
        length = pen.textlength(text, font) + 2
        left = max(0.0, min(left, width - length))
        while top < height and any(
            abs(top - y) < line_pixels and left < end and start < left + length
            for start, end, y in written
        ):
            top += line_pixels
        written.append((left, left + length, top))
        pen.text((left, top), text, color, font, stroke_width=2, stroke_fill="white")


def count_boxes(number: int) -> str:
    """Returns `1 box`, `2 boxes`."""
    return "1 box" if number == 1 else f"{number} boxes"
