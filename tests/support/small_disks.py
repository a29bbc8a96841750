"""A file system that is full soon."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

DISK_BYTES = 64 << 10


@pytest.fixture
def small_disk(tmp_path):
    """A folder on its own file system of 64 KiB."""
    with mount_small_disk(tmp_path / "disk") as folder:
        yield folder


@contextlib.contextmanager
def mount_small_disk(folder: Path, limits: str = f"size={DISK_BYTES}") -> Iterator[Path]:
    """Makes a folder with its own file system, of 64 KiB or with other limits of tmpfs."""
    folder.mkdir(parents=True)
    mounted = (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", limits, "tmpfs", str(folder)],
            capture_output=True,
            text=True,
        )
        if shutil.which("mount")
        else None
    )
    if mounted is None or mounted.returncode:
        pytest.skip(
            "a file system can't be mounted here: "
            f"{mounted.stderr.strip() if mounted else 'there is no mount'}"
        )
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # a process may be ending
