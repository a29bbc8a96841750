"""The code of a job on another host: the modules in its request, and the check of the rest.

A user's model, losses, metrics, callbacks and source beside the config file travel with the
request. Packages must be installed on the other host. An artifact must not have the fingerprint of
code that has not made it, so the job compares the code and the packages of its host with those that
the fingerprint names.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from pipeline_ops.artifacts.fingerprint import find_versions
from pipeline_ops.artifacts.source_code import PACKAGES, digest_all_sources
from pipeline_ops.config.evaluate import Evaluate
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.jobs.request import Request
from pipeline_ops.storage.local_files import translate_write_errors, write_atomically
from pipeline_ops.user_code.models import digest_user_code
from pipeline_ops.user_code.sources import digest_source_code
from pipeline_ops.user_code.stages import digest_stage_code

_FOLDER = "user_code"


def add_user_files(request: Request) -> Request:
    """Returns the request with the modules that its job needs. Raises ConfigError."""
    folder, training = Path(request.config_file).parent, request.training
    paths: dict[str, str] = {}
    if train := request.config if request.job == "train" else training and training.train:
        paths |= digest_user_code(Train.model_validate(train), folder)
    if request.job == "evaluate":
        paths |= digest_user_code(Evaluate.model_validate(request.config), folder)
    if request.job == "preprocess":
        paths |= digest_source_code(Preprocess.model_validate(request.config).source, folder)
    files = {path: (folder / path).read_text() for path in paths if (folder / path).is_file()}
    return request.model_copy(update={"user_files": files})


def write_user_files(request: Request, folder: Path) -> Request:
    """Writes the modules of a request below a folder. Returns it with a config file there."""
    if not request.user_files:
        return request
    target = folder / _FOLDER
    for path, text in request.user_files.items():
        with translate_write_errors(target / path):
            (target / path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target / path, text.encode())
    config_file = str(target / Path(request.config_file).name)
    training, config = request.training, request.config
    if training:
        training = training.model_copy(update={"config_file": config_file})
    if request.job == "preprocess":  # its folder of raw data may depend on the config file's
        path = config["source"]["path"]
        if "://" not in path and not path.startswith("~"):
            path = os.path.normpath(Path(request.config_file).parent / path)
        config = {**config, "source": {**config["source"], "path": path}}
    return request.model_copy(
        update={
            "config_file": config_file,
            "config": config,
            "training": training,
            "user_files": {},
        }
    )


IMAGE = "image"
"""The version of an image, which stands for those of all packages in it."""


def digest_code() -> str:
    """The digest of this project's code here."""
    return digest_all_sources(packages=PACKAGES)


def _digest_own_code(request: Request) -> dict[str, str]:
    """The digests of the author's own modules here. Raises ConfigError if one is missing."""
    folder = Path(request.config_file).parent
    match request.job:
        case "train":
            return digest_user_code(Train.model_validate(request.config), folder)
        case "evaluate":
            return digest_user_code(Evaluate.model_validate(request.config), folder)
        case "preprocess":
            config = Preprocess.model_validate(request.config)
            stages = digest_stage_code([stage.name for stage in config.stages])
            return stages | digest_source_code(config.source, folder)
        case _:
            return {}


def validate_environment(request: Request, own_code: Mapping[str, str] | None = None) -> None:
    """Raises ConfigError if this host has other code or packages than those of the plan.

    `own_code` are the digests of the author's modules that are needed here, by default all.
    """
    if request.code_digest and request.code_digest != (found := digest_code()):
        raise ConfigError(
            f"the copy of Trainyard on {platform.node()} (digest {found}) is not the one that "
            f"Airflow has ({request.code_digest}). Install the same version there, or build the "
            "image again"
        )
    for path, digest in (_digest_own_code(request) if own_code is None else own_code).items():
        if request.fingerprint.code.get(path) != digest:
            raise ConfigError(
                f"{path} on {platform.node()} is not the one that Airflow has. Install the same "
                "version of its package there, or build the image again"
            )
    expected = request.fingerprint.versions
    if IMAGE in expected:
        return
    installed = find_versions(expected) | {"python": platform.python_version()}
    differing = [
        f"{name} {installed.get(name, 'missing')} and not {version}"
        for name, version in sorted(expected.items())
        if installed.get(name) != version
    ]
    if differing:
        raise ConfigError(
            f"{platform.node()} has {', '.join(differing)}. All hosts that a job runs on need the "
            "same packages"
        )
