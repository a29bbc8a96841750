"""The gate on models that were really trained: the tasks of each run one after the other, each job
a process of its own, as Airflow runs them.

Six runs in one registry: a first model, one of fewer steps, one of shuffled labels, a better one,
and one of another seed, twice.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from airflow.sdk.exceptions import AirflowSkipException
from config_files import write_config
from manifests import list_again
from task_contexts import make_context
from upstream_artifacts import copy_artifacts

from pipeline_ops.contract.dataset import LABEL, list_shards
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.manifest import NAME, read_manifest, write_manifest
from pipeline_ops.contract.results import METRICS, REPORT, EvaluationFigures
from pipeline_ops.contract.task_record import TaskRecord, find_report, read_record
from pipeline_ops.errors import ExitCode
from pipeline_ops.orchestration.tasks import EvaluateOperator, ExportOperator, TrainOperator
from pipeline_ops.registry.registry import Registry
from pipeline_ops.storage.open_store import open_path, open_root

pytestmark = pytest.mark.airflow

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "digits.yaml"
NOT_WORSE = {"metric": "accuracy", "max_regression": 0.02, "confidence": 0.95}
FEW_EPOCHS, MANY_EPOCHS = 3, 16
"""On the hundred test images, about 0.7 and 0.94."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The artifacts of one run, and the registry when the run had ended.

    The registry has versions, the champion and the previous one, and the moves of aliases.
    """

    train: str
    evaluate: str
    export: TaskRecord
    versions: list[int]
    champion: int
    previous: int | None
    num_moves: int

    @property
    def figures(self) -> EvaluationFigures:
        return EvaluationFigures.model_validate(read_manifest(self.evaluate).figures)


class Chain:
    """Runs of configs/digits.yaml on one device, in one storage root."""

    def __init__(self, root: Path):
        self._root, self._layout = root, Layout(open_root(root), "digits")
        self._registry = Registry(root / "models" / "digits")
        self.announced: list[int] = []  # versions, as events of the model's asset

    def run(self, run_id: str, dataset: str, gate: dict, **train) -> Outcome:
        author = {
            "storage.root": str(self._root),
            "train.strategy": "one_device",
            "train.workers": 1,
            "train.early_stopping": None,
            "train.reduce_learning_rate": None,
            "train.best_checkpoint": None,
            "evaluate.gate": [gate],
        }
        config = write_config(self._root / "configs", author)
        manifests = copy_artifacts(self._layout, run_id, {"preprocess": dataset})
        conf = {f"train.{key}": value for key, value in train.items()}
        announce = SimpleNamespace(add=lambda asset, extra: self.announced.append(extra["version"]))
        for operator in (TrainOperator, EvaluateOperator, ExportOperator):
            task = operator(config_file=str(config))
            task.defer_after_seconds = 240.0  # the test has no triggerer
            try:
                context = make_context(manifests, run_id, conf)
                context["outlet_events"] = defaultdict(lambda: announce)
                manifests[operator.job] = task.execute(context)
            except AirflowSkipException:
                assert operator is ExportOperator
        registry, previous = self._registry, self._registry.find_by_alias("previous")
        return Outcome(
            manifests["train"],
            manifests["evaluate"],
            read_record(self._layout.task_record(run_id, "export")),
            [version.number for version in registry.list_versions()],
            registry.find_champion().number,
            previous and previous.number,
            len(registry.read_history().moves),
        )


def with_shuffled_labels(dataset: str, folder: Path) -> str:
    """A copy of a data set in which each training image has the label of some other one;
    its URI."""
    import tensorflow as tf

    shutil.copytree(Path(dataset).parent, folder)
    manifest = read_manifest(dataset)
    files = [folder / file.path for file in list_shards(manifest, "train")]
    shards = [
        [
            tf.train.Example.FromString(record)
            for record in tf.data.TFRecordDataset([str(file)]).as_numpy_iterator()
        ]
        for file in files
    ]
    cells = [
        example.features.feature[LABEL].int64_list.value for shard in shards for example in shard
    ]
    shuffled = np.random.default_rng(1).permutation([cell[0] for cell in cells])
    for cell, label in zip(cells, shuffled, strict=True):
        cell[0] = int(label)
    for file, shard in zip(files, shards, strict=True):
        with tf.io.TFRecordWriter(str(file)) as writer:
            for example in shard:
                writer.write(example.SerializeToString(deterministic=True))
    fingerprint = manifest.fingerprint.model_copy(update={"inputs": {"labels": "shuffled"}})
    changes = {"fingerprint": fingerprint, "fingerprint_digest": fingerprint.digest}
    changes["files"] = list_again(folder, manifest)
    write_manifest(folder, manifest.model_copy(update=changes))
    return str(folder / NAME)


@pytest.fixture(scope="module")
def chain(tmp_path_factory) -> Chain:
    return Chain(tmp_path_factory.mktemp("chain"))


@pytest.fixture(scope="module")
def outcomes(chain, dataset, tmp_path_factory) -> dict[str, Outcome]:
    """The runs by name, in the order in which they were made."""
    shuffled = with_shuffled_labels(dataset, tmp_path_factory.mktemp("shuffled") / "dataset")
    return {
        name: chain.run(name, data, gate, **train)
        for name, data, gate, train in [
            ("first", dataset, NOT_WORSE, {"epochs": FEW_EPOCHS}),
            ("fewer steps", dataset, NOT_WORSE, {"epochs": 1, "global_batch_size": 350}),
            ("shuffled labels", shuffled, NOT_WORSE, {"epochs": MANY_EPOCHS}),
            ("better", dataset, NOT_WORSE, {"epochs": MANY_EPOCHS}),
            ("tie that fails", dataset, NOT_WORSE, {"epochs": MANY_EPOCHS, "seed": 3}),
            (
                "tie that passes",
                dataset,
                NOT_WORSE | {"within_noise": "passes"},
                {"epochs": MANY_EPOCHS, "seed": 3},
            ),
        ]
    }


def read_registry(outcome: Outcome) -> tuple[list[int], int, int | None, int]:
    return outcome.versions, outcome.champion, outcome.previous, outcome.num_moves


def test_the_first_model_becomes_the_champion(outcomes):
    assert outcomes["first"].export.state == "success"
    assert read_registry(outcomes["first"]) == ([1], 1, None, 1)


@pytest.mark.parametrize("worse", ["fewer steps", "shuffled labels"])
def test_a_worse_challenger_is_trained_and_not_published_and_the_registry_is_as_it_was(
    outcomes, worse
):
    outcome, [rule] = outcomes[worse], outcomes[worse].figures.rules
    assert outcome.figures.champion_version == 1 and not rule.passed and not rule.is_within_noise
    assert "refuted" in rule.text and rule.high < -0.02
    assert (outcome.export.state, outcome.export.exit_code) == ("skipped", ExitCode.GATE_NOT_PASSED)
    assert outcome.export.reason == f"trained, not published: {rule.text}"
    assert outcome.export.manifest is None
    assert read_registry(outcome) == read_registry(outcomes["first"])


def test_what_makes_them_worse_is_what_was_done_to_them(outcomes):
    steps = {
        name: read_manifest(outcome.train).figures["steps"] for name, outcome in outcomes.items()
    }
    assert (steps["fewer steps"], steps["first"]) == (2, 66)
    assert steps["shuffled labels"] == steps["better"] == 350
    shuffled = outcomes["shuffled labels"].figures
    assert shuffled.challenger.metrics["accuracy"] < 0.4
    assert shuffled.num_examples == outcomes["first"].figures.num_examples == 100


def test_a_better_challenger_is_published_and_both_aliases_move(outcomes):
    outcome, [rule] = outcomes["better"], outcomes["better"].figures.rules
    assert rule.passed and not rule.is_within_noise and rule.low > 0.02
    assert outcome.export.state == "success" and read_registry(outcome) == ([1, 2], 2, 1, 2)


def test_a_tie_within_noise_is_what_the_config_says_it_is(outcomes):
    fails, passes = outcomes["tie that fails"], outcomes["tie that passes"]
    assert fails.train == passes.train  # one training, asked for twice
    for outcome in (fails, passes):
        [rule] = outcome.figures.rules
        assert rule.is_within_noise and rule.low < -0.02 <= rule.high
        assert outcome.figures.champion_version == 2
    assert "within noise, which fails" in fails.export.reason and fails.export.state == "skipped"
    assert read_registry(fails) == read_registry(outcomes["better"])
    assert passes.export.state == "success" and read_registry(passes) == ([1, 2, 3], 3, 2, 3)


def test_only_what_was_published_is_announced(outcomes, chain):
    assert chain.announced == [1, 2, 3]


def test_the_page_of_a_run_says_what_was_published_and_that_of_another_what_was_not(outcomes):
    published, unpublished = outcomes["better"], outcomes["fewer steps"]
    page = find_report(open_path(published.evaluate), open_path(published.export.manifest)).local
    assert page == Path(published.export.manifest).with_name(REPORT)
    text = page.read_text()
    assert "Published as version 2 of digits" in text and "Version 2 came into service." in text
    assert json.loads(page.with_name(METRICS).read_bytes())["publication"]["version"] == 2
    page = find_report(open_path(unpublished.evaluate), unpublished.export.manifest).local
    assert page == Path(unpublished.evaluate).with_name(REPORT)
    text = page.read_text()
    assert "When it was evaluated, version 1 was in service." in text
    assert "Published as" not in text
