"""Draws examples before and after stages as one picture. Called by `preview.py`."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from beam_jobs.stages.stage import Box, Example

_CELL_PIXELS = 260
"""The side of the square that holds an image."""
_TEXT_PIXELS = 34
"""The height of the two lines below it."""
_GAP_PIXELS = 8
_STEP_PIXELS = _CELL_PIXELS + _GAP_PIXELS
_MAX_RESULTS_SHOWN = 4
"""Maximum number of results that are shown of one example."""
_COLORS = ("#e6194b", "#0082c8", "#f58231", "#3cb44b", "#911eb4", "#008080", "#aa6e28", "#808000")
_load_font = functools.cache(ImageFont.load_default)


@dataclasses.dataclass(frozen=True)
class PreviewRow:
    """One example: before the stages, after them, and the outcome in words."""

    key: str
    before: Example | None
    after: Sequence[Example]
    outcome: str


def draw_rows(rows: Sequence[PreviewRow]) -> bytes:
    """A PNG of all rows, in two columns if each example stays one example."""
    num_after = max(1, *(min(len(row.after), _MAX_RESULTS_SHOWN) for row in rows))
    strips = [_draw_row(row, num_after) for row in rows]
    columns = 2 if num_after == 1 and len(strips) > 1 else 1
    width, height = strips[0].size
    lines = -(-len(strips) // columns)
    page = _make_image(columns * width + _GAP_PIXELS, lines * height + _GAP_PIXELS)
    for index, strip in enumerate(strips):
        page.paste(strip, (index % columns * width, index // columns * height))
    file = io.BytesIO()
    page.save(file, "PNG")
    return file.getvalue()


def _make_image(width: int, height: int) -> Image.Image:
    return Image.new("RGB", (width, height), "white")


def _draw_row(row: PreviewRow, num_after: int) -> Image.Image:
    """One row: before, an arrow, after."""
    strip = _make_image(
        (1 + num_after) * _STEP_PIXELS + 4 * _GAP_PIXELS,
        _CELL_PIXELS + _TEXT_PIXELS + 2 * _GAP_PIXELS,
    )
    strip.paste(_draw_cell(row.before, row.key, row.outcome), (_GAP_PIXELS, _GAP_PIXELS))
    for index, example in enumerate(row.after[:_MAX_RESULTS_SHOWN], start=1):
        left = 3 * _GAP_PIXELS + index * _STEP_PIXELS
        strip.paste(_draw_cell(example, example.key, ""), (left, _GAP_PIXELS))
    pen = ImageDraw.Draw(strip)
    x, y = 2 * _GAP_PIXELS + _CELL_PIXELS, _GAP_PIXELS + _CELL_PIXELS // 2
    pen.polygon([(x - 5, y - 8), (x - 5, y + 8), (x + 7, y)], fill="#555")
    if len(row.after) > _MAX_RESULTS_SHOWN:
        place = strip.width - _GAP_PIXELS, strip.height - 2 * _GAP_PIXELS - 6
        text = f"and {len(row.after) - _MAX_RESULTS_SHOWN} more"
        pen.text(place, text, fill="#b00", font=_load_font(12), anchor="ra")
    return strip


def _draw_cell(example: Example | None, key: str, caption: str) -> Image.Image:
    """An image with two lines of text about the example."""
    cell = _make_image(_CELL_PIXELS, _CELL_PIXELS + _TEXT_PIXELS)
    pen, facts = ImageDraw.Draw(cell), [caption] if caption else []
    if example is None:
        pen.rectangle((0, 0, _CELL_PIXELS - 1, _CELL_PIXELS - 1), fill="#eee")
    else:
        picture, (height, width, _) = _draw_example(example), example.shape
        left, top = (_CELL_PIXELS - picture.width) // 2, (_CELL_PIXELS - picture.height) // 2
        cell.paste(picture, (left, top))
        content = example.label if example.boxes is None else f"{len(example.boxes)} boxes"
        facts = [f"{width}x{height}", content, *facts]
    color = "#b00" if caption.startswith(("rejected", "skipped")) else "#666"
    _write_line(pen, 2, key, "black", keep_end=True)
    _write_line(pen, 18, ", ".join(facts), color)
    return cell


def _write_line(
    pen: ImageDraw.ImageDraw, line: int, text: str, color: str, keep_end: bool = False
) -> None:
    """Writes a line below an image, shortened to the width of the cell.

    With `keep_end`, the start is cut off: the end of a key identifies it better than its start.
    """
    font, shown = _load_font(12), text
    while pen.textlength(shown, font) > _CELL_PIXELS - 4:
        text = text[1:] if keep_end else text[:-1]
        shown = f"...{text}" if keep_end else f"{text}..."
    pen.text((2, _CELL_PIXELS + line), shown, fill=color, font=font)


def _draw_example(example: Example) -> Image.Image:
    """The image with its boxes, scaled to the size of a cell. Small images are not smoothed."""
    height, width, channels = example.shape
    scale = _CELL_PIXELS / max(height, width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    image = Image.fromarray(example.image[:, :, 0] if channels == 1 else example.image)
    method = Image.Resampling.NEAREST if scale > 2 else Image.Resampling.BILINEAR
    picture = image.convert("RGB").resize(size, method)
    pen = ImageDraw.Draw(picture)
    for box in example.boxes or ():
        _draw_box(pen, box.transform(size[1] / height, size[0] / width))
    return picture


def _draw_box(pen: ImageDraw.ImageDraw, box: Box) -> None:
    color = _COLORS[hashlib.blake2b(box.label.encode(), digest_size=2).digest()[0] % len(_COLORS)]
    right, bottom = max(box.xmin, box.xmax - 1), max(box.ymin, box.ymax - 1)
    pen.rectangle((box.xmin, box.ymin, right, bottom), outline=color, width=2)
    pen.text(
        (box.xmin + 3, box.ymin + 1),
        box.label,
        fill=color,
        font=_load_font(11),
        stroke_width=2,
        stroke_fill="white",
    )
