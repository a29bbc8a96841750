"""Finds the pipeline configs of a folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path


def config_files(places: Iterable[str | os.PathLike]) -> Iterator[Path]:
    """The YAML files among and directly inside the given places, sorted within a folder.

    Hidden files are left out, because editors keep their locks and copies in them.
    """
    for place in map(Path, places):
        if place.is_dir():
            yield from sorted(
                file for file in place.glob("*.yaml") if not file.name.startswith(".")
            )
        else:
            yield place
