"""A model, a loss and metrics from a package outside the project: they are found, count in the
fingerprint, are trained by two workers, and served."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from job_chain import run_jobs

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.config.train import Train
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.results import WEIGHTS, TrainingFigures
from pipeline_ops.errors import ConfigError, ExitCode
from pipeline_ops.examples.digits import write_digits
from pipeline_ops.launch.train import train
from pipeline_ops.planning.plan import plan_job
from pipeline_ops.training.weight_files import read_arrays
from pipeline_ops.user_code.models import digest_user_code
from pipeline_ops.user_code.modules import find_module

OWN = {
    "train__model": "acme_vision.nets:normalized",
    "train__model_parameters": {"width": 4},
    "train__loss": "acme_vision.objectives:focal_loss",
    "train__metrics": [
        "acme_vision.objectives:top3",
        {"acme_vision.objectives:brier": {"mode": "min"}},
    ],
    "train__workers": 2,
    "train__epochs": 3,
    "train__best_checkpoint": {"monitor": "validation_brier"},
    "train__early_stopping": None,
    "train__reduce_learning_rate": None,
}
DIGITS = Path(__file__).parents[2] / "configs" / "digits.yaml"
SLIM = Path(__file__).parents[2] / "configs" / "slim_digits.yaml"
PACKAGE = Path(__file__).parents[1] / "own"


@pytest.mark.training
def test_two_workers_train_it_and_its_metrics_are_figures_like_any_other(
    user_package, make_job, saved_signature
):
    job = make_job(**OWN)
    assert train(job) == ExitCode.SUCCESS
    figures = TrainingFigures.model_validate(read_manifest(job.folder / "manifest.json").figures)
    assert len(set(figures.worker_weights_digests)) == 1
    first, *_, last = figures.history
    names = {"loss", "accuracy", "top3", "brier"}
    assert set(last.metrics) == names | {f"validation_{name}" for name in names}
    assert last.metrics["loss"] < first.metrics["loss"]
    assert last.metrics["top3"] >= last.metrics["accuracy"]
    errors = [epoch.metrics["validation_brier"] for epoch in figures.history]
    assert figures.best_epoch == errors.index(min(errors))  # its mode
    assert saved_signature(job.folder.local) == {"probabilities", "classes"}


@pytest.mark.training
def test_the_slim_example_trains_and_is_served(dataset, tmp_path, make_job_in, saved_signature):
    """TensorBoard also gets the graph of a model that is no chain of Keras layers."""
    job = make_job_in(tmp_path, dataset, SLIM)(
        train__workers=1, train__strategy="one_device", train__epochs=1
    )
    assert train(job) == ExitCode.SUCCESS
    assert saved_signature(job.folder.local) == {"probabilities", "classes"}


@pytest.mark.training
def test_a_subclass_that_ends_in_softmax_is_trained_by_two_workers_and_published(
    user_package, tmp_path
):
    """The published model returns what the user's own class does with its weights."""
    import tensorflow as tf
    from acme_vision.endings import Subclassed

    write_digits(tmp_path / "raw")
    manifests = run_jobs(
        DIGITS,
        tmp_path,
        "export",
        preprocess__source__path=str(tmp_path / "raw"),
        train__model="acme_vision.endings:Subclassed",
        train__workers=2,
        train__epochs=5,
        evaluate__gate=[{"metric": "accuracy", "at_least": 0.8}],
    )
    [file] = (tmp_path / "root" / "models").rglob("saved_model.pb")
    published = tf.saved_model.load(str(file.parent)).signatures["images"]
    shape = published.structured_input_signature[1]["images"].shape
    images = np.random.default_rng(1).uniform(0, 255, (20, *shape[1:])).astype(np.float32)
    own = Subclassed(images.shape[1:], 10)
    own(images)
    own.set_weights(read_arrays(Path(manifests["train"]).parent / WEIGHTS))
    found = published(images=tf.constant(images))["probabilities"]
    np.testing.assert_allclose(found, own(images, training=False), rtol=1e-4, atol=1e-7)


