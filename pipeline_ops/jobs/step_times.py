"""The time that a training takes on this machine, measured with a few steps of its model.

`pipeline_ops.training.step_times` measures in its own process, so that the caller needs no
TensorFlow. `trainyard init` uses it to fit a training to the time that a user has.
"""

from __future__ import annotations

import subprocess
import sys

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline_ops.errors import MachineError
from pipeline_ops.jobs.model_check import ModelCheckRequest

_MODULE = "pipeline_ops.training.step_times"
_TIMEOUT_SECONDS = 300
_LOG_TAIL = 2000


class StepTimes(BaseModel):
    """The times of a training on this machine, in seconds.

    `start` is the time to build the model, trace it and take the first step.
    `evaluation` is for one image.
    """

    model_config = ConfigDict(frozen=True)

    start: float = Field(gt=0)
    step: float = Field(gt=0)
    evaluation: float = Field(gt=0)


def measure_steps(request: ModelCheckRequest) -> StepTimes:
    """Measures with random images. Raises MachineError if the process fails or takes too long."""
    argv = [sys.executable, "-P", "-m", _MODULE]
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
