"""Configs and raw data for tests: a pipeline's YAML as an author changes it, and the digits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

DIGITS = Path(__file__).resolve().parents[2] / "configs" / "digits.yaml"


def write_config(
    folder: Path, changes: Mapping[str, Any], base: Path = DIGITS, name: str | None = None
) -> Path:
    """Writes a copy of a config with other values by dotted key. Replaces an existing file.

    Args:
      folder: the folder of the copy.
      changes: values that a run's conf may not set are allowed, too.
      base: the config to copy.
      name: the name of the copy. Default: that of `base`.
    """
    values = yaml.safe_load(base.read_text())
    for key, value in changes.items():
        *sections, last = key.split(".")
        inner = values
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    file = folder / (name or base.name)
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    return file


def use_interpreter(folder: Path, python: Path | str, *tasks: str) -> dict[str, str]:
    """Writes a hosts file with an interpreter of jobs. Returns the keys by which tasks use it."""
    (folder / "hosts").mkdir(parents=True, exist_ok=True)
    content = {"launcher": "local", "python": str(python)}
    (folder / "hosts" / "venv.yaml").write_text(yaml.safe_dump(content))
    return {f"{task}.runs_on": "venv" for task in tasks}


def write_digits(folder: Path) -> None:
    """Writes the raw images of `configs/digits.yaml`."""
    argv = [sys.executable, "-m", "pipeline_ops.examples.digits", folder]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


def set_words(*overrides: str) -> list[str]:
    """The words of a command for some overrides, such as `train.epochs=3`."""
    return [word for override in overrides for word in ("--set", override)]
