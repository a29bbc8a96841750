"""One broken pipeline config: `GOOD` with one defect.

A message about anything else is wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

GOOD = """\
pipeline: small
preprocess:
  source: {type: image_folder, path: raw}
  stages: [decode]
  split: {train: 0.8, validation: 0.1, test: 0.1}
train:
  model: digits_cnn
  epochs: 3
evaluate:
  gate:
    - {metric: accuracy, at_least: 0.9}
export:
  model: small
"""


@dataclasses.dataclass(frozen=True)
class Broken:
    """A defect. `line` is None where no line can be named, such as for a folder."""

    name: str
    content: bytes | Callable[[Path], None]
    line: int | None
    says: tuple[str, ...]

    def write(self, folder: Path) -> Path:
        file = folder / f"{self.name}.yaml"
        if callable(self.content):
            self.content(file)
        else:
            file.write_bytes(self.content)
        return file


def replace(name: str, old: str, new: str, line: int | None, *says: str) -> Broken:
    """GOOD with a replacement. Its pipeline is named after the file,
    unless that is what is replaced."""
    assert GOOD.count(old) == 1, name
    text = GOOD.replace(old, new).replace("pipeline: small", f"pipeline: {name}")
    return Broken(name, text.encode(), line, says)


def with_schedule(name: str, value: str, *says: str) -> Broken:
    return replace(name, "pipeline: small\n", f"pipeline: small\nschedule: {value}\n", 2, *says)


def make_file(
    name: str, content: bytes | Callable[[Path], None], line: int | None, *says: str
) -> Broken:
    return Broken(name, content, line, says)
