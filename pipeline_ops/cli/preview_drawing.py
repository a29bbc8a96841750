"""A picture of the effect of stages: raw examples on the left, their results on the right.

Labels and boxes are drawn. The preview reads only the raw files that it shows, and writes only the
picture. `trainyard preview` calls it, the job does not. All examples are treated as training
examples, so that `augment` shows its copies.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
from collections import Counter
from collections.abc import Sequence

import cv2
from PIL import Image, ImageDraw, ImageFont

from beam_jobs.io.raw import read_raw
from beam_jobs.planning.plan import hash_key
from beam_jobs.stages.execution import BoundStage, run_stages
from beam_jobs.stages.stage import Example, Rejected
from pipeline_ops.cli.deep_validation import read_source
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.yaml_source import suggest_name
from pipeline_ops.errors import ConfigError, DataError

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
class _Row:
    """One example: before the stages, after them, and the outcome in words."""

    key: str
    before: Example | None
    after: Sequence[Example]
    outcome: str


@dataclasses.dataclass(frozen=True)
class Preview:
    """The picture, as a PNG file, and the number of examples by outcome."""

    png: bytes
    outcomes: dict[str, int]


def draw_preview(config: PipelineConfig, stage: str | None, num_examples: int) -> Preview:
    """Draws the whole chain of a pipeline, or one of its stages.

    Of two stages with the same name, the first is drawn. The raw examples are spread over the whole
    set, and are the same on every call.

    Raises:
      ConfigError: the config has no such stage, or a stage cannot work on these data.
      DataError: there are no raw data.
      StageFailed: a stage has a bug.
    """
    names = [each.name for each in config.preprocess.stages]
    # For the whole chain, and for `decode` itself, "before" is the decoded image.
    first, last = 1, len(names)
    if stage is not None:
        if stage not in names:
            raise ConfigError(
                f"--stage {stage}: the config has no such stage; {suggest_name(stage, names)}"
            )
        first, last = max(names.index(stage), 1), names.index(stage) + 1
    source = read_source(config)
    if not source.found.records:
        raise DataError(
            f"{source.folder}: there is no usable file to show. "
            f"Correct preprocess.source in {config.file}."
        )
    records = sorted(source.found.records, key=lambda record: hash_key(b"preview", 0, record.key))
    before, shown = source.stages[:first], source.stages[first:last]
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    rows: list[_Row] = []
    for record in records[:num_examples]:
        example = record.to_example(read_raw(record.file, source.folder))
        rows += _run_stages(example, before, shown)
    outcomes = Counter(row.outcome.partition(" (")[0] for row in rows)
    return Preview(_draw_rows(rows), dict(sorted(outcomes.items())))


def _run_stages(
    example: Example, before: Sequence[BoundStage], shown: Sequence[BoundStage]
) -> list[_Row]:
    """One row for each example that reaches the shown stages, or a single row if none does.

    `before` are the stages before the shown ones. The first of them is `decode`.
    """
    reached, end = _run_to_outcome(example, before)
    rows = [] if reached else [_Row(example.key, None, (), end)]
    for each in reached:
        after, end = _run_to_outcome(each, shown)
        outcome = end or ("unchanged, keeps its bytes" if _is_same(each, after) else "changed")
        rows.append(_Row(each.key, each, after, outcome))
    return rows


def _run_to_outcome(example: Example, stages: Sequence[BoundStage]) -> tuple[list[Example], str]:
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


def _draw_rows(rows: Sequence[_Row]) -> bytes:
    """A PNG of all rows, in two columns if each example stays one example."""
    num_after = max(1, *(min(len(row.after), _MAX_RESULTS_SHOWN) for row in rows))
    strips = [_draw_row(row, num_after) for row in rows]
    columns = 2 if num_after == 1 and len(strips) > 1 else 1
    width, height = strips[0].size
    lines = -(-len(strips) // columns)
    page = Image.new("RGB", (columns * width + _GAP_PIXELS, lines * height + _GAP_PIXELS), "white")
    for index, strip in enumerate(strips):
        page.paste(strip, (index % columns * width, index // columns * height))
    file = io.BytesIO()
    page.save(file, "PNG")
    return file.getvalue()


def _draw_row(row: _Row, num_after: int) -> Image.Image:
    """One row: before, an arrow, after."""
    width = (1 + num_after) * _STEP_PIXELS + 4 * _GAP_PIXELS
    height = _CELL_PIXELS + _TEXT_PIXELS + 2 * _GAP_PIXELS
    strip = Image.new("RGB", (width, height), "white")
    strip.paste(_draw_cell(row.before, row.key, row.outcome), (_GAP_PIXELS, _GAP_PIXELS))
    for index, example in enumerate(row.after[:_MAX_RESULTS_SHOWN], start=1):
        left = 3 * _GAP_PIXELS + index * _STEP_PIXELS
        strip.paste(_draw_cell(example, example.key, ""), (left, _GAP_PIXELS))
    pen = ImageDraw.Draw(strip)
    x, y = 2 * _GAP_PIXELS + _CELL_PIXELS, _GAP_PIXELS + _CELL_PIXELS // 2
    pen.polygon([(x - 5, y - 8), (x - 5, y + 8), (x + 7, y)], fill="#555")
    if len(row.after) > _MAX_RESULTS_SHOWN:
        place = width - _GAP_PIXELS, height - 2 * _GAP_PIXELS - 6
        text = f"and {len(row.after) - _MAX_RESULTS_SHOWN} more"
        pen.text(place, text, fill="#b00", font=_load_font(12), anchor="ra")
    return strip


def _draw_cell(example: Example | None, key: str, caption: str) -> Image.Image:
    """An image with two lines of text about the example."""
    cell = Image.new("RGB", (_CELL_PIXELS, _CELL_PIXELS + _TEXT_PIXELS), "white")
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

    The end of a key identifies it better than its start.
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
    for given in example.boxes or ():
        box = given.transform(size[1] / height, size[0] / width)
        digest = hashlib.blake2b(box.label.encode(), digest_size=2).digest()
        color = _COLORS[digest[0] % len(_COLORS)]
        right, bottom = max(box.xmin, box.xmax - 1), max(box.ymin, box.ymax - 1)
        pen.rectangle((box.xmin, box.ymin, right, bottom), outline=color, width=2)
        place, font = (box.xmin + 3, box.ymin + 1), _load_font(11)
        pen.text(place, box.label, color, font, stroke_width=2, stroke_fill="white")
    return picture
