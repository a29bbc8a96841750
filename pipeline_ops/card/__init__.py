"""Content of the author's own on a run's page: figures, tables, pictures and drawings.

    from pipeline_ops import card

    card.figure("Largest weight", 3.2)
    card.table("Hardest classes", [{"class": "7", "errors": 12}, {"class": "9", "errors": 9}])

Code that a job runs calls these functions: a source of the preprocess job, and all that a training
runs. The artifact of the job then has a page `card.html`, which is the tab Own of the run. A call
with the title of an earlier one replaces it. Outside of a job, and in a process whose content does
not count (`collection.py`), a call checks its arguments and does nothing else.

Every function raises TypeError for a value of another type, and ValueError for one that cannot be
shown, such as NaN. The message names the call. A page depends on its artifact's inputs alone, so
show no time and no duration: the artifact would not be the same when it is made again.
"""

from __future__ import annotations

import base64
import io
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from pipeline_ops.card.collection import add
from pipeline_ops.card.items import (
    MAX_COLUMNS,
    MAX_ROWS,
    CardDrawing,
    CardFigure,
    CardItem,
    CardPicture,
    CardTable,
    CardText,
)
from pipeline_ops.card.sanitizing import sanitize_svg
from pipeline_ops.storage.parsing import describe_validation_error

_MAX_SIDE = 4096


def text(content: str) -> None:
    """Shows a paragraph of up to 10,000 characters. Blank lines divide it."""
    _show("card.text", lambda: CardText(text=_check_text(content)))


def figure(title: str, value: float | str) -> None:
    """Shows a number, or a text with up to 500 characters, with its title."""
    _show(_name("figure", title), lambda: CardFigure(title=title, value=_format(value)))


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Shows a table. Each row has the same keys, which are the columns, up to 500 by 30 cells.

    A cell is a number, a text, or None for an empty one.
    """

    def make() -> CardItem:
        if not isinstance(rows, Sequence) or not all(isinstance(row, Mapping) for row in rows):
            raise TypeError("rows must be a list of dicts with the same keys")
        if not 1 <= len(rows) <= MAX_ROWS:
            raise ValueError(f"there must be 1 to {MAX_ROWS} rows, got {len(rows)}")
        columns = [_check_text(column) for column in rows[0]]
        if not 1 <= len(columns) <= MAX_COLUMNS:
            raise ValueError(f"there must be 1 to {MAX_COLUMNS} columns, got {len(columns)}")
        for number, row in enumerate(rows, 1):
            if [*row] != columns:
                raise ValueError(f"row {number} has other keys than row 1, or in another order")
        cells = [["" if row[c] is None else _format(row[c]) for c in columns] for row in rows]
        return CardTable(title=title, columns=columns, rows=cells)

    _show(_name("table", title), make)


def picture(title: str, image: Any) -> None:
    """Shows a picture.

    Args:
      image: the bytes of a PNG file, uint8 [H, W], [H, W, 1], [H, W, 3] or [H, W, 4] as an array or
        an eager tensor, or a figure of Matplotlib, which is anything with `savefig`.
    """
    _show(
        _name("picture", title),
        lambda: CardPicture(title=title, png=base64.b64encode(_to_png(image)).decode()),
    )


def svg(title: str, drawing: str) -> None:
    """Shows a drawing in SVG. Scripts, links, and what else is not a shape, a text or a style are
    taken out. The page says what.
    """

    def make() -> CardItem:
        content, removed = sanitize_svg(_check_text(drawing))
        return CardDrawing(title=title, svg=content, removed=removed)

    _show(_name("svg", title), make)


def _name(function: str, title: object) -> str:
    return f"card.{function}({title!r:.80})"


def _show(call: str, make: Callable[[], CardItem]) -> None:
    """Makes an item and adds it. All errors begin with the call."""
    try:
        add(make())
    except ValidationError as error:
        raise ValueError(f"{call}: {describe_validation_error(error)}") from None
    except TypeError as error:
        raise TypeError(f"{call}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{call}: {error}") from None


def _check_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"must be a text, got {type(value).__name__}")
    return value


def _format(value: Any) -> str:
    """Formats a number as a text. Takes scalars of NumPy and eager tensors, too."""
    if isinstance(value, str):
        return value
    number = value.numpy() if hasattr(value, "numpy") else value
    if getattr(number, "shape", None) == () and hasattr(number, "item"):
        number = number.item()
    if isinstance(number, bool):
        return "yes" if number else "no"
    if isinstance(number, numbers.Integral):
        return f"{int(number):,}"
    if not isinstance(number, numbers.Real):
        raise TypeError(f"must be a number or a text, got {type(value).__name__}")
    if not math.isfinite(number):
        raise ValueError(f"{number} is not a finite number. Show it as a text")
    return f"{float(number):,.6g}"


def _to_png(image: Any) -> bytes:
    if isinstance(image, bytes):
        return image  # checked by `CardPicture`
    file = io.BytesIO()
    if hasattr(image, "savefig"):
        image.savefig(file, format="png")
        return file.getvalue()
    import numpy as np
    from PIL import Image

    pixels = np.asarray(image)
    if pixels.ndim == 3 and pixels.shape[-1] == 1:
        pixels = pixels[..., 0]
    is_image = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[-1] in (3, 4))
    if pixels.dtype != np.uint8 or not is_image:
        raise TypeError(
            "must be the bytes of a PNG file, uint8 of the shape [H, W] or [H, W, 1, 3 or 4], or a "
            f"figure of Matplotlib, got {type(image).__name__} with {pixels.dtype} {pixels.shape}"
        )
    if not 1 <= min(pixels.shape[:2]) <= max(pixels.shape[:2]) <= _MAX_SIDE:
        raise ValueError(f"sides must have 1 to {_MAX_SIDE} pixels, got {pixels.shape[:2]}")
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
