"""The formats of four numbers that are a box, and the check of a guess against all boxes.

Files rarely say what the numbers mean. Only one reading puts all boxes into their images: corners
that are read as center and size leave them, and sizes that are read as a corner are inverted. For
`recognise` functions. A source reads the format that its config names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from beam_jobs.sources.parsing import parse_number
from beam_jobs.stages.boxes import FRACTIONS, Size
from beam_jobs.stages.stage import Reject
from pipeline_ops.config.sources import BoxFormat

SizedBox = tuple[Sequence[float], Size | None]
"""Four numbers, and the size in pixels of the image that they are for, if it is known."""
_MEANINGS: Mapping[BoxFormat, str] = {
    "xyxy": "two corners",
    "yxyx": "two corners, y before x",
    "xywh": "upper left corner, width, height",
    "center_xywh": "center, width, height",
}
USUAL_FORMATS: tuple[BoxFormat, ...] = ("xyxy", "xywh", "center_xywh")
_MANY_FAULTS = 0.05
_MAX_FAULTS, _MIN_RATIO = 0.02, 4
"""Share of wrong boxes that a file may have in its own format, and how many times as many another
format must have if the share is larger, up to a quarter."""
_BOUND, _ROUNDING = 0.1, 0.01
"""How far a careless and a careful tool lets a box leave its image, as a share of its sides."""
_FRACTION_BOUND = 1.5


class Judgement(NamedTuple):
    """The formats that fit, best first, the unit of their numbers, and what was seen in words."""

    formats: list[BoxFormat]
    units: str
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
    boxes: Sequence[SizedBox], candidates: Sequence[BoxFormat] = USUAL_FORMATS
) -> Judgement:
    """Tries formats on boxes. Of several that fit roughly, those stay that fit closely."""
    numbers = [abs(number) for box, _ in boxes for number in box if math.isfinite(number)]
    is_fraction = max(numbers, default=math.inf) <= _FRACTION_BOUND
    boxes = [(box, FRACTIONS) for box, _ in boxes] if is_fraction else boxes
    rough, close = (
        {name: _count_faults(boxes, name, bound) for name in candidates}
        for bound in (_BOUND, _ROUNDING)
    )
    found = _select(candidates, rough, len(boxes))
    closely = _select(found, close, len(boxes)) if len(found) > 1 else found
    # Boxes of the usual format may leave their images a little, so closeness alone is no proof.
    if "xywh" in closely or "xywh" not in found:
        found = closely or found
    found = sorted(found, key=lambda name: close[name])
    text = _describe(found, "as fractions" if is_fraction else "in pixels", close, len(boxes))
    return Judgement(found, "fractions" if is_fraction else "pixels", text)


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
    boxes: Sequence[SizedBox], usual: BoxFormat, max_slips: float = 1.0
) -> tuple[BoxFormat, str] | None:
    """The format in which all boxes are right, with the words for it, if many are not in `usual`.

    `usual` is the one that the file's own format has. `max_slips` is the share of boxes that may
    leave their images by more than rounding, and not by far.
    """
    is_far = _count_faults(boxes, usual, _BOUND) > _MANY_FAULTS * len(boxes)
    if not is_far and _count_faults(boxes, usual, _ROUNDING) <= max_slips * len(boxes):
        return None
    for name in USUAL_FORMATS:
        if not _count_faults(boxes, name, _BOUND):
            return name, judge_formats(boxes, [name, usual]).text
    return None


def _describe(
    found: Sequence[BoxFormat], units: str, faults: Mapping[BoxFormat, int], total: int
) -> str:
    wrong = ", ".join(
        f"{_MEANINGS[name]}: {number:,} of {total:,}"
        for name, number in faults.items()
        if name not in found[:1]
    )
    text = f"boxes: {' and '.join(_MEANINGS[name] for name in found)}, {units}"
    if not found:
        return f"boxes: no format fits. Outside of their images or inverted are as {wrong}"
    if len(found) > 1:
        return f"{text}, fit alike"
    return f"{text} (outside or inverted otherwise: {wrong})" if wrong else text


def _count_faults(boxes: Sequence[SizedBox], box_format: BoxFormat, bound: float) -> int:
    """The number of inverted boxes, and of those that leave their images by more than a bound."""
    return sum(_is_fault(to_corners(box, box_format), size, bound) for box, size in boxes)


def _is_fault(corners: Sequence[float], size: Size | None, bound: float) -> bool:
    ymin, xmin, ymax, xmax = corners
    if not (ymin < ymax and xmin < xmax):  # also if a number is not finite
        return not (ymin == ymax or xmin == xmax) or not all(map(math.isfinite, corners))
    least = 0.02 if size == FRACTIONS else 2.0
    if size is None:  # a box can only be seen to begin before the image
        return min(ymin, xmin) < -least
    height, width = size
    down, right = max(least, bound * height), max(least, bound * width)
    return ymin < -down or xmin < -right or ymax > height + down or xmax > width + right
