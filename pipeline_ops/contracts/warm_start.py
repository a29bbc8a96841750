"""What `train.warm_start` means for a plan: which weights a training begins with, as an input whose digest is in the fingerprint.

`champion` is the model in service when the training is planned. An unchanged second run asks the same question as the first and finds
it answered: where the champion itself came out of this very training, what that one began with counts again.
"""

from __future__ import annotations

from pathlib import Path

from pipeline_ops.contracts.config import PipelineConfig
from pipeline_ops.contracts.errors import ConfigError, DataError
from pipeline_ops.contracts.files import crc32c_of
from pipeline_ops.contracts.fingerprint import Fingerprint, digest_of
from pipeline_ops.contracts.manifest import Input, list_files, read_manifest
from pipeline_ops.contracts.registry import Registry

CHAMPION = "champion"
WARM_START = "warm_start"
"""The input's name in requests, manifests and fingerprints."""


def find_warm_start(config: PipelineConfig, fingerprint: Fingerprint) -> Input | None:
    """The input of a training, None where it begins anew.

    Args:
      config: the checked config.
      fingerprint: of the training, without this input.

    Raises:
      ConfigError: there is no such file or folder.
    """
    source = config.train.warm_start
    if source is None:
        return None
    return _champion(config, fingerprint) if source == CHAMPION else _at(config.path(source))


def with_warm_start(fingerprint: Fingerprint, warm_start: Input | None) -> Fingerprint:
    return fingerprint.model_copy(update={"inputs": fingerprint.inputs | ({WARM_START: warm_start.digest} if warm_start else {})})


def _champion(config: PipelineConfig, fingerprint: Fingerprint) -> Input | None:
    champion = Registry(config.registry).champion()
    if champion is None:
        return None
    manifest = champion.manifest()
    try:
        training = read_manifest(manifest.inputs["train"].uri)
    except DataError:  # its training has been removed since; the model itself is here
        training = None
    if training is not None and training.fingerprint.digest == with_warm_start(fingerprint, began := training.inputs.get(WARM_START)).digest:
        return began
    return Input(uri=champion.uri, digest=manifest.digest)


def _at(path: Path) -> Input:
    if path.is_dir():
        return Input(uri=str(path), digest=digest_of([file.model_dump() for file in list_files(path)]))
    if path.is_file():
        return Input(uri=str(path), digest=crc32c_of(path))
    raise ConfigError(f"train.warm_start: there is no {path}; give champion, the folder of a SavedModel, or a file of weights")
