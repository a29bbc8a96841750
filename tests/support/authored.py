"""A pipeline's YAML as an author would change it: what a run's conf may not set, a test writes into
the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

DIGITS = Path(__file__).resolve().parents[2] / "configs" / "digits.yaml"


def write_config(folder: Path, changes: Mapping[str, Any], base: Path = DIGITS) -> Path:
    """A copy of a config with other values by dotted key, in a folder; a config that is there
    already is replaced."""
    values = yaml.safe_load(base.read_text())
    for key, value in changes.items():
        *sections, name = key.split(".")
        inner = values
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    folder.mkdir(parents=True, exist_ok=True)
    (folder / base.name).write_text(yaml.safe_dump(values, sort_keys=False))
    return folder / base.name
