"""The data sets of a pipeline by version, for a run that asks for an existing one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.artifacts.manifest import NAME, Manifest, find_damage, read_manifest
from pipeline_ops.errors import ConfigError, DataError

_SHOWN = 8


def find_dataset(layout: Layout, version: str) -> Path:
    """Returns the manifest of the data set whose version or folder name begins with `version`.

    Raises:
      ConfigError: there is none, or there are several. The message lists the existing ones.
      DataError: the data set is damaged.
    """
    made = list(_made(layout))
    found = [
        (path, manifest)
        for path, manifest in made
        if manifest.digest.startswith(version) or path.parent.name.startswith(version)
    ]
    if len({manifest.digest for _, manifest in found}) != 1:
        there = "\n".join(
            (
                f"  {manifest.digest[:12]}  made {_when(path)}, "
                f"{sum(manifest.figures['num_examples'].values())} examples"
            )
            for path, manifest in made[:_SHOWN]
        )
        raise ConfigError(
            f"preprocess.dataset: {'no' if not found else 'more than one'} data set of "
            f"{layout.pipeline} has a version that begins with {version}; "
            + (f"there are, newest first:\n{there}" if made else "none has been made yet")
        )
    path, manifest = found[0]
    if damage := find_damage(path, manifest):
        raise DataError(
            f"preprocess.dataset: the data set {version} is damaged: {damage[0]}; "
            "without preprocess.dataset it is made anew"
        )
    return path


def _made(layout: Layout) -> Iterator[tuple[Path, Manifest]]:
    """Yields the data sets, newest first, without those of another version of Trainyard.

    Their manifests cannot be read.
    """
    for path in sorted(
        layout.artifacts("preprocess").glob(f"*/{NAME}"),
        key=lambda path: (path.stat().st_mtime_ns, path),
        reverse=True,
    ):
        try:
            yield path, read_manifest(path)
        except DataError:
            continue


def _when(path: Path) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(path.stat().st_mtime)) + " UTC"
