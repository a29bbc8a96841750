"""The check of a model on one batch, and the measurement of its steps, before any other work.

`pipeline_ops.training.check` checks model, loss, metrics and callbacks in its own process and in
the interpreter of the train task, so that the caller needs no TensorFlow. Callers are the
preprocess and the train job before their work, `trainyard validate --deep` and `trainyard init`. An
unchanged model of the catalogue needs no process, because tests build each of them.

`pipeline_ops.training.step_times` measures training steps in the same way, for `trainyard init`.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline_ops.config.model_catalogue import Task, is_user_function
from pipeline_ops.config.model_data_rules import check_task, find_size_problem
from pipeline_ops.config.reading import locate_in_file
from pipeline_ops.config.train import Train
from pipeline_ops.contract.explanation import Explanation
from pipeline_ops.contract.planned_training import PlannedTraining, UserCode
from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.errors import ExitCode, MachineError, TrainyardError, make_error
from pipeline_ops.storage.local_files import read_json
from pipeline_ops.storage.open_store import is_remote
from pipeline_ops.storage.parsing import JsonModel
from pipeline_ops.user_code.interpreter import read_versions
from pipeline_ops.user_code.models import read_user_code

if TYPE_CHECKING:
    from pipeline_ops.config.pipeline import PipelineConfig


_log = logging.getLogger(__name__)
_UNEXPLAINED = Explanation()
_TIMEOUT_SECONDS = 300
_LOG_TAIL = 2000
_MODULE, _TRIAL_MODULE = "pipeline_ops.training.check", "pipeline_ops.served.trial"


class ModelCheckRequest(BaseModel):
    """The input of the process that builds the model."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    config_file: str
    train: dict[str, Any]
    task: Task
    image_shape: tuple[int, int, int]
    num_classes: int
    weights: str = ""
    """The file or the folder of weights that must fit the model."""
    code: UserCode = UserCode()
    """The author's code, which the check writes into a folder of its own."""


