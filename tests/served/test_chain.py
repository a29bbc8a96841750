"""A stage of a user's own, from the YAML to the answers of everything that is published."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from job_chain import run_jobs

from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.registry.registry import Registry

pytestmark = pytest.mark.models
EXAMPLE = Path(__file__).parents[2] / "configs/digits.yaml"


def write_config(folder: Path, raw: Path, stage, **changes) -> Path:
    config = yaml.safe_load(EXAMPLE.read_text())
    config["preprocess"]["source"]["path"] = str(raw)
    config["preprocess"]["stages"].append(stage)
    config["train"] |= {"workers": 1, "epochs": 4, "strategy": "one_device"}
    config["evaluate"]["gate"] = [{"metric": "accuracy", "at_least": 0.9}]
    config["storage"]["root"] = str(folder / "root")
    for name, value in changes.items():
        config[name] |= value
    file = folder / "digits.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


@pytest.fixture(scope="module")
def raw(tmp_path_factory) -> Path:
    from pipeline_ops.examples.digits import write_digits

    folder = tmp_path_factory.mktemp("served") / "raw"
    write_digits(folder)
    return folder


def read_test_files(dataset: str, raw: Path) -> tuple[list[bytes], np.ndarray]:
    """The raw files of the test split as they lie in the source, and their labels."""
    from pipeline_ops.contract.dataset import INDEX, iterate_index

    entries = [each for each in iterate_index(Path(dataset).parent / INDEX) if each.split == "test"]
    labels = np.array([int(each.key.split("/")[0]) for each in entries])
    return [(raw / each.key).read_bytes() for each in entries], labels


def publish(file: Path, folder: Path, monkeypatch, **overrides):
    """Runs all jobs. Returns their manifests, and the folder of the published version."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "support"), prepend=":")
    manifests = run_jobs(file, folder, "export", **overrides)
    version = Registry(str(folder / "root/models/digits")).get_version(1)
    return manifests, version.fetch()


def test_a_stage_with_a_served_form_is_served_in_every_format(raw, tmp_path, monkeypatch):
    import tensorflow as tf

    from pipeline_ops.export.formats import FORMAT_PATHS, load_format

    file = write_config(tmp_path, raw, "served_stages:invert")
    formats = ["saved_model", "tflite", "onnx"]
    manifests, folder = publish(file, tmp_path, monkeypatch, export__formats=formats)
    evaluation = read_manifest(manifests["evaluate"]).figures
    accuracy, as_served = evaluation["challenger"]["metrics"]["accuracy"], evaluation["as_served"]
    files, labels = read_test_files(manifests["preprocess"], raw)
    assert as_served["num_files"] == len(files) and as_served["agreement"] == 1.0
    assert as_served["from_files"] == pytest.approx(accuracy)
    signatures = tf.saved_model.load(str(folder)).signatures
    found = signatures["serving_default"](image_bytes=tf.constant(files))["classes"]
    assert np.mean(found.numpy() == labels) == pytest.approx(accuracy)
    images = signatures["decode"](image_bytes=tf.constant(files))["images"].numpy()
    for name in ("tflite", "onnx"):
        answers = load_format(name, folder / FORMAT_PATHS[name])(images)["classes"]
        assert np.mean(answers == labels) == pytest.approx(accuracy, abs=1 / len(labels)), name
    figures = read_manifest(manifests["export"]).figures["files"]
    assert figures["num_checked"] >= 64 and figures["max_difference"] <= 1
    report = (Path(manifests["evaluate"]).parent / "report.html").read_text()
    assert f"as served, from {len(files)} raw test files" in report
    card = (folder / "MODEL_CARD.md").read_text()
    assert "The preprocessing of training is part of the model" in card


def test_without_a_served_form_nothing_is_trained(raw, tmp_path, monkeypatch):
    file = write_config(tmp_path, raw, "served_stages:INVERT_WITHOUT")
    with pytest.raises(AssertionError, match="changes pixels of .* a published model would not"):
        publish(file, tmp_path, monkeypatch)


