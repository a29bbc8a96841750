"""The weights that a training begins with (`train.warm_start`), as an input of its plan.

The digest of the input is in the fingerprint. `champion` is the model in service when the training
is planned. An unchanged second run has the same fingerprint as the first and finds its artifact. So
if the champion itself came out of this very training, the input of that training counts again.
`version 3` is that version, whether it is in service or not.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from pipeline_ops.artifacts.fingerprint import Fingerprint
from pipeline_ops.artifacts.input_names import WARM_START
from pipeline_ops.artifacts.manifest import Input, read_manifest
from pipeline_ops.artifacts.moved_root import find_input
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.registry.registry import Registry
from pipeline_ops.storage.checksums import compute_checksums
from pipeline_ops.storage.digest import compute_digest
from pipeline_ops.storage.open_store import open_near

CHAMPION = "champion"


def find_warm_start(config: PipelineConfig, fingerprint: Fingerprint) -> Input | None:
    """Returns the input of a training, or None if it begins without one.

    Args:
      config: the checked config.
      fingerprint: the fingerprint of the training, without this input.

    Raises:
      ConfigError: there is no such file or folder.
    """
    source = config.train.warm_start
    if source is None:
        return None
    return (
        _find_champion_input(config, fingerprint)
        if source == CHAMPION
        else _find_named_input(config, source)
    )


def check_warm_start(config: PipelineConfig) -> None:
    """Checks the warm start in the first task of a run, hours before the training begins.

    Raises:
      ConfigError: as for `find_warm_start`.
    """
    if config.train.warm_start not in (None, CHAMPION):
        _find_named_input(config, config.train.warm_start)


def _find_champion_input(config: PipelineConfig, fingerprint: Fingerprint) -> Input | None:
    champion = Registry(config.registry).find_champion()
    if champion is None:
        return None
    manifest = champion.read_manifest()
    with contextlib.suppress(DataError):  # its training may have been removed
        training = read_manifest(
            open_near(config.root, find_input(manifest.inputs["train"], config.root).uri)
        )
        start = training.inputs.get(WARM_START)
        digests = {WARM_START: start.digest} if start else {}
        if training.fingerprint.digest == fingerprint.with_inputs(digests).digest:
            return start
    return Input(uri=champion.uri, digest=manifest.digest)


def _find_named_input(config: PipelineConfig, source: str) -> Input:
    if path := config.weights_path:
        return make_path_input(path)
    number = int(source.removeprefix("version "))
    versions = Registry(config.registry).list_versions()
    for version in versions:
        if version.number == number:
            return Input(uri=version.uri, digest=version.read_manifest().digest)
    raise ConfigError(
        f"train.warm_start: there is no {source} of the model {config.export.model}. Its versions "
        f"are {', '.join(str(version.number) for version in versions) or 'none'}."
    )


def make_path_input(path: Path) -> Input:
    """Returns the input for a SavedModel's folder or a file of weights.

    Raises ConfigError: there is neither.
    """
    if path.is_dir() and not (path / "saved_model.pb").is_file():
        inside = sorted(found.parent for found in path.glob("*/saved_model.pb"))
        cure = str(inside[-1]) if inside else "a SavedModel's folder, or a file of weights"
        raise ConfigError(
            f"train.warm_start: the folder {path} has no saved_model.pb. Give {cure}."
        )
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return Input(
            uri=str(path),
            digest=compute_digest(
                [[str(file.relative_to(path)), _compute_sha256(file)] for file in files]
            ),
        )
    if path.is_file():
        return Input(uri=str(path), digest=_compute_sha256(path))
    raise ConfigError(
        f"train.warm_start: there is no {path}. Give champion, a published version such as "
        "`version 3`, the folder of a SavedModel, or a file of weights."
    )


def _compute_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return compute_checksums(file).sha256
