"""A run that starts from what is there: a data set or a published model by its version, checked by
the first task before any work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from config_files import DIGITS, write_config
from manifests import make_manifest
from publishers import make_model_figures
from task_contexts import make_context

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.dataset import DatasetFigures
from pipeline_ops.contract.fingerprint import Fingerprint
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.manifest import Manifest, list_files, read_manifest, write_manifest
from pipeline_ops.contract.task_record import read_record
from pipeline_ops.errors import DataError
from pipeline_ops.orchestration.tasks import PreprocessOperator
from pipeline_ops.planning.inputs import find_warm_start
from pipeline_ops.planning.plan import plan_job
from pipeline_ops.registry.registry import Registry
from pipeline_ops.storage.open_store import open_root


def make_dataset(root: Path, content: str) -> str:
    """Leaves a data set; returns its version."""
    fingerprint = Fingerprint(config={"content": content}, inputs={}, code={}, versions={})
    folder = Layout(open_root(root), "digits").artifact("preprocess", fingerprint.digest).local
    folder.mkdir(parents=True)
    (folder / "train-00000-of-00001.tfrecord").write_text(content)
    counts = {"num_examples": {"train": 3, "test": 4}, "num_rejected": 0}
    figures = DatasetFigures(
        class_names=["0"], image_shape=(28, 28, 1), labels={}, rejected_by_reason={}, **counts
    )
    manifest = make_manifest("preprocess", fingerprint, figures, files=list_files(folder))
    write_manifest(folder, manifest)
    return manifest.digest


def publish(root: Path, number: int, pipeline: str = "digits") -> Manifest:
    folder = root / "models" / "digits" / str(number)
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_text(f"version {number}")
    figures = make_model_figures(number)
    files = list_files(folder)
    manifest = make_manifest("export", figures=figures, files=files, pipeline=pipeline)
    write_manifest(folder, manifest)
    return manifest


def preprocess(root: Path, author: Mapping[str, Any] | None = None, **conf) -> str:
    config = write_config(root / "configs", {"storage.root": str(root)} | dict(author or {}))
    conf = {key.replace("__", "."): value for key, value in conf.items()}
    return PreprocessOperator(config_file=str(config)).execute(make_context({}, "run-1", conf))


def test_a_run_takes_the_data_set_that_it_asks_for_and_preprocesses_nothing(tmp_path):
    make_dataset(tmp_path, "first")
    expected = make_dataset(tmp_path, "second")
    make_dataset(tmp_path, "third")
    manifest = preprocess(tmp_path, preprocess__dataset=expected[:8])
    assert read_manifest(manifest).digest == expected
    record = read_record(Layout(open_root(tmp_path), "digits").task_record("run-1", "preprocess"))
    reason = f"preprocess.dataset asks for the data set {expected[:8]}"
    assert (record.cached, record.reason) == (True, reason)
    assert not Layout(open_root(tmp_path), "digits").attempts("run-1", "preprocess").local.exists()


def test_a_data_set_is_found_by_the_name_of_its_folder_too(tmp_path):
    version = make_dataset(tmp_path, "first")
    [folder] = Layout(open_root(tmp_path), "digits").artifacts("preprocess").local.iterdir()
    manifest = preprocess(tmp_path, preprocess__dataset=folder.name[:10])
    assert read_manifest(manifest).digest == version


def test_one_that_is_not_there_fails_the_first_task_with_those_that_are(tmp_path):
    none = "no data set of digits has a version that begins with 000000. There is none yet"
    with pytest.raises(AirflowFailException, match=none):
        preprocess(tmp_path, preprocess__dataset="000000")
    version = make_dataset(tmp_path, "first")
    those = rf"The data sets are, newest first:\n  {version[:12]}  made .* UTC, 7 examples"
    with pytest.raises(AirflowFailException, match=those):
        preprocess(tmp_path, preprocess__dataset="000000")


def test_a_damaged_one_is_not_taken(tmp_path):
    version = make_dataset(tmp_path, "first")
    [shard] = tmp_path.rglob("*.tfrecord")
    shard.unlink()
    config = load_config(DIGITS, {"storage.root": str(tmp_path), "preprocess.dataset": version})
    with pytest.raises(DataError, match="is damaged: .*. Leave out preprocess.dataset"):
        plan_job("preprocess", config, "run-1", {})


def test_a_version_of_the_model_is_what_a_training_begins_with(tmp_path):
    first, _ = publish(tmp_path, 1), publish(tmp_path, 2)
    config = load_config(DIGITS, {"storage.root": str(tmp_path), "train.warm_start": "version 1"})
    found = find_warm_start(config, first.fingerprint)
    assert found.digest == first.digest and found.uri.endswith("/models/digits/1/manifest.json")


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("version 7", "there is no version 7 of the model digits. Its versions are 1"),
        (
            {"path": "digits.yaml", "sha256": "0" * 64},
            f".*/configs/digits.yaml has the SHA-256 .*, and not {'0' * 64}. Get the file again",
        ),
        ("weights.h5", "there is no .*/configs/weights.h5. Give champion, a published version"),
    ],
)
def test_weights_that_are_not_there_fail_the_first_task_and_nothing_is_preprocessed(
    tmp_path, source, wrong
):
    publish(tmp_path, 1)
    with pytest.raises(AirflowFailException, match=f"train.warm_start: {wrong}"):
        preprocess(tmp_path, author={"train.warm_start": source})
    assert not Layout(open_root(tmp_path), "digits").attempts("run-1", "preprocess").local.exists()


@pytest.mark.parametrize("key", ["export.model", "train.warm_start"])
def test_a_model_of_another_pipeline_fails_the_first_task_and_nothing_is_preprocessed(
    tmp_path, key
):
    publish(tmp_path, 1, pipeline="pets")
    author = {"train.warm_start": "version 1"}
    if key == "export.model":
        author = {}
        Registry(tmp_path / "models" / "digits").promote(1, "by hand")
    wrong = rf"digits.yaml:\d+: {key}: the .* comes from pipeline pets, and this is digits"
    with pytest.raises(AirflowFailException, match=wrong) as failed:
        preprocess(tmp_path, author=author)
    assert "set export.shared_with: [pets]" in str(failed.value)
    assert not Layout(open_root(tmp_path), "digits").attempts("run-1", "preprocess").local.exists()
