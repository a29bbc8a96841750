"""A model that is more than its weights is refused before any work, and by name."""

from __future__ import annotations

import contextlib
import re
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
from pipeline_ops.config.train import Train
from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.errors import ConfigError, MachineError
from pipeline_ops.job.model_check import ModelCheckRequest, check_training, plan_training

TWIN_MODULE = "pipeline_ops.training.model_twin"

DRAWN = "a second process that built it with the same weights answers otherwise, first in "
HIDDEN = "reads variables that are no weights of the model"
ANOTHER_TRACE = "another trace of the call with training=True computes something else"
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
    "traced_noise": ANOTHER_TRACE,
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
    "traced_noise",
    "in_numpy",
    "in_python",
    "in_a_map",
    "Functions",
)
"""The models whose messages name file and line."""
OF_THE_BATCH = "the answer to an image depends on the other images of its batch, first in "
SUMMED = "the losses that {}, {} adds grow with the number of images"
LINE = r"\S*more_than_weights.py:\d+"
REFUSED_BY_THE_GRAPH = {
    "centred": f"{OF_THE_BATCH}centred, {LINE}",
    "batch_deviation": f"{OF_THE_BATCH}batch_deviation, {LINE}",
    "standardized": f"{OF_THE_BATCH}standardized, {LINE}",
    "softmax_of_the_batch": f"{OF_THE_BATCH}lambda, {LINE}",
    "OwnNormalization": f"{OF_THE_BATCH}the input of own_normalization/dense",
    "divided_by_the_largest": f"{OF_THE_BATCH}the input of dense",
    "summed_loss": SUMMED.format("penalized", LINE),
    "summed_loss_of_dropout": SUMMED.format("penalized", LINE),
    "loss_for_each_image": SUMMED.format("penalized", LINE),
    "loss_for_each_pair": SUMMED.format("penalized", LINE),
    "SummedLoss": SUMMED.format("summed_loss", LINE),
    "in_a_branch": rf"{HIDDEN} \(functional_1/inside_1/cond, {LINE}\)",
    "in_a_loop": rf"{HIDDEN} \(functional_1/inside_1/while, {LINE}\)",
    "in_a_function": rf"{HIDDEN} \(functional_1/inside_1/StatefulPartitionedCall, {LINE}\)",
    "in_a_function_of_a_branch": rf"{HIDDEN} \(functional_1/inside_1/cond, {LINE}\)",
    "layer_in_a_map": rf"{HIDDEN} \(functional_1/lambda_1/map/while, {LINE}\)",
    "noisy_in_a_branch": rf"draws random numbers when it answers \(functional_1/.*, {LINE}\)",
    "counted_in_python": rf"{ANOTHER_TRACE} \(functional_1/in_training_1/truediv/y, {LINE}\)",
    "annealed_in_python": rf"{ANOTHER_TRACE} \(functional_1/in_training_1/map/while, {LINE}\)",
    "first_call": rf"{ANOTHER_TRACE} \(functional_1/in_training_1/Tanh, {LINE}\)",
    "fails_in_training": rf"raised ValueError in InTraining: .*\({LINE}\) when called in a graph "
    "with training=True",
    "key_error_in_training": rf"raised KeyError in InTraining: rate \({LINE}\) when called",
    "branches_on_a_tensor_in_training": r"Error in InTraining: .* as a Python `bool` is not all"
    rf".*\({LINE}\) when called",
    "misspelt": "raised AttributeError in Misspelt: 'Misspelt' object has no attribute 'scael' "
    rf"\({LINE}\)",
    "Paired": "returns 2 outputs in training, and one when it answers. The loss takes one: add the "
    "loss of the others by add_loss in call, or write a train_step",
    "Auxiliary": "creates the weights auxiliary/dense_1/kernel, auxiliary/dense_1/bias when it is "
    rf"first called with training=True \(auxiliary_1/dense_1_1/Cast, {LINE}, ",
    "stateful": "the layer gru has stateful=True",
    "drawn_without_generator": rf"a generator that is no part of the model \(.*, {LINE}\)",
    "measured": rf"updates a metric of a layer \(functional_1/measured_1/Add, {LINE}, ",
    "dictionary": "returns a dict with one tensor, and a classifier returns the tensor",
    "Counted": f"counts, {LINE} creates its table while a graph is traced",
    "own_strategy": "in the scope of a tf.distribute.Strategy of its own",
}
"""The models that need no second process to be refused. The messages are regular expressions."""
SOUND = (
    "seeded",
    "augmented",
    "recurrent",
    "named_set",
    "monte_carlo_of_keras",
    "deep",
    "looked_up",
    "mean_losses",
    "helped",
    "replaced_call",
)
QUICK = (
    "fourier",
    "Hidden",
    "MonteCarlo",
    "in_numpy",
    "augmented",
    "centred",
    "summed_loss_of_dropout",
    "in_a_branch",
    "counted_in_python",
    "fails_in_training",
    "stateful",
    "mean_losses",
)


