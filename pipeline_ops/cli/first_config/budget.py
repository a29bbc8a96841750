"""The time of a first run on this machine, and the epochs and the image size that fit a budget.

The time of a step is measured (`jobs/step_times.py`). The other constants are those of
`trainyard run` on a machine with two cores. Pure functions.
"""

from __future__ import annotations

import dataclasses
import math
import os
from typing import TYPE_CHECKING

from pipeline_ops.cli.first_config.settings import FirstSettings, scale_size

if TYPE_CHECKING:
    from pipeline_ops.cli.first_config.data_summary import DataSummary
    from pipeline_ops.jobs.step_times import StepTimes

_FIXED_SECONDS = 40.0
"""The starts of Airflow and of four jobs, with their imports, and the export."""
_INPUT_FACTOR = 1.15
"""The time of a step with random changes of its images, compared with one without."""
_EPOCH_SECONDS = 0.5
"""The end of an epoch without its validation: a checkpoint and the report."""
_IMAGE_SECONDS = 0.005
"""The time of an image in preprocess and evaluate besides decoding and the model."""
_SCALES = (1.0, 0.75, 0.5)
"""The factors of height and width that are tried."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """Settings that fit a number of minutes, if any do.

    `seconds` is the time of the whole run, and `epoch_seconds` that of an epoch. With fewer than
    `needed_steps` optimizer steps, a model is hardly of use.
    """

    settings: FirstSettings
    seconds: float
    epoch_seconds: float
    needed_steps: int

    @property
    def num_steps(self) -> int:
        return round(self.settings.epochs * self.settings.steps_per_epoch)

    @property
    def shortage(self) -> str:
        """Says that the training is too short to be of use. Empty if it is not."""
        needed = self.needed_steps
        if self.num_steps >= needed:
            return ""
        steps_per_second = self.settings.steps_per_epoch / self.epoch_seconds
        more = self.seconds + (needed - self.num_steps) / steps_per_second
        return (
            f"only {self.num_steps:,} optimizer steps fit, and a useful model needs about "
            f"{needed:,}: give --minutes {math.ceil(more / 60) + 1}"
        )

    def describe(self) -> str:
        cores = len(os.sched_getaffinity(0))
        rest = self.seconds - self.settings.epochs * self.epoch_seconds
        return (
            f"about {format_minutes(self.seconds)} on this machine ({cores} cores): "
            f"{self.settings.epochs} epochs of {self.epoch_seconds:.1f} s, and {rest:.0f} s for "
            "all else"
        )


def fit_to_budget(
    settings: FirstSettings, data: DataSummary, times: StepTimes, minutes: float
) -> Budget:
    """Reduces epochs, and the size of the images if too few steps would be left.

    `times` were measured with the size in `settings`.
    """
    budgets = [
        _fit(settings, scale_size(settings, factor), data, times, minutes) for factor in _SCALES
    ]
    return next((budget for budget in budgets if not budget.shortage), budgets[-1])


def _fit(
    measured: FirstSettings,
    settings: FirstSettings,
    data: DataSummary,
    times: StepTimes,
    minutes: float,
) -> Budget:
    area = settings.height * settings.width / (measured.height * measured.width)
    step, evaluation = times.step * _INPUT_FACTOR * area, times.evaluation * area
    epoch = settings.steps_per_epoch * step + _EPOCH_SECONDS
    epoch += data.num_images["validation"] * evaluation
    rest = _FIXED_SECONDS + 2 * times.start + data.num_images["test"] * evaluation
    rest += data.total * (_IMAGE_SECONDS + data.sample.decode_seconds)
    epochs = max(1, min(settings.epochs, int((60 * minutes - rest) / epoch)))
    fitting = dataclasses.replace(settings, epochs=epochs)
    # Of a few images, even all epochs are fewer steps than the recipe asks for.
    needed_steps = min(settings.recipe.min_steps, round(settings.epochs * settings.steps_per_epoch))
    return Budget(fitting, rest + epochs * epoch, epoch, needed_steps)


def format_minutes(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