@pytest.fixture
def saved_signature():
    def names(folder: Path) -> set[str]:
        import tensorflow as tf

        return set(
            tf.saved_model.load(str(folder / "saved_model"))
            .signatures["serving_default"]
            .structured_outputs
        )

    return names


@pytest.mark.parametrize(
    "changed, is_new", [("nets.py", True), ("blocks.py", True), ("objectives.py", True)]
)
def test_a_change_anywhere_in_its_package_is_a_reason_to_train(
    dataset, tmp_path, monkeypatch, changed, is_new
):
    shutil.copytree(PACKAGE / "acme_vision", tmp_path / "configs" / "acme_vision_copy")
    (tmp_path / "configs" / "digits.yaml").write_text(DIGITS.read_text())
    overrides = {"train.model": "acme_vision_copy.nets:normalized"}

    def fingerprint() -> str:
        return plan_job(
            "train",
            load_config(tmp_path / "configs" / "digits.yaml", overrides),
            "run",
            {"preprocess": dataset},
        ).request.fingerprint

    before, file = fingerprint(), tmp_path / "configs" / "acme_vision_copy" / changed
    assert "acme_vision_copy/nets.py" in before.code
    file.write_text(file.read_text() + "\n# a comment changes nothing\n")
    assert fingerprint() == before
    file.write_text(file.read_text() + "\nCHANGED = 1\n")
    assert fingerprint().describe_changes_since(before) == [
        f"code acme_vision_copy/{changed} changed"
    ]


def test_a_module_beside_the_config_is_found_and_only_it_counts(tmp_path):
    (tmp_path / "my_net.py").write_text("def build(): ...\n")
    (tmp_path / "other.py").write_text("")
    assert find_module("my_net", tmp_path) == tmp_path / "my_net.py"
    assert list(digest_user_code(Train(model="my_net:build"), tmp_path)) == ["my_net.py"]


def test_a_module_that_is_nowhere_is_an_error_of_the_config(tmp_path):
    with pytest.raises(
        ConfigError,
        match=r"train.metrics.0: there is no module acme_nowhere.metrics. Install its package",
    ):
        digest_user_code(Train(model="digits_cnn", metrics=["acme_nowhere.metrics:top3"]), tmp_path)


@pytest.mark.training
@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"train__model": "acme_vision.nets:nothing"},
            "train.model: the module acme_vision.nets has no function 'nothing'",
        ),
        (
            {"train__model": "acme_vision.objectives:top3"},
            "train.model: cannot build acme_vision.objectives:top3",
        ),
        ({"train__model_parameters": {"depth": 3}}, "got an unexpected keyword argument 'depth'"),
        (
            {
                "train__model": "acme_vision.nets:pooled",
                "train__model_parameters": {},
                "train__strategy": "dtensor",
                "train__workers": 1,
                "train__devices_per_worker": 2,
                "train__sharding": {"*/logits/kernel": 0},
            },
            (
                "TensorFlow's DTensor cannot compute acme_vision.nets:pooled with its weights "
                "divided like this: it does not support tf.AvgPoolGrad. Divide"
            ),
        ),
        (
            {
                "train__loss": "acme_vision.objectives:mean_loss",
                "train__strategy": "one_device",
                "train__workers": 1,
            },
            (
                "train.loss: must return a value for each "
                "example, a tensor of rank 1, got shape (). Do not average over the batch"
            ),
        ),
    ],
)
def test_what_cannot_be_trained_is_said_in_words(user_package, make_job, options, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        train(make_job(**OWN | options))


def test_a_slim_model_without_the_extra_says_what_to_install(monkeypatch):
    from pipeline_ops.models.slim import build_slim_model

    monkeypatch.setitem(sys.modules, "tf_slim", None)
    with pytest.raises(
        ConfigError,
        match=(
            r"needs the packages tf-slim and tf-keras \(.*\). "
            r"Install the extra slim: pip install '\.\[slim\]' in a clone of Trainyard"
        ),
    ):
        build_slim_model(lambda images, is_training: images, (4, 4, 1))
