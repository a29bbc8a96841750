"""The package of docs/add-a-place.md, as a user has written and installed it."""

from __future__ import annotations

import os
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline_ops.config import hosts
from pipeline_ops.contract.source_code import CODE_ROOT

PAGE = CODE_ROOT / "docs" / "add-a-place.md"


def install_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs the package for this process, and for those that it starts."""
    text = PAGE.read_text()
    [module] = re.findall(r"^ *```python\n(.+?)^ *```", text, re.MULTILINE | re.DOTALL)
    [project] = re.findall(r"^ *```toml\n(.+?)^ *```", text, re.MULTILINE | re.DOTALL)
    [(group, places)] = tomllib.loads(textwrap.dedent(project))["project"]["entry-points"].items()
    install_entry_points(folder, monkeypatch, group, places)
    (folder / "wrapped_place.py").write_text(textwrap.dedent(module))


def install_entry_points(
    folder: Path, monkeypatch: pytest.MonkeyPatch, group: str, targets: dict[str, str]
) -> None:
    """Makes a distribution `outside` in a folder, which comes first in the path of Python."""
    metadata = folder / "outside-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    lines = [f"{name} = {target}" for name, target in targets.items()]
    (metadata / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    for module in ("wrapped_place", "limited"):
        sys.modules.pop(module, None)
    hosts.find_entry_points.cache_clear()


@pytest.fixture
def outside_place(tmp_path, monkeypatch) -> Iterator[None]:
    with monkeypatch.context() as changes:
        install_place(tmp_path / "outside", changes)
        yield
    hosts.find_entry_points.cache_clear()
