"""Python environments with the packages of this one, and without this repository."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Collection
from pathlib import Path

_OURS = ("__editable__", "airflow_provider_trainyard", "trainyard")


def link_packages(folder: Path, without: Collection[str] = ()) -> Path:
    """Makes an environment with links to all packages but some. Returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    left_out = (*_OURS, *(f"{name}{end}" for name in without for end in "._-"))
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        link, name = packages / entry.name, entry.name.lower()
        if not (name in without or name.startswith(left_out) or link.exists()):
            link.symlink_to(entry)
    return folder / "bin" / "python"
