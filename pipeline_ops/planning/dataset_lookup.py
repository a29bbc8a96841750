"""The data sets of a pipeline by version, for a run that asks for an existing one."""

from __future__ import annotations

import time

from pipeline_ops.artifacts.damage import find_damage
from pipeline_ops.artifacts.layout import Layout, iterate_manifests
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.storage.store_path import StorePath

_MAX_LISTED = 8


def find_dataset(layout: Layout, version: str) -> StorePath:
    """Returns the manifest of the data set whose version or folder name begins with `version`.

    Raises:
      ConfigError: there is none, or there are several. The message lists the existing ones.
      DataError: the data set is damaged.
    """
    made = list(iterate_manifests(layout.artifacts("preprocess")))
    found = [
        (path, manifest)
        for path, manifest in made
        if manifest.digest.startswith(version) or path.parent.name.startswith(version)
    ]
    if len({manifest.digest for _, manifest in found}) != 1:
        listing = "\n".join(
            (
                f"  {manifest.digest[:12]}  made {_format_time(path)}, "
                f"{sum(manifest.figures['num_examples'].values())} examples"
            )
            for path, manifest in made[:_MAX_LISTED]
        )
        raise ConfigError(
            f"preprocess.dataset: {'no' if not found else 'more than one'} data set of "
            f"{layout.pipeline} has a version that begins with {version}. "
            + (f"The data sets are, newest first:\n{listing}" if made else "There is none yet.")
        )
    path, manifest = found[0]
    if damage := find_damage(path, manifest):
        raise DataError(
            f"preprocess.dataset: the data set {version} is damaged: {damage[0]}. "
            "Leave out preprocess.dataset to make it again."
        )
    return path


def _format_time(path: StorePath) -> str:
    entry = path.stat()
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(entry.modified if entry else 0)) + " UTC"
