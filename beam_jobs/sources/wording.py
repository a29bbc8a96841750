"""The words of a match and of its question, and its keys, as all recognisers write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def count(number: int, noun: str) -> str:
    """A number and a noun: `1 image`, `1,203 images`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def join_names(names: Sequence[str], limit: int = 5) -> str:
    """The first names, and the number of the others."""
    more = f" and {len(names) - limit:,} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def say_splits(folders: Mapping[str, str]) -> str:
    names = [f"{name} ({split})" for name, split in sorted(folders.items())]
    return f", in the folders {join_names(names)}" if names else ""


def say_folder(folder: str) -> str:
    return "" if folder == "." else f" in {folder}"


def get_task(has_boxes: bool) -> dict[str, Any]:
    return {"task": "detection" if has_boxes else "classification"}


def unless(key: str, value: Any, default: Any) -> dict[str, Any]:
    """The key of a source with a value, left out if the value is the default."""
    return {} if value == default else {key: value}
