"""Programs of other projects in Node.js, which are fetched from npm once for each user."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from pipeline_ops.system.locks import exclusive_lock

_QUIET = ("--no-audit", "--no-fund", "--loglevel=error", "--ignore-scripts")


def find_missing_program() -> str | None:
    """The program without which no package of npm can run here."""
    return next((name for name in ("node", "npm") if shutil.which(name) is None), None)


def install_package(name: str, version: str) -> Path:
    """The folder of a package, fetched if this user does not have it yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainyard-tests"
    folder = cache / f"{name}-{version}"
    cache.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(cache / f"{name}.lock", f"the installation of {name}", wait_seconds=300):
        if not folder.exists():
            staging = cache / f"{name}-staging"
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir()
            subprocess.run(
                ["npm", "install", *_QUIET, f"{name}@{version}"], cwd=staging, check=True
            )
            staging.rename(folder)
    return folder / "node_modules" / name
