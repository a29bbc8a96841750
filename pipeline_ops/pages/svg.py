"""The elements of the drawings on all pages, as inline SVG.

The drawings take their colours from the page, so they follow light, dark and print. Every function
returns markup in which all text is escaped. Colours are CSS classes of `page.css`. The pages of
evaluation and of preprocessing use this module.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from markupsafe import Markup

Point = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Axis:
    """A linear scale from `low` to `high` data units onto `start` to `end` pixels.

    `ticks` are at round numbers.
    """

    low: float
    high: float
    start: float
    end: float
    ticks: Sequence[float]

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def round_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About `count` multiples of 1, 2 or 5 times a power of ten that cover `low` to `high`."""
    span = (high - low) or abs(high) or 1.0
    magnitude = 10 ** math.floor(math.log10(span / count))
    step = next(
        factor * magnitude for factor in (1, 2, 5, 10) if span / (factor * magnitude) <= count
    )
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, max(last, first + 1) + 1)]


def short(value: float) -> str:
    """Formats a value briefly: `0.25`, and `5e-4` instead of `0.0005`, which would be too wide."""
    plain, (mantissa, exponent) = f"{value:.4g}", f"{value:.3e}".split("e")
    scientific = f"{float(mantissa):g}e{int(exponent)}"
    return plain if len(plain) <= max(5, len(scientific)) else scientific


def line(style: str, start: Point, end: Point) -> Markup:
    return Markup('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>').format(
        style, *start, *end
    )


def text(anchor: str, x: float, y: float, content: str) -> Markup:
    return Markup('<text class="tick" text-anchor="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(
        anchor, x, y, content
    )