def check(folder: Path, name: str) -> None:
    shutil.copy(Path(__file__).with_name("more_than_weights.py"), folder)
    config = load_config(write_config(folder, {"train.model": f"more_than_weights:{name}"}))
    training = plan_training(config, sys.executable)
    check_training(training, "classification", (12, 12, 1), 5)


def select(*names: str) -> list:
    heavy = [pytest.mark.models]
    return [pytest.param(name, marks=heavy * (name not in QUICK)) for name in names]


@pytest.mark.parametrize("name", select(*REFUSED))
@pytest.mark.training
def test_a_model_that_is_more_than_its_weights_is_refused(tmp_path, name):
    with pytest.raises(ConfigError) as refused:
        check(tmp_path, name)
    message = str(refused.value)
    assert f"train.model: more_than_weights:{name}" in message and REFUSED[name] in message
    assert ("more_than_weights.py:" in message) == (name in WITH_FILE), message


@pytest.mark.parametrize("name", select(*SOUND))
@pytest.mark.training
def test_a_model_that_is_its_weights_passes(tmp_path, name):
    check(tmp_path, name)


def check_in_this_process(name: str) -> None:
    import keras

    from pipeline_ops.training.check import check_model

    keras.backend.clear_session()  # which numbers the names of layers
    request = ModelCheckRequest(
        config_file="/nowhere/digits.yaml",
        train=Train(model=f"training.more_than_weights:{name}").model_dump(mode="json"),
        task="classification",
        image_shape=(12, 12, 1),
        num_classes=5,
    )
    check_model(request)


@pytest.mark.parametrize("name", select(*REFUSED_BY_THE_GRAPH))
def test_a_model_whose_calls_show_that_it_is_more_is_refused(name):
    with pytest.raises(ConfigError) as refused:
        check_in_this_process(name)
    message = str(refused.value)
    assert message.startswith(f"train.model: training.more_than_weights:{name}")
    assert re.search(REFUSED_BY_THE_GRAPH[name], message), message


@pytest.mark.models
def test_what_trains_as_in_keras_passes_the_check():
    """The models of the table that every strategy is compared with."""
    from training.keras_zoo import IMAGE_SHAPE, ZOO

    from pipeline_ops.training.self_consistency import (
        check_model_of_author,
        list_images,
        spread_weights,
    )

    for name, build in ZOO.items():
        model = build()
        spread_weights(model)
        check_model_of_author(model, list_images((4, *IMAGE_SHAPE)), name)


def test_a_candidate_that_answers_otherwise_than_the_trained_model_is_refused(
    dataset, make_job_in, tmp_path
):
    """The last look, for what no check has found before."""
    from pipeline_ops.contract.gang_protocol import TRAINED, CandidateSpec
    from pipeline_ops.models.digits_cnn import build
    from pipeline_ops.training.saved_model_export import export_saved_model
    from pipeline_ops.training.self_consistency import NUM_ANSWERS, list_images
    from pipeline_ops.training.weight_files import write_arrays

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


def test_the_layer_of_the_page_passes_and_keeps_its_state():
    import keras

    from pipeline_ops.training.self_consistency import check_model_of_author, list_images

    page = (CODE_ROOT / "docs" / "own-model.md").read_text()
    [code] = re.findall(r"```python\n(class Centered.*?)```", page, re.DOTALL)
    names: dict = {"keras": keras}
    exec(code, names)
    layer = names["Centered"]()
    images = keras.Input((12, 12, 1))
    x = layer(keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(images)))
    model = keras.Model(images, keras.layers.Dense(5)(x))
    check_model_of_author(model, list_images((4, 12, 12, 1)), "Centered")
    model(np.full((2, 12, 12, 1), 255.0), training=True)
    assert layer.center.numpy() == pytest.approx(0.1) and len(model.losses) == 1


def test_keras_gives_all_layers_of_a_functional_model_one_training():
    """A call with another `training` does not freeze a normalization, as the page says."""
    import keras

    image, base = keras.Input((4,)), keras.Sequential([keras.layers.BatchNormalization()])
    model = keras.Model(image, base(image, training=False))
    before = base.layers[0].moving_mean.numpy()
    model(np.ones((2, 4)), training=True)
    assert (base.layers[0].moving_mean.numpy() != before).all()
