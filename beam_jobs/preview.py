"""A picture of the effect of stages: raw examples on the left, their results on the right.

Labels and boxes are drawn. The preview reads only the raw files that it shows, and writes only the
picture. `trainyard preview` calls it, the job does not. All examples are treated as training
examples, so that `augment` shows its copies.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import cv2
from PIL import Image, ImageDraw, ImageFont

from beam_jobs.io.raw import read_raw
from beam_jobs.planning.plan import class_names_of, task_of
from beam_jobs.sources import read_records, validate_listing
from beam_jobs.stages import bind_stages, check_data
from beam_jobs.stages.stage import BoundStage, Box, Example, Rejected, run_stages
from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.yaml_source import nearest
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.raw_data.folder import find_raw_folder, list_folder

if TYPE_CHECKING:
    import numpy as np

_CELL = 260  # pixels: the side of the square that holds a picture
_TEXT = 34  # pixels: the height of the two lines below it
_GAP = 8
_MOST_SHOWN = 4  # results of one example
_COLORS = ("#e6194b", "#0082c8", "#f58231", "#3cb44b", "#911eb4", "#008080", "#aa6e28", "#808000")


@dataclasses.dataclass(frozen=True)
class Preview:
    """The picture, as a PNG file, and the number of examples by outcome."""

    png: bytes
    outcomes: dict[str, int]


@dataclasses.dataclass(frozen=True)
class _Row:
    """One example: before the stages, after them, and the outcome in words."""

    key: str
    before: Example | None
    after: tuple[Example, ...]
    outcome: str


def preview(config: PipelineConfig, stage: str | None, num_examples: int) -> Preview:
    """Draws the whole chain of a pipeline, or one of its stages.

    Args:
      config: a checked config.
      stage: the name of a stage in the config. Of two stages with the same name, the first is
        drawn. None draws the whole chain.
      num_examples: the number of raw examples to show. They are spread over the whole set, and are
        the same on every call.

    Raises:
      ConfigError: the config has no such stage, or a stage can't work on these data.
      DataError: there are no raw data.
      StageFailed: a stage has a bug.
    """
    stages = config.preprocess.stages
    place = _place_of(stage, [each.name for each in stages])
    listing = list_folder(find_raw_folder(config), Layout(config.root, config.pipeline).listings)
    validate_listing(config.preprocess, listing, config.file)
    records = read_records(config.preprocess.source, listing).records
    if not records:
        raise DataError(
            f"{listing.folder}: there is no usable file to show; "
            f"correct preprocess.source in {config.file}"
        )
    class_names = getattr(config.preprocess.source, "class_names", None) or class_names_of(records)
    check_data(config.preprocess, task_of(records), class_names, config.file)
    bound = bind_stages(stages)
    chosen = sorted(
        records, key=lambda record: hashlib.blake2b(record.key.encode(), person=b"preview").digest()
    )[:num_examples]
    # For the whole chain, and for `decode` itself, "before" is the decoded image.
    first, last = (1, len(bound)) if place is None else (max(place, 1), place + 1)
    examples = (
        Example(
            record.key,
            record.label,
            read_raw(record.file, listing.folder),
            boxes=record.boxes,
            frame=record.frame,
        )
        for record in chosen
    )
    return draw(examples, bound[:first], bound[first:last])


def _place_of(stage: str | None, names: Sequence[str]) -> int | None:
    if stage is None:
        return None
    if stage not in names:
        raise ConfigError(f"--stage {stage}: the config has no such stage; {nearest(stage, names)}")
    return names.index(stage)


def draw(
    examples: Iterable[Example], before: Sequence[BoundStage], shown: Sequence[BoundStage]
) -> Preview:
    """Draws examples.

    Args:
      examples: the examples as they were read.
      before: the stages that run before the shown ones. The first of them is `decode`.
      shown: the stages whose effect is shown.
    """
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    rows = [row for example in examples for row in _run(example, before, shown)]
    outcomes = Counter(row.outcome.partition(" (")[0] for row in rows)
    return Preview(_encode(_page(rows)), dict(sorted(outcomes.items())))


def _run(example: Example, before: Sequence[BoundStage], shown: Sequence[BoundStage]) -> list[_Row]:
    """One row for each example that reaches the shown stages, or a single row if none does."""
    came, end = _outcome(example, before)
    if not came:
        return [_Row(example.key, None, (), end)]
    rows = []
    for each in came:
        after, end = _outcome(each, shown)
        rows.append(
            _Row(
                each.key,
                each,
                tuple(after),
                end or ("unchanged, keeps its bytes" if _is_same(each, after) else "changed"),
            )
        )
    return rows


def _outcome(example: Example, stages: Sequence[BoundStage]) -> tuple[list[Example], str]:
    """Returns the examples that the stages make, or the reason if there are none."""
    skipped: Counter[str] = Counter()
    try:
        finished = run_stages(stages, example, Counter(), skipped)
    except Rejected as reject:
        return [], f"rejected by {reject.stage}: {reject.reason} ({reject.detail})"
    return finished, "" if finished else f"skipped by {next(iter(skipped))}"


def _is_same(before: Example, after: Sequence[Example]) -> bool:
    return (
        len(after) == 1
        and after[0].is_original
        and after[0].encoded is before.encoded
        and after[0].boxes == before.boxes
        and after[0].label == before.label
    )


def _page(rows: Sequence[_Row]) -> Image.Image:
    """Draws all rows, in two columns if each example stays one example."""
    num_after = max(1, *(min(len(row.after), _MOST_SHOWN) for row in rows))
    strips = [_strip(row, num_after) for row in rows]
    columns = 2 if num_after == 1 and len(strips) > 1 else 1
    width, height = strips[0].size
    page = Image.new(
        "RGB", (columns * width + _GAP, -(-len(strips) // columns) * height + _GAP), "white"
    )
    for index, strip in enumerate(strips):
        page.paste(strip, (index % columns * width, index // columns * height))
    return page


def _strip(row: _Row, num_after: int) -> Image.Image:
    """One row: before, an arrow, after."""
    step = _CELL + _GAP
    strip = Image.new("RGB", ((1 + num_after) * step + 4 * _GAP, _CELL + _TEXT + 2 * _GAP), "white")
    cells = [
        (row.before, row.key, row.outcome),
        *((each, each.key, "") for each in row.after[:_MOST_SHOWN]),
    ]
    for index, (example, key, note) in enumerate(cells):
        left = _GAP + index * step + (2 * _GAP if index else 0)
        strip.paste(_cell(example, key, note), (left, _GAP))
    x, y = 2 * _GAP + _CELL, _GAP + _CELL // 2
    ImageDraw.Draw(strip).polygon([(x - 5, y - 8), (x - 5, y + 8), (x + 7, y)], fill="#555")
    if len(row.after) > _MOST_SHOWN:
        text = f"and {len(row.after) - _MOST_SHOWN} more"
        draw_on = ImageDraw.Draw(strip)
        draw_on.text(
            (strip.width - draw_on.textlength(text, _font(12)) - _GAP, strip.height - 2 * _GAP - 6),
            text,
            fill="#b00",
            font=_font(12),
        )
    return strip


def _cell(example: Example | None, key: str, note: str) -> Image.Image:
    """A picture with two lines of text about the example."""
    cell = Image.new("RGB", (_CELL, _CELL + _TEXT), "white")
    if example is None:
        ImageDraw.Draw(cell).rectangle((0, 0, _CELL - 1, _CELL - 1), fill="#eee")
        known = []
    else:
        picture = _fitted(example)
        cell.paste(picture, ((_CELL - picture.width) // 2, (_CELL - picture.height) // 2))
        known = [
            f"{example.shape[1]}x{example.shape[0]}",
            example.label if example.boxes is None else f"{len(example.boxes)} boxes",
        ]
    pen = ImageDraw.Draw(cell)
    color = "#b00" if note.startswith(("rejected", "skipped")) else "#666"
    _write(pen, 2, key, "black", keep_end=True)
    _write(pen, 18, ", ".join([*known, *filter(None, [note])]), color)
    return cell


def _write(
    pen: ImageDraw.ImageDraw, line: int, text: str, color: str, keep_end: bool = False
) -> None:
    """Writes a line below a picture, shortened to the width of the cell.

    With `keep_end`, the start is cut off: the end of a key says more than its start.
    """
    font, shown = _font(12), text
    while pen.textlength(shown, font) > _CELL - 4:
        text = text[1:] if keep_end else text[:-1]
        shown = f"...{text}" if keep_end else f"{text}..."
    pen.text((2, _CELL + line), shown, fill=color, font=font)


def _fitted(example: Example) -> Image.Image:
    """The image with its boxes, scaled to the size of a cell. Small images are not smoothed."""
    height, width, channels = example.shape
    scale = _CELL / max(height, width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    picture = Image.fromarray(_three_channels(example.image)).resize(
        size, Image.Resampling.NEAREST if scale > 2 else Image.Resampling.BILINEAR
    )
    pen = ImageDraw.Draw(picture)
    for box in example.boxes or ():
        _draw_box(pen, box, size[0] / width, size[1] / height)
    return picture


def _draw_box(pen: ImageDraw.ImageDraw, box: Box, x_scale: float, y_scale: float) -> None:
    color = _COLORS[hashlib.blake2b(box.label.encode(), digest_size=2).digest()[0] % len(_COLORS)]
    left, top, right, bottom = (
        box.xmin * x_scale,
        box.ymin * y_scale,
        box.xmax * x_scale - 1,
        box.ymax * y_scale - 1,
    )
    pen.rectangle((left, top, max(left, right), max(top, bottom)), outline=color, width=2)
    pen.text(
        (left + 3, top + 1),
        box.label,
        fill=color,
        font=_font(11),
        stroke_width=2,
        stroke_fill="white",
    )


def _three_channels(image: np.ndarray) -> np.ndarray:
    return image.repeat(3, axis=2) if image.shape[2] == 1 else image


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _encode(page: Image.Image) -> bytes:
    file = io.BytesIO()
    page.save(file, "PNG")
    return file.getvalue()
