"""The user's own modules beside the config file, for a job that does not see that folder.

Models, losses, metrics, callbacks and a source may be there. The request carries them to another
host. Modules of installed packages must be installed there, too.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.config.train import Train
from pipeline_ops.jobs.request import Request
from pipeline_ops.storage.atomic import translate_write_errors, write_atomically
from pipeline_ops.user_code.models import digest_user_code
from pipeline_ops.user_code.sources import digest_source_code

_FOLDER = "user_code"


def add_user_files(request: Request) -> Request:
    """Returns the request with the modules that its job needs.

    Raises:
      ConfigError: a module is missing, or is not valid Python.
    """
    folder = Path(request.config_file).parent
    paths = {**_digest_training(request, folder), **_digest_source(request, folder)}
    files = {path: (folder / path).read_text() for path in paths if (folder / path).is_file()}
    return request.model_copy(
        update={
            "user_files": files,
        }
    )


def _digest_training(request: Request, folder: Path) -> dict[str, str]:
    training = request.training
    train = request.config if request.job == "train" else training and training.train
    return digest_user_code(Train.model_validate(train), folder) if train else {}


def _digest_source(request: Request, folder: Path) -> dict[str, str]:
    if request.job != "preprocess":
        return {}
    return digest_source_code(Preprocess.model_validate(request.config).source, folder)


def write_user_files(request: Request, folder: Path) -> Request:
    """Writes the modules that a request carries below a folder.

    Returns:
      The request with a config file in that folder, which need not exist.

    Raises:
      MachineError: the disk refused a file.
    """
    if not request.user_files:
        return request
    target = folder / _FOLDER
    for path, text in request.user_files.items():
        with translate_write_errors(target / path):
            (target / path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target / path, text.encode())
    config_file = str(target / Path(request.config_file).name)
    training = request.training
    if training:
        training = training.model_copy(update={"config_file": config_file})
    config = _make_path_absolute(request)
    return request.model_copy(
        update={
            "config_file": config_file,
            "config": config,
            "training": training,
            "user_files": {},
        }
    )


def _make_path_absolute(request: Request) -> dict[str, Any]:
    """The section of the job. The folder of raw data no longer depends on the config file's."""
    if request.job != "preprocess":
        return request.config
    source = request.config["source"]
    path = source["path"]
    if "://" not in path and not path.startswith("~"):
        path = os.path.normpath(Path(request.config_file).parent / path)
    return {**request.config, "source": {**source, "path": path}}
