"""Each callback of Keras gives in a gang of two workers what it gives in `fit` in one process, also
if the gang was killed."""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from gangs import run_gang

from pipeline_ops.config.train import Train
from pipeline_ops.contract.gang_protocol import TRAINED
from pipeline_ops.contract.results import CALLBACKS
from pipeline_ops.job.local_inputs import open_host_cache, open_host_dataset
from pipeline_ops.models import build_model
from pipeline_ops.models.classification import Classification
from pipeline_ops.training.callbacks import load_callbacks
from pipeline_ops.training.input_pipeline import InputPipeline
from pipeline_ops.training.optimizer import make_optimizer
from pipeline_ops.training.weight_files import read_arrays

SHAPE, CLASSES = (16, 16, 1), 10
OPTIONS = {
    "train__model": "dense",
    "train__epochs": 6,
    "train__global_batch_size": 140,  # five steps are an epoch
    "train__optimizer": {"name": "sgd", "learning_rate": 0.2, "momentum": 0.9},
    "train__label_smoothing": 0,
    "train__early_stopping": None,
    "train__reduce_learning_rate": None,
    "train__best_checkpoint": None,
    "train__input": {},
    "train__checkpoint_every_steps": 3,
    "train__workers": 2,
}
KERAS, OWN = "keras.callbacks:", "keras_callbacks:"
CASES: dict[str, list[Any]] = {
    "rates and an early end": [
        {f"{KERAS}ReduceLROnPlateau": {"factor": 0.5, "patience": 1, "min_delta": 0.05}},
        {
            f"{KERAS}EarlyStopping": {
                "patience": 2,
                "min_delta": 0.06,
                "monitor": "val_accuracy",
                "restore_best_weights": True,
            }
        },
    ],
    "a schedule": [f"{OWN}make_schedule", f"{KERAS}TerminateOnNaN", f"{KERAS}History"],
    "files": [
        {f"{KERAS}CSVLogger": {"filename": "log.csv"}},
        {f"{KERAS}ModelCheckpoint": {"filepath": "best.keras", "save_best_only": True}},
        {
            f"{KERAS}ModelCheckpoint": {
                "filepath": "{epoch:02d}-{val_loss:.2f}.weights.h5",
                "save_weights_only": True,
            }
        },
        {f"{KERAS}TensorBoard": {"log_dir": "logs"}},
        f"{OWN}make_monitor",
        f"{OWN}make_lambda",
    ],
    "batches": [
        {f"{KERAS}ModelCheckpoint": {"filepath": "{epoch}-{batch}.keras", "save_freq": 4}},
        {f"{KERAS}TensorBoard": {"log_dir": "logs", "update_freq": 1}},
        {f"{OWN}BatchDiary": {"name": "batches.jsonl"}},
    ],
    "an own one": [f"{OWN}Own"],
    "an end within an epoch": [f"{OWN}StopWithinEpoch"],
}


@pytest.fixture(scope="module")
def run_fit(dataset, tmp_path_factory):
    """Trains with `Model.fit`, on the batches of the training. Returns folder and weights."""

    def run(config: Train) -> tuple[Path, list[np.ndarray]]:
        folder = tmp_path_factory.mktemp("fit")
        host_dataset = open_host_dataset(
            dataset, config.input, open_host_cache(config.input), print
        )
        task = Classification(SHAPE)
        pipeline = InputPipeline(config, host_dataset, task, (0, 1), "", print)
        keras.utils.set_random_seed(config.seed)
        model = build_model(config, SHAPE, CLASSES, folder, for_training=True)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(make_optimizer(config.optimizer), loss, metrics=["accuracy"])
        batches = (
            (images.numpy().astype(np.float32), labels.numpy())
            for images, labels in pipeline.make_batches(0)
        )
        validation = [
            (images.numpy().astype(np.float32), labels.numpy())
            for images, labels in pipeline.validation_batches
        ]
        callbacks = [
            callback
            for path, arguments in config.callback_arguments
            for callback in load_callbacks(path, arguments, config, folder)
        ]
        with contextlib.chdir(folder):
            model.fit(
                batches,
                epochs=config.epochs,
                steps_per_epoch=pipeline.total_steps // config.epochs,
                validation_data=tuple(map(np.concatenate, zip(*validation, strict=True))),
                validation_batch_size=256,
                callbacks=callbacks,
                verbose=0,
                shuffle=False,
            )
        return folder, model.get_weights()

    return run


