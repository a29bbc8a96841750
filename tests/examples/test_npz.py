"""The chain on arrays of NumPy, from one file with the names of Keras's `mnist.npz`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from job_chain import run_jobs
from sklearn.datasets import load_digits

from pipeline_ops.contract.manifest import read_manifest


@pytest.mark.stores
def test_digits_in_an_npz_file_are_learned(tmp_path: Path):
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images, labels = (digits.images[order] * (255 / 16)).astype(np.uint8), digits.target[order]
    (tmp_path / "raw").mkdir()
    np.savez_compressed(
        tmp_path / "raw" / "digits.npz",
        x_train=images[:1500],
        y_train=labels[:1500],
        x_test=images[1500:],
        y_test=labels[1500:],
    )
    config = {
        "pipeline": "arrays",
        "preprocess": {
            "source": {"type": "npz", "path": "raw"},
            "stages": [{"decode": {"channels": 1}}, {"resize": {"height": 16, "width": 16}}],
            "split": {"train": 0.8, "validation": 0.1, "test": 0.1},
            "shards": 2,
        },
        "train": {"model": "digits_cnn", "epochs": 10},
        "evaluate": {"gate": [{"metric": "accuracy", "at_least": 0.85}]},
        "export": {"model": "arrays"},
    }
    file = tmp_path / "arrays.yaml"
    file.write_text(yaml.safe_dump(config))
    manifests = run_jobs(file, tmp_path, last="evaluate")
    data = read_manifest(manifests["preprocess"]).figures
    assert sum(data["num_examples"].values()) + data["num_rejected"] == 1797
    assert data["num_examples"]["test"] == 297
    evaluation = read_manifest(manifests["evaluate"]).figures
    assert evaluation["challenger"]["metrics"]["accuracy"] > 0.9
    assert evaluation["as_served"]["num_files"] > 0
    assert evaluation["as_served"]["passed"]
