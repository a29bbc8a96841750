"""Steps of the author's own, and all optimizers of Keras, train as in Keras's `fit`, and alike on
any number of replicas.

The models are in `tests/own/acme_vision/own_steps.py`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from config_files import write_config

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.errors import ConfigError
from pipeline_ops.job.model_check import check_training, plan_training

OWN = Path(__file__).parents[1] / "own"
MODULE = "copied_steps"  # other tests of this process may have imported the package
SHAPE, CLASSES, BATCH = (8, 8, 1), 5, 32
OPTIMIZERS = (
    *("Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax", "Ftrl", "Lamb", "Lion", "Muon"),
    *("Nadam", "RMSprop", "SGD"),
)
FITTED = (
    *(
        "compiled",
        "one-hot labels",
        "two optimizers",
        "train_step",
        "compute_loss",
        "first of the guide",
        "embedding",
        "own one-hot loss",
        "assigned weights",
        "teacher",
        "GAN",
    ),
    *OPTIMIZERS,
)
REPEATABLE = (
    *(*FITTED, "accumulated by hand", "step of a guide", "contrastive"),
    "clipped and averaged",
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """The differences that `own_step_rows.py` finds."""
    file = tmp_path_factory.mktemp("rows") / "rows.json"
    script = Path(__file__).with_name("own_step_rows.py")
    environment = {"PYTHONPATH": f"{OWN}:{Path(__file__).parents[2]}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-P", str(script), str(file)],
        env=environment | {"TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(file.read_text())


@pytest.mark.models
@pytest.mark.timeout(900)  # with all rows
@pytest.mark.parametrize("name", REPEATABLE)
def test_two_replicas_do_what_one_does(rows, name):
    assert rows[name]["two"] < 2e-6


@pytest.mark.models
@pytest.mark.parametrize("name", FITTED)
def test_the_steps_are_those_of_fit(rows, name):
    assert rows[name]["weights of fit"] < 1e-7
    assert rows[name]["figures of fit"] < 1e-5


@pytest.mark.models
@pytest.mark.parametrize("name", [*REPEATABLE, "GAN that draws"])
def test_a_training_that_is_continued_takes_the_same_steps(rows, name):
    assert rows[name]["continued"] == 0


def check(folder: Path, options: dict) -> None:
    shutil.copy(OWN / "acme_vision" / "own_steps.py", folder / f"{MODULE}.py")
    options = {"reduce_learning_rate": None} | options
    file = write_config(folder, {f"train.{key}": value for key, value in options.items()})
    training = plan_training(load_config(file), sys.executable)
    check_training(training, "classification", SHAPE, CLASSES)


def of_model(name: str, **options) -> dict:
    return {"model": f"{MODULE}:{name}"} | options


def of_step(name: str, **options) -> dict:
    return of_model("plain", step=f"{MODULE}:{name}", workers=2) | options


SGD = {"optimizer": {"name": "sgd", "learning_rate": 0.1}}
SERVERS = {"strategy": "parameter_server", "parameter_servers": 1}


@pytest.mark.models
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (of_step("guided_step", micro_batches=2), "train.micro_batches: .* gets its batch whole"),
        (of_step("guided_step", label_smoothing=0.1), "train.label_smoothing: .* loss itself"),
        (of_step("guided_step", precision="float16"), "train.precision: .* scales its loss"),
        (of_step("guided_step", **SERVERS), "train.strategy: .* parameter_server cannot call"),
        (of_step("guided_step", global_batch_size=33), "33 examples cannot be divided equally"),
        (
            of_model("compiled", optimizer={"learning_rate": 0.1}),
            "train.optimizer: .* is compiled. What it is compiled with counts",
        ),
        (
            of_model("compiled", reduce_learning_rate={}),
            "train.reduce_learning_rate: .* of their own",
        ),
        (of_model("Adversarial"), r"its compile does not take optimizer, loss, metrics"),
        (of_model("Late"), "creates dense.*/kernel, .* in its first step"),
        (of_step("summing_step", **SGD), "changes the weights 2 times as much as with one"),
        (of_step("silent_step"), "train_step returns NoneType. It must return its figures"),
        (of_step("wordy_step"), r"returns loss with the shape \(1,\)"),
        (of_step("lossless_step"), "returns no loss, only figure"),
        (of_step("hiding_step"), "its step uses variables that are neither weights"),
        (of_step("manual_step"), "applies no optimizer that is an attribute of the model"),
    ],
    ids=str,
)
def test_a_step_that_would_go_wrong_is_refused_in_the_check(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        check(tmp_path, options)


@pytest.mark.models
@pytest.mark.parametrize(
    "options",
    [
        *(of_model(name, workers=2) for name in ("compiled", "Stepping", "Accumulating", "gan")),
        of_step("contrastive_step"),
        of_step("guided_step", model="dense"),
        of_step("summing_step", workers=1, **SGD),
        *(of_model(name, workers=2) for name in ("embedded", "FirstOfGuide", "focal")),
    ],
    ids=str,
)
def test_the_check_passes_a_step_that_trains(tmp_path, options, caplog):
    check(tmp_path, {"global_batch_size": BATCH} | options)
    assert "otherwise than with one" not in caplog.text


@pytest.mark.models
def test_a_term_that_counts_once_for_each_replica_is_told(tmp_path, caplog):
    """Also where the optimizer hides it, and where the verdict is known."""
    for _ in range(2):
        caplog.clear()
        check(tmp_path, of_model("Penalized", workers=2, global_batch_size=BATCH))
        assert re.search("changes .*/kernel otherwise than with one, by 0.[0-9]+", caplog.text)
        assert "counts once for each replica" in caplog.text
