"""A model that is more than its weights is refused before any work, and by name."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from config_files import write_config

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.errors import ConfigError, MachineError
from pipeline_ops.jobs.model_check import PlannedTraining, validate_training
from pipeline_ops.storage.open_store import open_root

TWIN_MODULE = "pipeline_ops.training.model_twin"

DRAWN = "a second process that built it with the same weights answers otherwise, first in "
HIDDEN = "reads variables that are no weights of the model"
REFUSED = {
    "fourier": f"{DRAWN}projection, ",
    "permuted": DRAWN,
    "timed": DRAWN,
    "of_the_process": DRAWN,
    "Unnamed": DRAWN,
    "raw_variable": HIDDEN,
    "Hidden": HIDDEN,
    "AtModuleLevel": HIDDEN,
    "noisy": "draws random numbers when it answers",
    "MonteCarlo": "two calls with the same images answer otherwise",
    "traced_noise": "two calls with the same images answer otherwise",
    "counting": "changes counting/seen when it answers",
    "in_numpy": "calls Python inside of its graph",
    "in_python": "calls Python inside of its graph",
    "Functions": "more_than_weights.py:244 is a tf.function",
    "in_a_map": "calls Python inside of its graph",
}
WITH_FILE = (
    "fourier",
    "raw_variable",
    "Hidden",
    "AtModuleLevel",
    "noisy",
    "MonteCarlo",
    "in_numpy",
    "in_python",
    "Functions",
)
"""The models whose messages name file and line."""
SOUND = (
    "seeded",
    "augmented",
    "recurrent",
    "named_set",
    "monte_carlo_of_keras",
    "deep",
)
QUICK = ("fourier", "Hidden", "MonteCarlo", "in_numpy", "augmented")


def check(folder: Path, name: str) -> None:
    shutil.copy(Path(__file__).with_name("more_than_weights.py"), folder)
    config = load_config(write_config(folder, {"train.model": f"more_than_weights:{name}"}))
    training = PlannedTraining.from_config(config, sys.executable)
    verdicts = open_root(folder / "verdicts")
    validate_training(training, "classification", (12, 12, 1), 5, verdicts)


def select(*names: str) -> list:
    heavy = [pytest.mark.models]
    return [pytest.param(name, marks=heavy * (name not in QUICK)) for name in names]


@pytest.mark.parametrize("name", select(*REFUSED))
def test_a_model_that_is_more_than_its_weights_is_refused(tmp_path, name):
    with pytest.raises(ConfigError) as refused:
        check(tmp_path, name)
    message = str(refused.value)
    assert f"train.model: more_than_weights:{name}" in message and REFUSED[name] in message
    assert ("more_than_weights.py:" in message) == (name in WITH_FILE), message


@pytest.mark.parametrize("name", select(*SOUND))
def test_a_model_that_is_its_weights_passes(tmp_path, name):
    check(tmp_path, name)


def test_a_candidate_that_answers_otherwise_than_the_trained_model_is_refused(
    dataset, make_job_in, tmp_path
):
    """The last look, for what no check has found before."""
    from pipeline_ops.jobs.gang_protocol import TRAINED, CandidateSpec
    from pipeline_ops.models.digits_cnn import build
    from pipeline_ops.training.checkpoints import write_arrays
    from pipeline_ops.training.saved_model_export import export_saved_model
    from pipeline_ops.training.self_consistency import NUM_ANSWERS, list_images

    model, spec = build((16, 16, 1), 10), {}
    answers = model(list_images((NUM_ANSWERS, 16, 16, 1)), training=False).numpy()
    for name, shift in (("same", 0.0), ("other", 0.5)):
        job = make_job_in(tmp_path / name, dataset)()
        work, folder = tmp_path / name / "work", tmp_path / name / "candidate"
        for made in (work, folder):
            made.mkdir()
        write_arrays(work / TRAINED, model.get_weights(), (), [np.float32(answers + shift)])
        spec[name] = CandidateSpec(
            request=str(job.attempt.request), work=str(work), folder=str(folder)
        )
    export_saved_model(spec["same"])
    with pytest.raises(ConfigError, match="answers otherwise than the trained one"):
        export_saved_model(spec["other"])


@pytest.mark.models
def test_a_second_process_that_is_killed_is_no_fault_of_the_model(tmp_path):
    """By the kernel, for instance, if the memory is at its end."""
    killed = threading.Event()

    def kill_it() -> None:
        while not killed.is_set():
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if TWIN_MODULE in process.cmdline():
                        process.kill()
                        killed.set()
            time.sleep(0.05)

    thread = threading.Thread(target=kill_it)
    thread.start()
    try:
        with pytest.raises(MachineError, match="second process that builds.* ended with -9"):
            check(tmp_path, "augmented")
    finally:
        killed.set()
        thread.join()
    check(tmp_path, "augmented")