def read_lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def read_scalars(folder: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    return {
        tag: {
            each.step: float(tensor_util.make_ndarray(each.tensor_proto))
            for each in events.Tensors(tag)
        }
        for tag in events.Tags()["tensors"]
        if tag.startswith(("epoch_", "evaluation_", "batch_")) and "per_second" not in tag
    }


def read_content(file: Path) -> Any:
    """Returns the numbers and texts that a callback has written."""
    match file.suffix:
        case ".csv":
            return [
                {name: float(value) for name, value in row.items()}
                for row in csv.DictReader(file.read_text().splitlines())
            ]
        case ".keras":
            model = keras.models.load_model(file)
            assert model.optimizer.iterations > 0
            return [weight.tolist() for weight in model.get_weights()]
        case ".h5":
            config = Train(model="dense")
            model = build_model(config, SHAPE, CLASSES, file.parent, for_training=True)
            model.load_weights(file)
            return [weight.tolist() for weight in model.get_weights()]
        case ".json":
            return json.loads(file.read_text())
        case ".txt":
            return sorted({*file.read_text().splitlines()})  # a killed epoch writes its line again
    if file.name == "received.jsonl":
        return list({line["epoch"]: line for line in read_lines(file)}.values())
    return read_lines(file)


def assert_equal(found: Any, expected: Any, place: str = "") -> None:
    """Compares numbers to 1e-5, and all else exactly."""
    match expected:
        case dict():
            assert found.keys() == expected.keys(), place
            for key, value in expected.items():
                assert_equal(found[key], value, f"{place}/{key}")
        case list():
            assert len(found) == len(expected), place
            for index, value in enumerate(expected):
                assert_equal(found[index], value, f"{place}/{index}")
        case float():
            assert found == pytest.approx(expected, rel=1e-5, abs=1e-5), place
        case _:
            assert found == expected, place


def iterate_files(folder: Path) -> Iterator[Path]:
    for file in sorted(folder.rglob("*")):
        if file.is_file() and "logs" not in file.parts and file.name not in ("died",):
            yield file


@pytest.fixture
def compare(make_job_in, dataset, run_fit, host_pool, tmp_path):
    """Trains with callbacks in `fit` and in a gang, and compares weights and files."""

    def compare(callbacks: list[Any], is_killed: bool = False, **options: Any) -> None:
        callbacks = [*callbacks, f"{OWN}Diary"]
        make_job = make_job_in(tmp_path, dataset)
        alone = make_job("alone", **OPTIONS, train__callbacks=callbacks)
        folder, weights = run_fit(Train.model_validate(alone.request.config))
        if is_killed:
            # Once at the end of an epoch, and so that the next gang begins within it.
            callbacks += [{"own_watchers:DieOnce": {"epoch": 2}}]
        job = make_job("gang", **OPTIONS | options, train__callbacks=callbacks)
        gang = run_gang(job, host_pool)
        assert gang.restarts == (1 if is_killed else 0)
        compare_results(job, folder, weights)

    return compare


def compare_results(job: Any, folder: Path, weights: list[np.ndarray]) -> None:
    written = job.work / CALLBACKS
    names = [str(file.relative_to(folder)) for file in iterate_files(folder)]
    assert [str(file.relative_to(written)) for file in iterate_files(written)] == names
    for name in names:
        assert_equal(read_content(written / name), read_content(folder / name), name)
    for split in ("train", "validation"):
        if (folder / "logs" / split).exists():
            found, expected = (read_scalars(each / "logs" / split) for each in (written, folder))
            assert expected
            assert_equal(found, expected, f"logs/{split}")
    trained = read_arrays(job.work / TRAINED)
    assert max(float(np.abs(a - b).max()) for a, b in zip(trained, weights, strict=True)) < 1e-5


@pytest.mark.training
@pytest.mark.parametrize("is_killed", [False, True], ids=["calm", "killed"])
@pytest.mark.parametrize("callbacks", CASES.values(), ids=CASES)
def test_a_callback_gives_in_a_gang_what_it_gives_in_fit(compare, callbacks, is_killed):
    compare(callbacks, is_killed)


STRATEGIES = {
    "one device": {"strategy": "one_device"},
    "two devices": {"strategy": "mirrored", "devices_per_worker": 2},
    "two devices, micro-batches": {
        "strategy": "mirrored",
        "devices_per_worker": 2,
        "micro_batches": 2,
    },
    "layers on devices": {
        "strategy": "device_placement",
        "devices_per_worker": 2,
        "placement": {"hidden*": "CPU:0", "log*": "CPU:1"},
    },
    "divided layers": {
        "strategy": "dtensor",
        "devices_per_worker": 2,
        "sharding": {"*/logits/kernel": 0},
    },
}


@pytest.mark.training
@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_a_callback_sees_an_ordinary_model_under_every_strategy(compare, strategy):
    callbacks = [*CASES["an own one"], *CASES["rates and an early end"], CASES["files"][1]]
    options = {f"train__{name}": value for name, value in strategy.items()}
    compare(callbacks, train__workers=1, **options)
