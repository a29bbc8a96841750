"""Pictures of examples with their boxes."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from pipeline_ops.pages.drawing import (
    CELL_PIXELS,
    GAP_PIXELS,
    LARGE_CELL_PIXELS,
    TEXT_PIXELS,
    LabelledBox,
    decode_image,
    draw_cell,
    draw_grid,
)

WHITE = (255, 255, 255)
IMAGE = Image.new("RGB", (100, 50), WHITE)


def draw(*boxes: LabelledBox) -> Image.Image:
    return draw_cell(IMAGE, boxes, "", "")


def test_a_box_is_at_its_fractions_of_an_image_in_the_middle_of_its_cell():
    cell = draw(LabelledBox((0.2, 0.1, 0.6, 0.5), "a"))
    top = (CELL_PIXELS - 130) // 2  # the image is drawn with 260 x 130 pixels
    colored = {
        (x, y)
        for x in range(CELL_PIXELS)
        for y in range(top + 50, CELL_PIXELS)  # below the text
        if cell.getpixel((x, y)) != WHITE
    }
    assert {x for x, _ in colored} == {*range(26, 130)}
    assert max(y for _, y in colored) == top + 77  # 0.6 of 130 pixels, the edge not included
    assert {x for x, y in colored if y == top + 60} == {26, 27, 128, 129}


def test_equal_boxes_do_not_hide_each_others_texts():
    box = LabelledBox((0.2, 0.1, 0.9, 0.9), "a", 0.5)
    assert draw(box) != draw(box, box)


def test_the_text_of_a_box_at_the_right_edge_is_inside_the_image():
    box = (0.0, 0.95, 1.0, 1.0)
    left_of_box = (0, 0, 240, CELL_PIXELS)
    assert draw(LabelledBox(box, "a")).crop(left_of_box).getcolors() == [(240 * CELL_PIXELS, WHITE)]
    assert len(draw(LabelledBox(box, "anemone")).crop(left_of_box).getcolors()) > 1


@pytest.mark.parametrize(
    ("count", "columns", "lines"), [(9, 3, 3), (6, 2, 3), (4, 3, 2), (1, 3, 1)]
)
def test_a_grid_has_a_line_for_each_few_cells(count, columns, lines):
    cells = [draw_cell(IMAGE, (), f"{i}", "", side=LARGE_CELL_PIXELS) for i in range(count)]
    picture = draw_grid(cells, columns)
    assert picture == draw_grid(cells, columns)
    assert Image.open(io.BytesIO(picture)).size == (
        columns * (LARGE_CELL_PIXELS + GAP_PIXELS) + GAP_PIXELS,
        lines * (LARGE_CELL_PIXELS + TEXT_PIXELS + GAP_PIXELS) + GAP_PIXELS,
    )


@pytest.mark.parametrize("file", [b"", b"none", b"\x89PNG\r\n\x1a\n" + b"0" * 100])
def test_in_place_of_a_file_that_is_no_image_the_cell_is_grey(file):
    image = decode_image(file)
    assert image is None
    assert draw_cell(image, (), "", "").getpixel((130, 130)) == (238, 238, 238)
