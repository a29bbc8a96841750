"""The axes of charts: linear scales, round ticks, and the sizes of drawings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

Point = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Axis:
    """A linear scale from `low` to `high` data units onto `start` to `end` pixels."""

    low: float
    high: float
    start: float
    end: float
    ticks: Sequence[float] = ()

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


@dataclasses.dataclass(frozen=True)
class Frame:
    """The size of a drawing and its margins, in pixels on a wide screen.

    The drawing scales with its page. At about this size, its text has the size of the style sheet.
    """

    width: int
    height: int
    left: int = 46
    right: int = 14
    top: int = 20
    bottom: int = 36

    def make_axes(
        self, x_ends: Point, x_ticks: Sequence[float], y_ticks: Sequence[float]
    ) -> tuple[Axis, Axis]:
        """The two axes. The y axis goes from its first to its last tick."""
        return (
            Axis(*x_ends, self.left, self.width - self.right, x_ticks),
            Axis(y_ticks[0], y_ticks[-1], self.height - self.bottom, self.top, y_ticks),
        )


SMALL, LARGE = Frame(330, 212), Frame(460, 220)
FLAT = Frame(330, 158, top=8, bottom=22)


def compute_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About `count` multiples of 1, 2 or 5 times a power of ten that cover `low` to `high`."""
    span = (high - low) or abs(high) or 1.0
    magnitude = 10 ** math.floor(math.log10(span / count))
    step = next(
        factor * magnitude for factor in (1, 2, 5, 10) if span / (factor * magnitude) <= count
    )
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, max(last, first + 1) + 1)]


def format_short(value: float) -> str:
    """Formats a value briefly: `0.25`, and `5e-4` instead of `0.0005`, which would be too wide."""
    plain, (mantissa, exponent) = f"{value:.4g}", f"{value:.3e}".split("e")
    scientific = f"{float(mantissa):g}e{int(exponent)}"
    return plain if len(plain) <= max(5, len(scientific)) else scientific