class StageTrial(BaseModel):
    """A stage of a user, and what its Python function has made of an image.

    `position` is that of the stage in the config. The NPZ file `arrays` has the image as `before`,
    the results as `after_0`, `after_1` ..., uint8 [H, W, C], and the B boxes that the stage kept as
    `boxes_before` and `boxes_after`, float [B, 4], in fractions of the image and of `after_0`.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    name: str
    parameters: dict[str, Any] = {}
    position: int
    key: str
    arrays: str


class StageTrials(BaseModel):
    """The input of the process that tries `serve` of stages."""

    model_config = ConfigDict(frozen=True)

    trials: list[StageTrial]


def plan_training(config: PipelineConfig, python: str) -> PlannedTraining:
    """The training of a config. `python` is the interpreter if the config names none."""
    places = map(config.find_job_hosts, ("preprocess", "train"))
    is_elsewhere = any(place and not place.is_this_host for place in places)
    folder, weights = config.file.parent, config.initial_weights
    has_weights = weights and not (is_elsewhere or is_remote(weights.path))
    return PlannedTraining(
        config_file=str(config.file),
        train=config.train.model_dump(mode="json"),
        python="" if is_elsewhere else str(config.resolve_interpreter("train") or python),
        has_hosts=is_elsewhere or config.hosts is not None,
        weights=weights.path if weights and has_weights else "",
        gate_metrics=list(config.evaluate.own_metrics.values()),
        code=read_user_code(config.evaluate, folder) | read_user_code(config.train, folder),
    )


def requires_process(train: Train) -> bool:
    """Returns whether the check requires building the model."""
    own = (train.loss, train.metrics, train.callbacks, train.input.augment.own, train.step)
    others = (train.dataset, train.optimizer.is_own, train.optimizer.schedule.type == "own")
    has_own_code = is_user_function(train.model) or any(own) or any(others)
    return bool(has_own_code or train.model_parameters or train.freeze)


def check_training(
    training: PlannedTraining, task: Task, image_shape: tuple[int, int, int], num_classes: int
) -> None:
    """Checks that the model can be trained on a data set.

    `image_shape` has height, width and channels of all images. Raises ConfigError, with file, line,
    key and cure, if the model can't be trained, and MachineError if the process was killed or took
    too long.
    """
    own = Train.model_validate(training.train)
    added = [path for path in training.gate_metrics if path not in own.own_metrics]
    train = own.model_copy(update={"metrics": own.metrics + added})
    if training.has_hosts:  # the data of the author's own may be there alone
        train = train.model_copy(update={"dataset": None})
    check_task(task, train.model, f"{training.config_file}: the data set")
    if fault := find_size_problem(train.model, *image_shape[:2]):
        raise _make_located_error(
            training,
            f"train.model: {train.model} {fault}, and those of the data set are "
            f"{image_shape[0]}x{image_shape[1]}. Change preprocess.stages or choose another model.",
        )
    if not requires_process(train) and not training.weights:
        return
    request = ModelCheckRequest(
        config_file=training.config_file,
        train=train.model_dump(mode="json"),
        task=task,
        image_shape=image_shape,
        num_classes=num_classes,
        weights=training.weights,
        code=training.code or read_user_code(train, Path(training.config_file).parent),
    )
    _log.info("building the model %s on one batch", train.model)
    task_name = f"builds the model {train.model}"
    response = _run_check(_MODULE, request, _get_python(training), task_name)
    if "fault" in response:
        explained = Explanation.model_validate(response["fault"])
        fault = explained.problem
        if any(path in fault for path in added):
            fault = fault.replace("train.metrics", "evaluate.gate", 1)
            fault = fault.replace("train.files", "evaluate.files")
        raise _make_located_error(training, fault, explained)
    if missing := response.get("missing"):
        if not training.has_hosts:
            raise _make_located_error(
                training,
                f"train.runs_on: {missing}. Name a hosts file with an interpreter that has it.",
            )
        _log.warning("the model is checked on the hosts and not here: %s", missing)
    elif remark := response.get("remark"):
        _log.warning("%s", remark)


def try_served_stages(training: PlannedTraining, trials: StageTrials) -> tuple[int, str] | None:
    """Tries `serve` of stages on images.

    Returns the position of the first stage whose `serve` fails or does something else than the
    stage, and the fault, or None. Raises MachineError if the process was killed or took too long.
    """
    _log.info("trying `serve` of stages on %d images", len({each.key for each in trials.trials}))
    response = _run_check(_TRIAL_MODULE, trials, _get_python(training), "tries served stages")
    if missing := response.get("missing"):
        _log.warning("served stages are not tried before the training: %s", missing)
    return (response["position"], response["fault"]) if "fault" in response else None


def _run_check(module: str, request: BaseModel, python: str, task: str) -> dict[str, Any]:
    """Runs a check, without Airflow's keys, and without the GPU, which may be in use.

    No user code can write into its folder before it starts. `task` is for messages.
    """
    with tempfile.TemporaryDirectory(prefix="model-check-") as name:
        folder, answer = Path(name), Path(name) / "answer.json"
        # Our code only, and no installed packages next to it.
        for package in ("pipeline_ops", "beam_jobs"):
            (folder / package).symlink_to(CODE_ROOT / package)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "_AIRFLOW"))}
        path = os.pathsep.join(filter(None, [str(folder), kept.get("PYTHONPATH")]))
        argv = [python, "-P", "-m", module, str(answer)]
        try:
            done = subprocess.run(
                argv,
                input=request.model_dump_json().encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=kept | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1"},
                timeout=_TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise MachineError(
                f"the process that {task} was not done within {_TIMEOUT_SECONDS} s. Retry on an "
                "idle machine."
            ) from None
        found: dict[str, Any] | None = read_json(answer)
        if found is None:
            log_tail = done.stdout.decode(errors="replace")[-_LOG_TAIL:].strip()
            raise MachineError(f"the process that {task} ended with {done.returncode}:\n{log_tail}")
    return found


def _get_python(training: PlannedTraining) -> str:
    """Returns the interpreter of the train task. Raises ConfigError if it is not a Python."""
    if training.python:
        read_versions(Path(training.python), [])
    return training.python or sys.executable


def _make_located_error(
    training: PlannedTraining, fault: str, explained: Explanation = _UNEXPLAINED
) -> TrainyardError:
    """An error whose text begins with a key of the config, with file and line before it."""
    key = tuple(fault.partition(": ")[0].split("."))
    text = f"{locate_in_file(Path(training.config_file), key)}: {fault}"
    return make_error(ExitCode.CONFIG, text, explained.cure, explained.location)


_STEPS_MODULE = "pipeline_ops.training.step_times"


class StepTimes(JsonModel):
    """The times of a training on this machine, in seconds."""

    model_config = ConfigDict(frozen=True)

    start: float = Field(gt=0)
    """To build the model, trace it and take the first step."""
    step: float = Field(gt=0)
    evaluation: float = Field(gt=0)
    """Of one image."""


def measure_steps(request: ModelCheckRequest) -> StepTimes:
    """Measures with random images. Raises MachineError if the process fails or takes too long."""
    argv = [sys.executable, "-P", "-m", _STEPS_MODULE]
    try:
        done = subprocess.run(
            argv,
            input=request.model_dump_json().encode(),
            capture_output=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
        return StepTimes.model_validate_json(done.stdout)
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"no training step was done within {_TIMEOUT_SECONDS} s. Retry on an idle machine, or "
            "add --no-measure."
        ) from None
    except ValidationError:
        log_tail = done.stderr.decode(errors="replace")[-_LOG_TAIL:].strip()
        raise MachineError(
            f"the process that measures a training step ended with {done.returncode}. Add "
            f"--no-measure to go on without it.\n{log_tail}"
        ) from None
