"""Test images that are also in a training split."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from manifests import list_again
from sandbox import copy_dataset

from pipeline_ops.contract.dataset import INDEX, DatasetFigures, IndexEntry, write_index
from pipeline_ops.contract.manifest import read_manifest, write_manifest
from pipeline_ops.contract.results import METRICS, REPORT
from pipeline_ops.errors import DataError
from pipeline_ops.evaluation.inputs import Artifact, Inputs, find_leaks
from pipeline_ops.storage.open_store import open_root


def with_index(dataset: str, folder: Path, *places: tuple[str, str, str]) -> str:
    """A copy of a data set with an index of these records: (key, content, split)."""
    uri = copy_dataset(dataset, folder)
    write_index(
        folder / INDEX,
        [IndexEntry(key, content, "", split, "shard", 0, 1) for key, content, split in places],
    )
    manifest = read_manifest(uri)
    write_manifest(folder, manifest.model_copy(update={"files": list_again(folder, manifest)}))
    return uri


def test_a_test_split_that_leaked_into_training_is_refused_with_its_images(sandbox, tmp_path):
    uri = with_index(
        sandbox.dataset,
        tmp_path / "leaked",
        ("a.png", "1" * 32, "train"),
        ("b.png", "1" * 32, "test"),
        ("c.png", "2" * 32, "train"),
        ("d.png", "3" * 32, "test"),
        ("e.png", "3" * 32, "validation"),
    )
    plan = sandbox.plan("evaluate", sandbox.train("good", uri), dataset=uri)
    with pytest.raises(
        DataError,
        match=(
            r"1 test image is also in the training split, .*: "
            r"b\.png equals a\.png\. Set preprocess\.duplicates"
        ),
    ):
        sandbox.run(plan)
    assert not Path(plan.request.artifact).exists()
    _, folder = sandbox.run(
        sandbox.plan(
            "evaluate",
            sandbox.train("good", uri, tag="again"),
            dataset=uri,
            evaluate__allowed_leaks=1,
        )
    )
    assert json.loads((folder / METRICS).read_bytes())["leaks"] == {
        "challenger": 1,
        "champion": None,
    }


def test_an_index_that_can_not_be_read_is_refused(sandbox, tmp_path):
    uri = with_index(sandbox.dataset, tmp_path / "broken", ("a.png", "1" * 32, "test"))
    (tmp_path / "broken" / INDEX).write_bytes(b"no gzip")
    with pytest.raises(DataError, match=r"index\.jsonl\.gz: the index cannot be read"):
        manifest = read_manifest(uri)
        figures = DatasetFigures.model_validate(manifest.figures)
        inputs = Inputs(Artifact(uri, manifest, figures), None, None)
        find_leaks(inputs, 0, open_root(tmp_path))


def test_test_images_that_the_champion_was_trained_on_are_counted(sandbox, tmp_path):
    old = with_index(
        sandbox.dataset, tmp_path / "old", ("a.png", "1" * 32, "train"), ("b.png", "2" * 32, "test")
    )
    train = sandbox.train("fair", old)
    evaluation = sandbox.plan("evaluate", train, dataset=old)
    sandbox.run(evaluation)
    sandbox.run(sandbox.plan("export", train, str(evaluation.manifest)))
    new = with_index(
        sandbox.dataset, tmp_path / "new", ("a.png", "1" * 32, "test"), ("b.png", "2" * 32, "train")
    )
    _, folder = sandbox.run(sandbox.plan("evaluate", sandbox.train("good", new), dataset=new))
    assert json.loads((folder / METRICS).read_bytes())["leaks"] == {"challenger": 0, "champion": 1}
    assert "The champion was trained on 1 of these test images" in (folder / REPORT).read_text()
