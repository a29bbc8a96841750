"""The items of a card, as a checkpoint and a job hold them, with the limits of each."""

from __future__ import annotations

import base64
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from pipeline_ops.card.sanitizing import sanitize_svg
from pipeline_ops.storage.parsing import JsonModel

MAX_ITEMS = 50
MAX_CARD_BYTES = 2 << 20
"""The size of all items together. Pictures are in base64."""
MAX_ROWS, MAX_COLUMNS = 500, 30
_MAX_TITLE, _MAX_CELL, _MAX_TEXT = 200, 500, 10_000
_MAX_CONTENT = MAX_CARD_BYTES
_PNG = b"\x89PNG\r\n\x1a\n"

_Title = Annotated[str, Field(min_length=1, max_length=_MAX_TITLE)]
_Cell = Annotated[str, Field(max_length=_MAX_CELL)]


class _Item(JsonModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class CardText(_Item):
    kind: Literal["text"] = "text"
    text: str = Field(min_length=1, max_length=_MAX_TEXT)


class CardFigure(_Item):
    kind: Literal["figure"] = "figure"
    title: _Title
    value: _Cell


class CardTable(_Item):
    """Rows have one cell for each column."""

    kind: Literal["table"] = "table"
    title: _Title
    columns: list[_Cell] = Field(min_length=1, max_length=MAX_COLUMNS)
    rows: list[list[_Cell]] = Field(min_length=1, max_length=MAX_ROWS)

    @model_validator(mode="after")
    def _check_rows(self) -> CardTable:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError("each row must have one cell for each column")
        return self


class CardPicture(_Item):
    """`png` is a PNG file in base64."""

    kind: Literal["picture"] = "picture"
    title: _Title
    png: str = Field(max_length=_MAX_CONTENT)

    @field_validator("png")
    @classmethod
    def _check_png(cls, png: str) -> str:
        if not base64.b64decode(png, validate=True).startswith(_PNG):
            raise ValueError("must be a PNG file")
        return png


class CardDrawing(_Item):
    """`svg` is sanitized, also when it is read again. `removed` names what was taken out."""

    kind: Literal["svg"] = "svg"
    title: _Title
    svg: str = Field(max_length=_MAX_CONTENT)
    removed: list[_Cell] = Field([], max_length=MAX_ITEMS)

    @field_validator("svg")
    @classmethod
    def _sanitize(cls, svg: str) -> str:
        return sanitize_svg(svg)[0]

    @property
    def base64(self) -> str:
        return base64.b64encode(self.svg.encode()).decode()


CardItem = Annotated[
    CardText | CardFigure | CardTable | CardPicture | CardDrawing, Field(discriminator="kind")
]


class CardContent(JsonModel):
    """All items of one job. Raises ValueError for too many, or for more than 2 MB together."""

    model_config = ConfigDict(frozen=True)

    items: list[CardItem] = []

    @model_validator(mode="after")
    def _check_size(self) -> CardContent:
        if len(self.items) > MAX_ITEMS:
            raise ValueError(f"a job shows at most {MAX_ITEMS} items, and this is one more")
        size = sum(map(count_bytes, self.items))
        if size > MAX_CARD_BYTES:
            raise ValueError(
                f"a job shows at most {MAX_CARD_BYTES >> 20} MiB, and with this item it has "
                f"{size / (1 << 20):.1f} MiB. Use smaller pictures"
            )
        return self


def count_bytes(item: CardItem) -> int:
    """The size of an item as JSON."""
    return len(item.model_dump_json())
