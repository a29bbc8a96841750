"""The user's own modules beside the config file, for a job that does not see that folder.

Models, losses, metrics and callbacks may be there. The request carries them to another host.
Modules of installed packages must be installed there, too.
"""

from __future__ import annotations

from pathlib import Path

from pipeline_ops.config.train import Train
from pipeline_ops.jobs.request import Request
from pipeline_ops.storage.atomic import translate_write_errors, write_atomically
from pipeline_ops.user_code.models import digest_user_code

_FOLDER = "user_code"


def add_user_files(request: Request) -> Request:
    """Returns the request with the modules that its job needs.

    Raises:
      ConfigError: a module is missing, or is not valid Python.
    """
    training = request.training
    train = request.config if request.job == "train" else training and training.train
    if not train:
        return request
    folder = Path(request.config_file).parent
    paths = digest_user_code(Train.model_validate(train), folder)
    files = {path: (folder / path).read_text() for path in paths if (folder / path).is_file()}
    return request.model_copy(update={"user_files": files})


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
    return request.model_copy(
        update={"config_file": config_file, "training": training, "user_files": {}}
    )
