"""The weights that a training begins with (`train.warm_start`), as an input of its plan.

The digest of the input is in the fingerprint. `champion` is the model in service when the training
is planned. An unchanged second run asks the same question as the first and finds it answered. So if
the champion itself came out of this very training, the input of that training counts again.
`version 3` is that version, whether it is in service or not.
"""

from __future__ import annotations

import re
from pathlib import Path

from pipeline_ops.artifacts.fingerprint import Fingerprint
from pipeline_ops.artifacts.input_names import WARM_START
from pipeline_ops.artifacts.manifest import Input, read_manifest
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.registry.registry import Registry
from pipeline_ops.storage.checksums import checksums_of
from pipeline_ops.storage.digest import digest_of

CHAMPION = "champion"
_VERSION = re.compile(r"version (\d+)")


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
    return _champion(config, fingerprint) if source == CHAMPION else _named(config, source)


def check_warm_start(config: PipelineConfig) -> None:
    """Checks the warm start in the first task of a run, hours before the training begins.

    Raises:
      ConfigError: as for `find_warm_start`.
    """
    if config.train.warm_start not in (None, CHAMPION):
        _named(config, config.train.warm_start)


def with_warm_start(fingerprint: Fingerprint, warm_start: Input | None) -> Fingerprint:
    return fingerprint.model_copy(
        update={
            "inputs": fingerprint.inputs | ({WARM_START: warm_start.digest} if warm_start else {})
        }
    )


def _champion(config: PipelineConfig, fingerprint: Fingerprint) -> Input | None:
    champion = Registry(config.registry).champion()
    if champion is None:
        return None
    manifest = champion.manifest()
    try:
        training = read_manifest(manifest.inputs["train"].uri)
    except DataError:  # its training has been removed; the model itself still exists
        training = None
    if (
        training is not None
        and training.fingerprint.digest
        == with_warm_start(fingerprint, began := training.inputs.get(WARM_START)).digest
    ):
        return began
    return Input(uri=champion.uri, digest=manifest.digest)


def _named(config: PipelineConfig, source: str) -> Input:
    if not (number := _VERSION.fullmatch(source)):
        return _at(config.path(source))
    versions = Registry(config.registry).versions()
    for version in versions:
        if version.number == int(number[1]):
            return Input(uri=version.uri, digest=version.manifest().digest)
    raise ConfigError(
        f"train.warm_start: there is no {source} of the model {config.export.model}; there are "
        f"{', '.join(str(version.number) for version in versions) or 'none'}"
    )


def _at(path: Path) -> Input:
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return Input(
            uri=str(path),
            digest=digest_of([[str(file.relative_to(path)), _sha256_of(file)] for file in files]),
        )
    if path.is_file():
        return Input(uri=str(path), digest=_sha256_of(path))
    raise ConfigError(
        f"train.warm_start: there is no {path}; give champion, a published one such as "
        "`version 3`, the folder of a SavedModel, or a file of weights"
    )


def _sha256_of(path: Path) -> str:
    with open(path, "rb") as file:
        return checksums_of(file).sha256
