"""The charts of all pages."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from pipeline_ops.pages.charts import (
    Line,
    compute_ticks,
    draw_interval_chart,
    draw_line_chart,
    draw_sparkline,
    format_short,
    thin,
)


def parse(markup) -> ElementTree.Element:
    return ElementTree.fromstring(str(markup))


@pytest.mark.parametrize(
    "low, high, ticks",
    [
        (0.0, 1.0, [0, 0.5, 1.0]),
        (0.02, 2.3, [0, 1, 2, 3]),
        (0.93, 0.994, [0.92, 0.94, 0.96, 0.98, 1.0]),
        (5.0, 5.0, [4, 6]),
        (0.0, 0.0, [0, 0.5]),
    ],
)
def test_ticks_are_round_and_cover_the_values(low, high, ticks):
    found = compute_ticks(low, high)
    assert found[0] <= low and found[-1] >= high
    if low != high:
        assert found == pytest.approx(ticks)


@pytest.mark.parametrize(
    "value, shown",
    [
        (0.25, "0.25"),
        (0.9985, "0.9985"),
        (0.9995, "0.9995"),
        (5e-4, "5e-4"),
        (1.25e-7, "1.25e-7"),
        (-0.05, "-0.05"),
        (1500.0, "1500"),
        (123_456.0, "1.235e5"),
        (0, "0"),
    ],
)
def test_a_tick_is_short_and_never_another_number(value, shown):
    assert format_short(value) == shown
    assert float(shown) == pytest.approx(value, rel=1e-3)


@pytest.mark.parametrize(
    "values", [[1.0], [0.0], [1.0, 1.0], [0.5, math.nan, 0.7], [1e-9, 1e-8], [1e9, 2e9]]
)
def test_any_curve_lies_inside_its_drawing(values):
    drawing = parse(draw_line_chart("Loss", [Line("loss", "training", list(enumerate(values, 1)))]))
    [curve] = drawing.iter("polyline")
    places = [tuple(map(float, pair.split(","))) for pair in curve.get("points").split()]
    assert len(places) == sum(map(math.isfinite, values))
    _, _, width, height = map(float, drawing.get("viewBox").split())
    assert all(0 <= x <= width and 0 <= y <= height for x, y in places)


@pytest.mark.parametrize("count", [400, 401, 100_000])
def test_a_long_curve_is_drawn_in_few_points_with_its_ends_and_extremes(count):
    points = [(x, x % 11) for x in range(count)]
    points[100], points[200] = (100, 50), (200, -50)
    kept = thin(points, 400)
    assert kept == points if count <= 400 else len(kept) <= 400
    assert {points[0], points[100], points[200], points[-1]} <= set(kept)
    assert kept == sorted(kept)
    drawing = str(draw_line_chart("Loss", [Line("loss", "training", points)]))
    assert ("epoch (lowest and highest values of neighbours)" in drawing) == (count > 400)
    assert drawing.count("<circle") == (400 if count == 400 else 0)


def test_nothing_to_draw_is_said():
    assert "Nothing was recorded" in draw_line_chart(
        "Loss", [Line("loss", "training", [(1, math.nan)])]
    )


def test_names_are_escaped():
    line = Line("<b>", '"><script>', [(1, 1.0), (2, 2.0)])
    drawing = str(draw_line_chart("<script>", [line], marked_x=1, marked_label="<i>"))
    assert "<script" not in drawing and "<b>" not in drawing and "<i>" not in drawing
    parse(drawing)


def test_a_better_challenger_is_drawn_to_the_right_of_the_champion():
    drawing = parse(draw_interval_chart(0.9, 0.8, 0.7, (0.85, 0.93)))
    x = {circle.get("class"): float(circle.get("cx")) for circle in drawing.iter("circle")}
    assert x["dot"] > x["ring"]


@pytest.mark.parametrize(
    "values", [[0.1, 0.9, 0.5], [0.5, 0.5], [0.0, 0.0, 0.0], [1e-9, 1e9], [-3.0, math.nan, 2.0]]
)
def test_a_sparkline_lies_inside_its_drawing_with_a_dot_at_the_marked_value(values):
    drawing = parse(draw_sparkline("accuracy", values, marked=len(values) - 1))
    [line], [dot] = drawing.findall("polyline"), drawing.findall("circle")
    points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
    assert len(points) == sum(map(math.isfinite, values))
    assert all(0 <= x <= 120 and 0 <= y <= 26 for x, y in points)
    assert (float(dot.get("cx")), float(dot.get("cy"))) == points[-1]
    assert drawing.get("aria-label") == "accuracy"


@pytest.mark.parametrize("values", [[], [0.5], [0.5, math.nan], [math.inf, 1e200, 1.0]])
def test_a_sparkline_of_fewer_than_two_values_is_not_drawn(values):
    assert draw_sparkline("accuracy", values) == ""