def test_a_wrong_served_form_does_not_pass_the_gate(raw, tmp_path, monkeypatch):
    """It forgets to invert, so the answers to raw files are those to other pixels."""
    file = write_config(tmp_path, raw, "served_stages:INVERT_WRONG")
    with pytest.raises(AssertionError) as caught:
        publish(file, tmp_path, monkeypatch)
    assert "GATE_NOT_PASSED" in str(caught.value)
    [manifest] = (tmp_path / "root/artifacts/digits/evaluate").glob("*/manifest.json")
    figures = read_manifest(str(manifest)).figures
    assert figures["challenger"]["metrics"]["accuracy"] > 0.9 > figures["as_served"]["from_files"]
    [failed] = [rule for rule in figures["rules"] if not rule["passed"]]
    assert "so the gate does not measure what is served" in failed["text"]


def test_a_stage_that_is_left_to_the_client_is_run_by_prepare_and_by_the_server(
    raw, tmp_path, monkeypatch
):
    import tensorflow as tf

    from pipeline_ops.served import prepare
    from pipeline_ops.served.http.model_reloader import LoadedModel, predict

    stage = {"served_stages:INVERT_WITHOUT": {}, "served": "by_client"}
    manifests, folder = publish(write_config(tmp_path, raw, stage), tmp_path, monkeypatch)
    figures = read_manifest(manifests["evaluate"]).figures
    assert "INVERT_WITHOUT is left to the client" in figures["as_served"]["reason"]
    files, labels = read_test_files(manifests["preprocess"], raw)
    signatures = tf.saved_model.load(str(folder)).signatures
    assert set(signatures["serving_default"].structured_input_signature[1]) == {"prepared_images"}
    images = np.concatenate([prepare(folder, file) for file in files])
    page = (EXAMPLE.parents[1] / "docs/publish-and-serve.md").read_text()
    [code] = [each for each in page.split("```python\n")[1:] if "import prepare" in each]
    (tmp_path / "digit.png").write_bytes(files[0])
    code = code.partition("```")[0].replace("/srv/digits/3", str(folder))
    shown: dict[str, np.ndarray] = {}
    exec(code.replace("digit.png", str(tmp_path / "digit.png")), shown)  # noqa: S102
    assert (shown["images"] == images[:1]).all()
    found = signatures["serving_default"](prepared_images=tf.constant(images))["classes"].numpy()
    accuracy = figures["challenger"]["metrics"]["accuracy"]
    assert np.mean(found == labels) == pytest.approx(accuracy)
    rows = [{"b64": base64.b64encode(file).decode()} for file in files[:32]]
    answers = predict(LoadedModel(1, folder, []), json.dumps({"instances": rows}).encode())
    assert [row["classes"] for row in answers["predictions"]] == found[:32].tolist()
    assert "The client prepares the images" in (folder / "MODEL_CARD.md").read_text()


def test_prepare_refuses_other_code_than_that_of_the_training(raw, tmp_path):
    """And a file that a stage rejects."""
    from pipeline_ops.contract.dataset import StageFigures
    from pipeline_ops.served import prepare
    from pipeline_ops.served.contract import PREPROCESSING
    from pipeline_ops.served.preprocessing import Preprocessing

    decode = StageFigures(name="decode", served="in_graph")
    for code, error, message in (
        ("", DataError, "the stage decode rejects the image: not_image"),
        ("0" * 32, ConfigError, "the stage decode is installed with other code"),
    ):
        folder = tmp_path / (code or "same")
        (folder / "assets").mkdir(parents=True)
        stages = (decode.model_copy(update={"code": code}),)
        (folder / "assets" / PREPROCESSING).write_text(Preprocessing(stages).to_json())
        with pytest.raises(error, match=message):
            prepare(folder, b"no image")
