"""Classes without training examples, and a training without a validation split: the chain runs, and
says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from config_files import set_words
from job_chain import run_jobs

from pipeline_ops.cli.main import main
from pipeline_ops.contract.manifest import read_manifest

CLASSES = ["dark", "light", "rune", "ghost"]


@pytest.fixture
def config_file(tmp_path) -> Path:
    """Dark and light images. Only the test split has a `rune`, and nothing has a `ghost`."""
    import cv2

    rows = ["path,label,split"]
    for index in range(64):
        name, split = CLASSES[index % 2], "test" if index % 8 > 5 else "train"
        if index % 16 == 14:
            name = "rune"
        noise = np.random.default_rng(index).integers(0, 20, (16, 16), "u1")
        image = noise + {"dark": 20, "light": 230, "rune": 120}[name]
        (tmp_path / "raw").mkdir(exist_ok=True)
        cv2.imwrite(str(tmp_path / f"raw/{index}.png"), image)
        rows.append(f"{index}.png,{name},{split}")
    (tmp_path / "raw/all.csv").write_text("\n".join(rows))
    config = {
        "pipeline": "tones",
        "storage": {"root": "root"},
        "preprocess": {
            "source": {
                "type": "csv",
                "path": "raw",
                "task": "classification",
                "manifest": "all.csv",
                "class_names": CLASSES,
            },
            "stages": [{"decode": {"channels": 1}}],
            "split": {"train": 1, "validation": 0, "test": 0},
            "shards": 1,
            "balance": "by_class",
        },
        "train": {
            "model": "digits_cnn",
            "epochs": 2,
            "global_batch_size": 8,
            "class_weights": True,
            "best_checkpoint": None,
        },
        "evaluate": {"gate": [{"metric": "accuracy", "at_least": 0.0}]},
        "export": {"model": "tones"},
    }
    file = tmp_path / "tones.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


@pytest.mark.models
def test_classes_that_nothing_teaches_are_told_and_the_others_are_learned(config_file, tmp_path):
    made = run_jobs(config_file, tmp_path, "export")
    data, training, evaluation = (
        read_manifest(made[job]).figures for job in ("preprocess", "train", "evaluate")
    )
    assert data["num_examples"] == {"train": 48, "validation": 0, "test": 16}
    told = "No training example of rune, ghost, so the model never learns to find them, and misses"
    assert any(warning.startswith(told) for warning in data["warnings"])
    assert told in (Path(made["preprocess"]).parent / "data.html").read_text()
    metrics = training["history"][-1]["metrics"]
    assert "loss" in metrics and not any(name.startswith("validation_") for name in metrics)
    by_class = {each["name"]: each for each in evaluation["challenger"]["classes"]}
    assert by_class["rune"]["recall"] == 0 and by_class["ghost"]["support"] == 0
    page = (Path(made["evaluate"]).parent / "report.html").read_text()
    assert "nan" not in page.lower()


def test_the_deep_check_tells_them_and_a_split_that_is_needed_is_refused(config_file, capsys):
    assert main(["validate", str(config_file), "--deep"]) == 0
    assert "No training example of rune, ghost, so the model never" in capsys.readouterr().out
    words = set_words("train.best_checkpoint={monitor: validation_loss}")
    assert main(["validate", str(config_file), *words]) == 78
    said = capsys.readouterr().err
    assert "is 0, and train.best_checkpoint needs the validation split. Raise it, or set" in said
