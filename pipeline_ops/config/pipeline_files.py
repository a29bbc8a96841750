"""Finds the pipeline configs of a folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path


def find_config_files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Path]:
    """The YAML files among and directly inside the given places, sorted within a folder.

    Hidden files are left out, because editors keep their locks and copies in them.
    """
    for path in map(Path, paths):
        if path.is_dir():
            yield from sorted(file for file in path.glob("*.yaml") if not file.name.startswith("."))
        else:
            yield path
