"""The wheel of this package, as it is in the working tree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pipeline_ops.contract.source_code import CODE_ROOT

_PARTS = ("pipeline_ops", "beam_jobs", "pyproject.toml", "README.md", "LICENSE")


def build_wheel(folder: Path) -> Path:
    """Builds the wheel in a new folder, without what git ignores."""
    source = folder / "source"  # a build writes into its source
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *_PARTS],
        cwd=CODE_ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    for name in names:
        if (CODE_ROOT / name).exists():  # a file that was removed may still be known to git
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((CODE_ROOT / name).read_bytes())
    argv = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, source]
    subprocess.run(argv, check=True, capture_output=True)
    [found] = folder.glob("*.whl")
    return found
