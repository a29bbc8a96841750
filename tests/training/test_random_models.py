"""Random models train in a gang that is killed, are exported and served, as Keras alone trains
them. A model that cannot be so is refused, with the name of its layer or of its weight.

TRAINYARD_RANDOM_MODELS says how many models there are. Some of them are tried alone with

    SEED=17,23 pytest tests/training/test_random_models.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_datasets import write_dataset
from training.keras_zoo import IMAGE_SHAPE
from training.random_models import FAULTS, FAULTY, MODEL, Drawn, draw
from training.random_rows import ANSWERS, EXPECTED, IMAGES

from pipeline_ops.contract.gang_protocol import TRAINED, format_worker_digest_name
from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.system.processes import JOB_PYTHON
from pipeline_ops.training.weight_files import read_npz, select_arrays, unpack_paths

COUNT = int(os.environ.get("TRAINYARD_RANDOM_MODELS", 200))
SERVED = "served.npy"
WEIGHTS, PROBABILITIES = 3e-6, 1e-5
"""The largest differences of a trained weight, and of a served probability.

Under `rmsprop` with two normalizations, one bit of a weight more at the start of a training with
Keras alone changes another weight by 8e-7 (seed 48).
"""
SMALL_WEIGHTS, SMALL_PROBABILITIES = 2e-3, 2e-2
"""The same for models with a layer of 16 bits, whose results have eight or eleven bits."""
SERVE = """
import sys
from pathlib import Path
from pipeline_ops.input.tensorflow_start import tf
import numpy as np
from pipeline_ops.served.client import SavedModelClient

tf.config.threading.set_intra_op_parallelism_threads(1)
pngs = np.array([tf.io.encode_png(image).numpy() for image in np.load(sys.argv[1])], object)
for folder in map(Path, sys.argv[2:]):
    try:
        client = SavedModelClient(folder / "candidate/saved_model", "the model", 5)
        answers = client.call_signature("serving_default", image_bytes=pngs)
        np.save(folder / "served.npy", answers["probabilities"])
    except Exception as error:
        (folder / "served.txt").write_text(f"failed: {type(error).__name__}: {error}")
assert "keras" not in sys.modules and "training.random_models" not in sys.modules
"""


def choose_models() -> list[Drawn]:
    if "SEED" in os.environ:
        return [draw(int(seed)) for seed in os.environ["SEED"].split(",")]
    return [*map(draw, range(COUNT))]


@pytest.fixture(scope="module")
def folder(request, tmp_path_factory, make_job_in) -> Path:
    """A folder with one for each model of this session, in which it was trained and exported."""
    chosen = [
        item.callspec.params["model"]
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    folder = tmp_path_factory.mktemp("models")
    model = {"train__model": MODEL, "train__model_parameters": {"seed": 0}}
    job = make_job_in(folder, write_images(folder))(**model)
    for model in chosen:
        own = folder / str(model.seed)
        (own / "work").mkdir(parents=True)
        config = model.config.model_dump(mode="json")
        job_request = job.request.model_copy(update={"config": config})
        (own / "request.json").write_text(job_request.model_dump_json())
    path = os.pathsep.join(map(str, (CODE_ROOT, Path(__file__).parents[1])))
    environment = os.environ | JOB_PYTHON | {"PYTHONPATH": path}
    seeds = [str(model.seed) for model in chosen]
    subprocess.run(
        [sys.executable, "-m", "training.random_rows", folder, *seeds], env=environment, check=True
    )
    saved = [file.parents[2] for file in folder.glob("*/candidate/saved_model/saved_model.pb")]
    environment["PYTHONPATH"] = str(CODE_ROOT)
    subprocess.run(
        [sys.executable, "-c", SERVE, folder / IMAGES, *saved], env=environment, check=True
    )
    return folder


def write_images(folder: Path) -> str:
    """Writes the images that the models answer, and a data set of them. Returns its URI."""
    import tensorflow as tf

    draw = np.random.default_rng(8)
    images = draw.integers(0, 256, (8, *IMAGE_SHAPE)).astype(np.uint8)
    np.save(folder / IMAGES, images)
    examples = [(tf.io.encode_png(image).numpy(), n % 5) for n, image in enumerate(images)]
    (folder / "dataset").mkdir()
    splits = dict.fromkeys(("train", "validation", "test"), examples)
    return write_dataset(folder / "dataset", IMAGE_SHAPE, list("abcde"), splits)


def measure(expected: np.ndarray, found: np.ndarray) -> float:
    """Returns the largest difference, as a share of the largest value above 1."""
    wanted = expected.astype(np.float64)
    difference = np.abs(wanted - found.astype(np.float64)).max(initial=0.0)
    return float(difference / np.abs(wanted).max(initial=1.0))


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """The weights in a file, by their paths."""
    arrays = read_npz(path)
    return dict(zip(unpack_paths(arrays).weights, select_arrays("w", arrays), strict=True))


@pytest.mark.models
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    "model",
    [pytest.param(model, id=f"seed {model.seed}") for model in choose_models()],
)
def test_a_random_model_is_served_as_keras_trains_it_or_is_refused_by_name(folder, model):
    own = folder / str(model.seed)
    messages = {file.name: file.read_text() for file in sorted(own.glob("*.txt"))}
    if model.fault:
        refusals = ["check.txt"] if model.fault in FAULTS else ["begun-0.txt", "begun-1.txt"]
        refused = [messages.get(name, "not refused") for name in refusals]
        named = [FAULTY in message and "failed:" not in message for message in refused]
        assert all(named), f"{model}\n{refused}"
        return
    assert not messages, f"{model}\n{messages}"
    digests = {(own / "work" / format_worker_digest_name(n)).read_text() for n in range(2)}
    assert len(digests) == 1, f"{model}\nthe workers have different weights"
    expected, found = read_weights(own / EXPECTED), read_weights(own / "work" / TRAINED)
    assert expected.keys() == found.keys(), model
    differences = {path: measure(expected[path], found[path]) for path in expected}
    answers, served = np.load(own / ANSWERS), np.load(own / SERVED)
    print(f"weights {max(differences.values()):.1e}, answers {measure(answers, served):.1e}")
    limit = SMALL_WEIGHTS if model.has_small_type else WEIGHTS
    too_large = {path: each for path, each in differences.items() if not each <= limit}
    assert not too_large, f"{model}\n{too_large}"
    limit = SMALL_PROBABILITIES if model.has_small_type else PROBABILITIES
    assert measure(answers, served) <= limit, f"{model}\n{answers}\n{served}"
