"""What Keras treats in a way of its own trains under every strategy as it does in Keras alone, or
is refused with its name.

A row is a model of `keras_zoo` with an optimizer, a clipping and averages, at a place, in one or in
two micro-batches. Every pair of values stands in some row. Each is compared with Keras's optimizer
on the parts of the same batches (`keras_rows.train_with_keras`).
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from training.keras_rows import CLIPS, OPTIMIZERS, PLACES, REPLICAS, Row
from training.keras_zoo import TOGETHER, ZOO

from pipeline_ops.cli.embedded_airflow import find_free_port
from pipeline_ops.contract.source_code import CODE_ROOT

HERE = Path(__file__).parent
SAME = 1e-6
TOLERANCES = {
    "bfloat16 layer": 1e-3,
    "bfloat16 weights": 4e-3,
    "penalties of several types": 1e-3,
}
"""Other tolerances: the type of a layer has eight or eleven bits."""
SEVERAL_TYPES = {"float64 layer", "bfloat16 weights", "penalties of several types"}
"""Models whose weights have several types."""
DTENSOR = {
    "Normalization": "constant of the shape",
    "own flag": "no variables of the type bool",
    "GRU": "does not support tf.EmptyTensorList",
    "GRU with recurrent dropout": "does not support tf.EmptyTensorList",
    "bidirectional LSTM": "does not support tf.EmptyTensorList",
    "depthwise and separable": "does not support tf.DepthwiseConv2dNative",
    "Conv2DTranspose": "to be divisible by sharding",
    "attention": "only supports batch parallel layouts",
    "attention with dropout": "only supports batch parallel layouts",
    "int8 layer": "does not support tf.BatchMatMulV3",
    "tied table": "cannot be divided among 2 devices",
}
"""What TensorFlow's DTensor cannot do, by model."""
DRAWN_BY_SHARD = {"Dropout", "noise"}
"""Models of which DTensor draws the numbers for each shard, so they are others than elsewhere."""


def make_rows() -> list[Row]:
    """Returns each model at each place, with other options in turn."""
    places = [(place, parts) for place in PLACES for parts in (1, 2)]
    places.remove(("dtensor", 2))  # refused by a rule of the config
    return [
        Row(
            model,
            [*OPTIMIZERS][(number + each) % len(OPTIMIZERS)],
            [*CLIPS][(number // 2 + each) % len(CLIPS)],
            (number + each // 2) % 2 == 0,
            *place,
        )
        for each, model in enumerate(ZOO)
        for number, place in enumerate(places)
        if place[0] != "dtensor" or model not in DRAWN_BY_SHARD
    ]


ROWS = make_rows()
SAMPLE = {
    ("embedding", "mirrored", 1),
    ("gathered rows", "one", 2),
    ("MaxNorm", "servers", 1),
    ("NonNeg", "one", 1),
    ("BatchNormalization", "mirrored", 2),
    ("SpectralNormalization", "servers", 1),
    ("SpectralNormalization", "one", 2),
    ("own counter", "one", 2),
    ("own counter of small numbers", "gang", 1),
    ("int8 layer", "gang", 2),
    ("bfloat16 weights", "gang", 1),
    ("own loss for each feature", "one", 2),
    ("penalties of several types", "mirrored", 1),
    ("float64 layer", "mirrored", 1),
    ("own moving state", "servers", 2),
    ("weights of one name", "servers", 1),
}
"""The rows of `make test`."""


def find_refusal(row: Row) -> str | None:
    """Returns a part of the message with which a row is refused, None if it trains."""
    several, replicas = row.micro_batches > 1, REPLICAS[row.place]
    if row.model == "SpectralNormalization" and several:
        return "assigns spectral_normalization/dense"
    if row.model == "assigned rows" and several:
        return "assigns assigned_rows/table"
    if row.model == "codes that learn" and (several or replicas > 1):
        return "assigns codes/codes in each call"
    if row.model == "summed state" and replicas > 1:
        return 'codes/codes with aggregation="sum" would grow'
    if row.model in SEVERAL_TYPES and row.clip == "by global norm":
        return "has weights of several types (conv2d/kernel is float32 and dense"
    if row.model in TOGETHER and several and replicas > 1:
        return "exchanges values between replicas"
    if row.model == "assigned in a branch" and row.place in ("servers", "dtensor"):
        return "cannot be called as a function of its weights: AttributeError in Conditional: "
    return DTENSOR.get(row.model) if row.place == "dtensor" else None


def train_rows(place: str, rows: Sequence[Row], folder: Path) -> list[Path]:
    """Trains rows at a place, or with "keras" by Keras. Returns the folder of each process."""
    addresses = [f"127.0.0.1:{find_free_port()}" for _ in range(3)]
    environments = [{"KERAS_ROWS_ADDRESSES": " ".join(addresses)}]
    if place == "gang":
        cluster = {"worker": addresses[:2]}
        tasks = ({"type": "worker", "index": index} for index in range(2))
        environments = [{"TF_CONFIG": json.dumps({"cluster": cluster, "task": t})} for t in tasks]
    lines = [json.dumps([ROWS.index(row), dataclasses.asdict(row)]) for row in rows]
    processes, folders = [], []
    for number, environment in enumerate(environments):
        folders.append(folder / f"{place}-{number}")
        folders[-1].mkdir(parents=True)
        (folders[-1] / "rows").write_text("\n".join(lines))
        path = os.pathsep.join(map(str, (CODE_ROOT, HERE.parent)))
        with open(folders[-1] / "rows") as source, open(folders[-1] / "out.log", "wb") as log:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "training.keras_rows", place, folders[-1]],
                    env=os.environ | environment | {"PYTHONPATH": path},
                    stdin=source,
                    stdout=log,
                    stderr=log,
                )
            )
    for process in processes:
        process.wait()
    return folders


