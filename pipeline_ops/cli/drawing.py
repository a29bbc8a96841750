"""Pictures of examples, with labels and boxes.

`trainyard preview` shows the effect of stages: raw examples on the left, their results on the
right. All are treated as training examples, which every stage may change. `trainyard run`
shows examples of a new data set, from the beginnings of its shards. TensorFlow is not imported.
"""

from __future__ import annotations

import dataclasses
import io
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import cv2
from PIL import Image, ImageDraw

from beam_jobs.io.example import parse
from beam_jobs.io.raw import read_raw
from beam_jobs.io.tfrecord_files import scan_records
from beam_jobs.planning.plan import hash_key
from beam_jobs.stages import BoundStage, run_stages
from beam_jobs.stages.stage import Example, Rejected
from pipeline_ops.cli.arguments import read_source
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.reading import suggest_name
from pipeline_ops.contract.dataset import (
    BOX_EDGES,
    BOX_LABEL,
    ENCODED,
    KEY,
    LABEL,
    DatasetFigures,
    list_removed_positions,
    list_shards,
)
from pipeline_ops.contract.manifest import Manifest, locate_file, read_manifest
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.pages.drawing import (
    CELL_PIXELS,
    GAP_PIXELS,
    LARGE_CELL_PIXELS,
    TEXT_PIXELS,
    LabelledBox,
    count_boxes,
    decode_image,
    draw_cell,
    draw_grid,
    load_font,
    write_line,
)
from pipeline_ops.storage.store_path import StorePath

_SMALL_CELL_PIXELS, _NUM_LARGE = 160, 16
"""The side of the images, if there are more examples than this number."""
_PAGE_PIXELS, _CAPTION_PIXELS = 1400, 16
_FIGURE = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?")
_MAX_RESULTS_SHOWN = 4
"""Maximum number of results that are shown of one example."""
_NUM_EXAMPLES = 9
_NUM_PARSED = 64
"""The number of examples among which those with different classes are looked for."""
_MAX_BYTES = 4 << 20
"""Bytes to read of a shard."""


@dataclasses.dataclass(frozen=True)
class _Row:
    """One example: before the stages, after them, and the outcome in words."""

    key: str
    before: Example | None
    after: Sequence[Example]
    outcome: str

    @property
    def kind(self) -> str:
        """The outcome without its details, such as `rejected by blur_check: blurred`."""
        return self.outcome.partition(" (")[0]

    @property
    def figure(self) -> float | None:
        """The first number in the details, by which a stage has decided."""
        found = _FIGURE.search(self.outcome.partition(" (")[2])
        return float(found[0]) if found else None


@dataclasses.dataclass(frozen=True)
class ExampleOutcome:
    """The examples with one outcome: their number, and the figures that their details name."""

    kind: str
    count: int
    figures: list[float]

    def describe_figures(self) -> str:
        """Returns `3.1 to 9.8, half of them between 4 and 7.5`, or "" without figures."""
        if not self.figures:
            return ""
        low, first, _, third, high = (format(each, ".4g") for each in _quartiles(self.figures))
        middle = f", half of them between {first} and {third}" if len(self.figures) > 3 else ""
        return f"{low} to {high}{middle}"


def _quartiles(values: Sequence[float]) -> list[float]:
    if len(values) < 2:
        return [values[0]] * 5
    return [min(values), *statistics.quantiles(values, n=4, method="inclusive"), max(values)]


