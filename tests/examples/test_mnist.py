"""`configs/mnist.yaml`, the CNN of TensorFlow's tutorials, on real digits: downloaded by a builder
over HTTP, and in the layout of the real MNIST without a network."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from answering_server import answering_server
from config_files import set_words, write_config
from digits_builder import NUM_TRAIN, pack_digits
from job_chain import run_jobs

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.results import REPORT
from pipeline_ops.places.source_download import download_source
from pipeline_ops.storage.open_store import open_path

MNIST = Path(__file__).resolve().parents[2] / "configs" / "mnist.yaml"
SUPPORT = Path(__file__).resolve().parents[1] / "support"


@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_a_run_downloads_the_digits_trains_by_replica_and_publishes_at_98_percent(
    tmp_path, monkeypatch
):
    config = write_config(tmp_path, {"storage.root": "root"}, MNIST)
    shutil.copy(MNIST.with_name("mnist_cnn.py"), tmp_path)
    words = set_words(
        f"preprocess.source.path={tmp_path}/datasets",
        "preprocess.source.builder=digits_builder.Digits",
    )
    command = [sys.executable, "-m", "pipeline_ops.cli.main", "run", "--json", str(config), *words]
    with answering_server(lambda *_: (200, pack_digits())) as address:
        monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path))
        monkeypatch.setenv("DIGITS_URL", f"http://{address}/digits.npz")
        monkeypatch.setenv("PYTHONPATH", str(SUPPORT), prepend=os.pathsep)
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    tasks = json.loads(done.stdout.splitlines()[-1])["tasks"]
    assert tasks["export"]["state"] == "success"
    evaluation = open_path(tasks["evaluate"]["manifest"])
    assert read_manifest(evaluation).figures["challenger"]["metrics"]["accuracy"] >= 0.98
    sentence = "2 replicas x 32 = a global batch of 64, at a learning rate of 0.002 (0.001 x 2)."
    assert sentence in (evaluation.parent / REPORT).local.read_text()


def test_a_prepared_mnist_is_read_without_a_network(tmp_path):
    """The files are those of the real builder. Only their images are others."""
    arrays = np.load(io.BytesIO(pack_digits()))
    pairs = zip(arrays["images"], arrays["labels"], strict=True)
    examples = [{"image": image, "label": int(label)} for image, label in pairs]
    builder = tfds.builder("mnist", data_dir=tmp_path / "datasets")
    Path(builder.data_dir).mkdir(parents=True)
    writer = tfds.core.SequentialWriter(builder.info, max_examples_per_shard=1000)
    writer.initialize_splits(["train", "test"])
    writer.add_examples({"train": examples[:NUM_TRAIN], "test": examples[NUM_TRAIN:]})
    writer.close_all()
    before = sorted(tmp_path.rglob("*"))
    path = str(tmp_path / "datasets")
    download_source(load_config(MNIST, {"preprocess.source.path": path}))
    assert {file.name for file in {*tmp_path.rglob("*")} - {*before}} <= {".mnist.lock"}
    made = run_jobs(MNIST, tmp_path, "preprocess", preprocess__source__path=path)
    counts = read_manifest(open_path(made["preprocess"])).figures["num_examples"]
    assert counts["test"] == 300
    assert counts["train"] + counts["validation"] == NUM_TRAIN