@pytest.fixture(scope="module")
def folders(request, tmp_path_factory) -> dict[str, list[Path]]:
    """Trains the rows of this session, two places at a time. Returns the folders by place."""
    chosen = [
        item.callspec.params["row"]
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    by_place = {place: [row for row in chosen if row.place == place] for place in PLACES}
    by_place["keras"] = [row for row in chosen if find_refusal(row) is None]
    folder = tmp_path_factory.mktemp("rows")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        order = sorted(by_place, key=lambda place: -len(by_place[place]))
        trained = pool.map(lambda place: train_rows(place, by_place[place], folder), order)
        return dict(zip(order, trained, strict=True))


def read(folder: Path, row: Row) -> list[np.ndarray] | str:
    """Returns the weights of a row, or the message with which it was refused."""
    file = folder / f"{ROWS.index(row)}.npz"
    if not file.exists():
        return file.with_suffix(".txt").read_text()
    with np.load(file) as arrays:
        return [array.astype(np.float64) for array in arrays.values()]


def test_every_pair_of_values_stands_in_some_row():
    names = [field.name for field in dataclasses.fields(Row)]
    values = {name: {getattr(row, name) for row in ROWS} for name in names}
    assert len(ROWS) == len(set(ROWS)) >= 400
    missing = {
        (a, x, b, y)
        for a, b in itertools.combinations(names, 2)
        for x, y in itertools.product(values[a], values[b])
        if not any(getattr(row, a) == x and getattr(row, b) == y for row in ROWS)
    }
    drawn = {("model", model, "place", "dtensor") for model in DRAWN_BY_SHARD}
    assert missing == {("place", "dtensor", "micro_batches", 2), *drawn}


@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            row,
            id=str(row),
            marks=[pytest.mark.training]
            * ((row.model, row.place, row.micro_batches) not in SAMPLE),
        )
        for row in ROWS
    ],
)
@pytest.mark.training
def test_a_model_trains_as_in_keras_or_is_refused_by_name(folders, row):
    found = [read(folder, row) for folder in folders[row.place]]
    if refusal := find_refusal(row):
        assert all(refusal in str(each) and "failed:" not in str(each) for each in found), found
        return
    [expected] = (read(folder, row) for folder in folders["keras"])
    assert not isinstance(expected, str), expected
    for weights in found:
        assert not isinstance(weights, str), weights
        differences = [
            np.abs(a - b).max(initial=0.0) for a, b in zip(expected, weights, strict=True)
        ]
        print(f"difference {max(differences):.1e}")
        assert max(differences) <= TOLERANCES.get(row.model, SAME)