def draw_preview(
    config: PipelineConfig, stage: str | None, num_examples: int
) -> tuple[bytes, list[ExampleOutcome]]:
    """Draws the whole chain of a pipeline, or one of its stages.

    Returns the picture, as a PNG file, and the outcomes in the order of their names.

    Of two stages with the same name, the first is drawn. The raw examples are spread over the whole
    set, and are the same on every call. Raises StageFailed if a stage has a bug.
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
    num_after = max(1, *(min(len(row.after), _MAX_RESULTS_SHOWN) for row in rows))
    side = CELL_PIXELS if len(rows) <= _NUM_LARGE else _SMALL_CELL_PIXELS
    strips = [_draw_row(row, num_after, side) for row in rows]
    columns = max(1, min(len(strips), _PAGE_PIXELS // strips[0].width))
    outcomes = [
        ExampleOutcome(kind, len(found), [row.figure for row in found if row.figure is not None])
        for kind in sorted({row.kind for row in rows})
        if (found := [row for row in rows if row.kind == kind])
    ]
    return draw_grid(strips, columns), outcomes


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


def _draw_row(row: _Row, num_after: int, side: int) -> Image.Image:
    """One row: before, an arrow, after, and the whole outcome below all of them."""
    width = (1 + num_after) * (side + GAP_PIXELS) + 3 * GAP_PIXELS
    height = side + TEXT_PIXELS + _CAPTION_PIXELS + GAP_PIXELS
    strip = Image.new("RGB", (width, height), "white")
    strip.paste(_draw_example(row.before, row.key, side), (0, 0))
    for index, example in enumerate(row.after[:_MAX_RESULTS_SHOWN], start=1):
        left = 2 * GAP_PIXELS + index * (side + GAP_PIXELS)
        strip.paste(_draw_example(example, example.key, side), (left, 0))
    pen = ImageDraw.Draw(strip)
    color = "#b00" if row.outcome.startswith(("rejected", "skipped")) else "#666"
    write_line(pen, width, side + TEXT_PIXELS, row.outcome, color)
    x, y = GAP_PIXELS + side, side // 2
    pen.polygon([(x - 5, y - 8), (x - 5, y + 8), (x + 7, y)], fill="#555")
    if len(row.after) > _MAX_RESULTS_SHOWN:
        place = width - GAP_PIXELS, height - GAP_PIXELS - 6
        text = f"and {len(row.after) - _MAX_RESULTS_SHOWN} more"
        pen.text(place, text, fill="#b00", font=load_font(12), anchor="ra")
    return strip


def _draw_example(example: Example | None, key: str, side: int) -> Image.Image:
    """An image with two lines of text about the example."""
    if example is None:
        return draw_cell(None, (), key, "", side=side)
    height, width, channels = example.shape
    boxes = [
        LabelledBox(
            (box.ymin / height, box.xmin / width, box.ymax / height, box.xmax / width), box.label
        )
        for box in example.boxes or ()
    ]
    content = example.label if example.boxes is None else count_boxes(len(boxes))
    image = Image.fromarray(example.image[:, :, 0] if channels == 1 else example.image)
    return draw_cell(image, boxes, key, f"{width}x{height}, {content}", side=side)


def draw_examples(dataset: StorePath) -> bytes:
    """Draws up to nine training examples of a data set as a PNG file, by the path of its manifest.

    They show as many classes as possible. A data set always gives the same picture.
    """
    manifest = read_manifest(dataset)
    figures = DatasetFigures.model_validate(manifest.figures)
    examples = list(islice(_read_examples(dataset, manifest), _NUM_PARSED))
    if not examples:
        raise DataError(f"{dataset}: no training example can be read from the data set")
    label = BOX_LABEL if figures.task == "detection" else LABEL
    chosen = _choose([set(example[label]) for example in examples])
    return draw_grid([_draw_parsed(examples[i], figures) for i in chosen], columns=3)


def _read_examples(dataset: StorePath, manifest: Manifest) -> Iterator[dict[str, list[Any]]]:
    shards, removed = list_shards(manifest, "train"), list_removed_positions(manifest, "train")
    for shard, positions in zip(shards, removed, strict=True):
        start = locate_file(dataset, shard).read_range(0, min(shard.num_bytes, _MAX_BYTES))
        for position, (_, record) in enumerate(scan_records(io.BytesIO(start), len(start))):
            if isinstance(record, bytes) and position not in positions:
                yield parse(record)


def _choose(labels: Sequence[set[int]]) -> list[int]:
    """Prefers examples with a class that no earlier one has. Returns their positions in order."""
    seen: set[int] = set()
    is_new = []
    for found in labels:
        is_new.append(bool(found - seen))
        seen |= found
    ranked = sorted(range(len(labels)), key=lambda i: not is_new[i])
    return sorted(ranked[:_NUM_EXAMPLES])


def _draw_parsed(example: dict[str, list[Any]], figures: DatasetFigures) -> Any:
    image, names = decode_image(example[ENCODED][0]), figures.class_names
    boxes = []
    if figures.task == "detection":
        edges = zip(*(example[edge] for edge in BOX_EDGES), strict=True)
        labels = (names[label] for label in example[BOX_LABEL])
        boxes = [LabelledBox(box, label) for box, label in zip(edges, labels, strict=True)]
        content = count_boxes(len(boxes))
    else:
        content = names[example[LABEL][0]]
    size = f"{image.width}x{image.height}, " if image else ""
    key = example[KEY][0].decode("utf-8", "backslashreplace")
    return draw_cell(image, boxes, key, f"{size}{content}", side=LARGE_CELL_PIXELS)
