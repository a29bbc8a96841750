"""The formats of four numbers that are a box, and the check of a guess against all boxes.

Files rarely say what the numbers mean. Only one reading puts all boxes into their images: corners
that are read as center and size leave them, and sizes that are read as a corner are inverted. For
`recognise` functions. A source reads the format that its config names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from beam_jobs.sources.parsing import parse_number
from beam_jobs.stages.boxes import Size
from beam_jobs.stages.stage import Reject
from pipeline_ops.config.sources import BoxFormat

_MEANINGS: Mapping[BoxFormat, str] = {
    "xyxy": "two corners",
    "yxyx": "two corners, y before x",
    "xywh": "upper left corner, width, height",
    "center_xywh": "center, width, height",
}
USUAL_FORMATS: tuple[BoxFormat, ...] = ("xyxy", "xywh", "center_xywh")
_MANY_FAULTS = 0.05
_USUAL_FORMAT: BoxFormat = "xywh"
_MAX_FAULTS, _MIN_RATIO = 0.02, 4
"""Share of wrong boxes that a file may have in its own format, and how many times as many another
format must have if the share is larger, up to a quarter."""
_BOUND, _ROUNDING = 0.1, 0.01
"""How far a careless and a careful tool lets a box leave its image, as a share of its sides."""
_FRACTION_BOUND = 1.5


class Judgement(NamedTuple):
    """The formats that fit, best first, the unit of their numbers, and what was seen in words."""

    formats: list[BoxFormat]
    units: Literal["pixels", "fractions"]
    text: str


def to_corners(box: Any, box_format: str) -> tuple[float, float, float, float]:
    """Returns ymin, xmin, ymax, xmax. Raises Reject."""
    if not isinstance(box, Sequence) or len(box) != 4:
        raise Reject("malformed", f"a box must have four numbers, got {box!r:.80}")
    a, b, c, d = map(parse_number, box)
    match box_format:
        case "yxyx":
            return a, b, c, d
        case "xywh":
            return b, a, b + d, a + c
        case "center_xywh":
            return b - d / 2, a - c / 2, b + d / 2, a + c / 2
        case _:
            return b, a, d, c


def judge_formats(
    boxes: Sequence[tuple[Sequence[float], Size | None]],
    candidates: Sequence[BoxFormat] = USUAL_FORMATS,
) -> Judgement:
    """Tries formats on boxes, each with the size of its image in pixels, or None.

    Of several formats that fit roughly, those stay that fit closely.
    """
    numbers = [abs(number) for box, _ in boxes for number in box if math.isfinite(number)]
    is_fraction = bool(numbers) and max(numbers) <= _FRACTION_BOUND
    units: Literal["pixels", "fractions"] = "fractions" if is_fraction else "pixels"
    sized = [(box, (1.0, 1.0) if is_fraction else size) for box, size in boxes]
    rough, close = (
        {name: _count_faults(sized, name, bound) for name in candidates}
        for bound in (_BOUND, _ROUNDING)
    )
    found = _select(candidates, rough, len(sized))
    closely = _select(found, close, len(sized)) if len(found) > 1 else found
    # Boxes of the usual format may leave their images a little, so closeness alone is no proof.
    if _USUAL_FORMAT in closely or _USUAL_FORMAT not in found:
        found = closely or found
    found = sorted(found, key=lambda name: close[name])
    return Judgement(found, units, _describe(found, units, close, len(sized)))


def _select(
    candidates: Sequence[BoxFormat], faults: Mapping[BoxFormat, int], total: int
) -> list[BoxFormat]:
    """The formats in which nearly all boxes are right, or the only one with far fewer faults."""
    if good := [name for name in candidates if faults[name] <= _MAX_FAULTS * total]:
        return good
    best, *others = sorted(candidates, key=lambda name: faults[name])
    is_only = all(faults[other] >= _MIN_RATIO * faults[best] for other in others)
    return [best] if is_only and faults[best] <= total / 4 else []


def find_better(
    boxes: Sequence[tuple[Sequence[float], Size | None]], usual: BoxFormat
) -> tuple[BoxFormat, str] | None:
    """The format in which all boxes are right, with the words for it, if many are not in `usual`.

    `usual` is the one that the file's own format has.
    """
    if _count_faults(boxes, usual, _BOUND) <= _MANY_FAULTS * len(boxes):
        return None
    for name in USUAL_FORMATS:
        if not _count_faults(boxes, name, _BOUND):
            return name, judge_formats(boxes, [name, usual]).text
    return None


def _describe(
    found: Sequence[BoxFormat], units: str, faults: Mapping[BoxFormat, int], total: int
) -> str:
    wrong = ", ".join(
        f"{_MEANINGS[name]}: {count:,} of {total:,}"
        for name, count in faults.items()
        if name not in found[:1]
    )
    unit = "as fractions" if units == "fractions" else "in pixels"
    if not found:
        return f"boxes: no format fits. Outside of their images or inverted are as {wrong}"
    if len(found) > 1:
        return f"boxes: {' and '.join(_MEANINGS[name] for name in found)}, {unit}, fit alike"
    text = f"boxes: {_MEANINGS[found[0]]}, {unit}"
    return f"{text} (outside or inverted otherwise: {wrong})" if wrong else text


def _count_faults(
    boxes: Sequence[tuple[Sequence[float], Size | None]], box_format: BoxFormat, bound: float
) -> int:
    return sum(_is_fault(to_corners(box, box_format), size, bound) for box, size in boxes)


def _is_fault(corners: Sequence[float], size: Size | None, bound: float) -> bool:
    ymin, xmin, ymax, xmax = corners
    if not (ymin < ymax and xmin < xmax):  # also if a number is not finite
        return not (ymin == ymax or xmin == xmax) or not all(map(math.isfinite, corners))
    # Without a size, a box can only be seen to begin before the image.
    height, width = size or (math.inf, math.inf)
    least = 0.02 if (height, width) == (1.0, 1.0) else 2.0
    down = max(least, bound * height) if size else least
    right = max(least, bound * width) if size else least
    return ymin < -down or xmin < -right or ymax > height + down or xmax > width + right
