"""The check of a model, its loss, metrics and callbacks on one batch, before any other work.

`pipeline_ops.training.check` does it, in its own process and in the interpreter of the train task,
so that the caller needs no TensorFlow. Callers are the preprocess job before its work, its task if
the data set already exists, and `trainyard validate --deep`. An unchanged model of the catalogue
needs no process, because this project's tests build each of them. A verdict is kept below the
storage root, so that an unchanged run starts no process.
"""

from __future__ import annotations

import logging
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from pipeline_ops.artifacts.fingerprint import CODE_ROOT, digest_code
from pipeline_ops.config.model_catalogue import Task, is_own
from pipeline_ops.config.model_data_rules import fault_of_size, validate_task
from pipeline_ops.config.train import Train
from pipeline_ops.config.yaml_source import ConfigText
from pipeline_ops.errors import ConfigError, MachineError
from pipeline_ops.jobs.planned_training import PlannedTraining
from pipeline_ops.storage.atomic import read_json, write_json
from pipeline_ops.storage.digest import digest_of
from pipeline_ops.user_code.callbacks import callback_code
from pipeline_ops.user_code.interpreter import versions_in
from pipeline_ops.user_code.models import code_of

_log = logging.getLogger(__name__)
_SECONDS = 300
_LOG_TAIL = 2000
_CHECKED = (
    "model",
    "model_parameters",
    "loss",
    "metrics",
    "callbacks",
    "label_smoothing",
    "precision",
    "synchronized_batch_normalization",
)
_CODE = ("pipeline_ops/models", "pipeline_ops/training/check.py")
_VERSIONS = ("tensorflow", "tensorflow-cpu", "keras", "numpy")


class ModelQuestion(BaseModel):
    """The question to the process that builds the model."""

    model_config = ConfigDict(frozen=True)

    config_file: str
    train: dict[str, Any]
    task: Task
    image_shape: tuple[int, int, int]
    num_classes: int


def needs_a_process(train: Train) -> bool:
    """Returns whether the check requires building the model."""
    has_own_code = is_own(train.model) or train.loss or train.metrics or train.callbacks
    return bool(has_own_code or train.model_parameters)


def validate_training(
    training: PlannedTraining,
    task: Task,
    image_shape: tuple[int, int, int],
    num_classes: int,
    passed: Path,
) -> None:
    """Checks that the model can be trained on a data set.

    Args:
      training: the training.
      task: the task of the data.
      image_shape: height, width and channels of all images.
      num_classes: number of classes.
      passed: the folder for passed verdicts.

    Raises:
      ConfigError: the model can't be trained. The message has file, line, key and cure.
      MachineError: the process was killed, or took too long.
    """
    train = Train.model_validate(training.train)
    validate_task(task, train.model, f"{training.config_file}: the data set")
    if fault := fault_of_size(train.model, *image_shape[:2]):
        size = f"{image_shape[0]}x{image_shape[1]}"
        message = f"train.model: {train.model} {fault}, and those of the data set are {size}"
        raise _placed(training, f"{message}; change preprocess.stages, or choose another model")
    if not needs_a_process(train):
        return
    question = ModelQuestion(
        config_file=training.config_file,
        train=training.train,
        task=task,
        image_shape=image_shape,
        num_classes=num_classes,
    )
    verdict = passed / f"{_fingerprint(training, train, question)}.json"
    if verdict.exists():
        return
    _log.info("building the model %s on one batch", train.model)
    answer = _ask(training, question)
    if answer.get("fault"):
        raise _placed(training, answer["fault"])
    if missing := answer.get("missing"):
        if not training.has_hosts:
            raise _placed(training, f"train.python: {missing}; name an interpreter that has it")
        _log.warning("the model is not checked here, because %s; the hosts do it", missing)
        return
    write_json(verdict, {"model": train.model})


def _fingerprint(training: PlannedTraining, train: Train, question: ModelQuestion) -> str:
    folder = Path(training.config_file).parent
    code = digest_code(_CODE) | code_of(train, folder) | callback_code(train.callbacks, folder)
    facts = question.model_dump(mode="json", include={"task", "image_shape", "num_classes"})
    chosen = {name: training.train[name] for name in _CHECKED}
    versions = versions_in(Path(training.python), _VERSIONS)
    return digest_of({"code": code, "versions": versions, "config": chosen, "data": facts})


def _ask(training: PlannedTraining, question: ModelQuestion) -> dict[str, Any]:
    """Runs the check. No user code can write into its folder before it starts."""
    with tempfile.TemporaryDirectory(prefix="model-check-") as name:
        folder, answer = Path(name), Path(name) / "answer.json"
        for package in (
            "pipeline_ops",
            "beam_jobs",
        ):  # our code only, and no installed packages next to it
            (folder / package).symlink_to(CODE_ROOT / package)
        argv = [training.python, "-P", "-m", "pipeline_ops.training.check", str(answer)]
        try:
            done = subprocess.run(
                argv,
                input=question.model_dump_json().encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=_environment(folder),
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise MachineError(f"the model was not built within {_SECONDS} s") from None
        except OSError as error:
            raise ConfigError(
                f"train.python: {training.python} cannot be started: {error}"
            ) from None
        found = read_json(answer) if answer.exists() else None
        if found is None:
            said = done.stdout.decode(errors="replace")[-_LOG_TAIL:].strip()
            raise MachineError(
                f"the process that builds the model {training.train['model']} ended with "
                f"{done.returncode}:\n{said}"
            )
    return found


def _environment(folder: Path) -> dict[str, str]:
    """The environment without Airflow's settings, which include its keys.

    The GPU is hidden, because it may be in use.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "_AIRFLOW"))}
    path = os.pathsep.join(filter(None, [str(folder), kept.get("PYTHONPATH")]))
    return kept | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1"}


def _placed(training: PlannedTraining, fault: str) -> ConfigError:
    """An error whose text begins with a key of the config, with file and line before it."""
    location = tuple(fault.partition(": ")[0].split("."))
    try:
        return ConfigError(
            f"{ConfigText.read(Path(training.config_file)).place(location)}: {fault}"
        )
    except ConfigError:  # the file has changed since the run started
        return ConfigError(f"{training.config_file}: {fault}")
