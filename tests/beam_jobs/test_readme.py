"""The stage that the README shows is a stage."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from beam_jobs.stages.stage import BoundStage, Example, Reject

README = Path(__file__).resolve().parents[2] / "beam_jobs" / "README.md"


@pytest.fixture
def shown(tmp_path: Path, monkeypatch) -> ModuleType:
    """The first Python block of the README, as the file that it tells to write."""
    code = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL).group(1)
    (tmp_path / "bright_enough.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("bright_enough")
    del sys.modules["bright_enough"]


@pytest.mark.parametrize("brightness, is_kept", [(5, False), (50, True)])
def test_the_stage_of_the_readme_works(shown, brightness, is_kept):
    stage = BoundStage("bright_enough", shown.bright_enough, shown.BrightEnough(min_mean=12))
    example = Example("cat/1.png", "cat", b"", np.full((4, 4, 3), brightness, np.uint8))
    if is_kept:
        assert stage(example) == [example]
    else:
        with pytest.raises(Reject, match="too_dark"):
            stage(example)
