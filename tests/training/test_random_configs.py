"""Random valid configs, each run to its end on tiny data: no bug, no hang, no wrong model.

A run may publish, be refused by the gate, or end with an error that names its key or its file. A
published model must answer as its evaluation says when it gets the raw files, as a client sends
them. TRAINYARD_RANDOM_CONFIGS says how many configs there are, and their numbers are the seeds:

    TRAINYARD_RANDOM_CONFIGS=500 pytest tests/training/test_random_configs.py
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from launch.running import make_agent_spec
from random_configs import (
    NOT_DRAWN,
    SCENE,
    check_config,
    draw_config,
    is_meant,
    list_changes,
    write_nets,
    write_raw_data,
)

from pipeline_ops.config.fields import collect_fields
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.contract.dataset import KEY, LABEL, DatasetFigures, list_shard_paths
from pipeline_ops.contract.layout import Attempt, lock_file
from pipeline_ops.contract.manifest import Manifest, read_manifest
from pipeline_ops.contract.progress import ProgressWriter
from pipeline_ops.contract.request import write_request
from pipeline_ops.contract.results import EvaluationFigures
from pipeline_ops.errors import ConfigError, DataError, ExitCode
from pipeline_ops.job.runner import Job
from pipeline_ops.launch import train as train_job
from pipeline_ops.launch.host_pool import HostPool
from pipeline_ops.places.local import LocalLauncher
from pipeline_ops.planning.job_kinds import JOBS
from pipeline_ops.planning.plan import plan_job
from pipeline_ops.registry.registry import Registry
from pipeline_ops.storage.open_store import open_path, open_root
from pipeline_ops.system.lease import Lease

COUNT = int(os.environ.get("TRAINYARD_RANDOM_CONFIGS", 30))
SEED = 20_261_125
_BETWEEN_TRAININGS_SECONDS = 900.0
"""A pool hears nothing between two trainings."""
_ALLOWED_DIFFERENCE = 0.1
"""Of the accuracy with raw files and that of the evaluation, whose files may be other pixels."""
_NAMES_ITS_PLACE = re.compile(
    r"\b(preprocess|train|evaluate|export)\.[a-z_]+|\.ya?ml:\d|\.(csv|jsonl|json|xml|txt|png)\b"
)


class SharedPool:
    """A pool of this host that outlives the trainings, so that each of them costs no start."""

    def __init__(self, pool: HostPool):
        self._pool = pool

    def __getattr__(self, name: str):
        return getattr(self._pool, name)

    def close(self) -> None:
        """Nothing: the next training needs it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    """Raw data, a module with functions of the author's, and room for configs."""
    folder = tmp_path_factory.mktemp("random")
    write_raw_data(folder / "raw")
    write_nets(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv(
            "PYTHONPATH",
            os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])),
        )
        yield folder


@pytest.fixture(scope="module")
def changes() -> list:
    return list_changes()


@pytest.fixture
def jobs(folder, monkeypatch, tmp_path_factory, pools) -> dict:
    """The functions of the jobs, which run in this process and its pools."""
    from beam_jobs.preprocess import preprocess
    from pipeline_ops.evaluation.evaluate import evaluate
    from pipeline_ops.export.export import export

    def open_host_pool(job: Job, config) -> SharedPool:
        from pipeline_ops.config.hosts import parse_hosts

        hosts = parse_hosts({"launcher": "local"})
        return SharedPool(pools(train_job.choose_isolation(config, hosts)))

    monkeypatch.setattr(train_job, "open_host_pool", open_host_pool)
    return {
        "preprocess": preprocess,
        "train": train_job.train,
        "evaluate": evaluate,
        "export": export,
    }


@pytest.fixture(scope="module")
def pools(folder, tmp_path_factory):
    """Makes a pool for each kind of isolation, and ends them."""
    made: dict[str, HostPool] = {}

    def get(isolation: str) -> HostPool:
        if isolation not in made:
            own = tmp_path_factory.mktemp("host")
            spec = make_agent_spec(
                own, isolation=isolation, silence_timeout_seconds=_BETWEEN_TRAININGS_SECONDS
            )
            made[isolation] = HostPool(LocalLauncher(), spec)
        return made[isolation]

    yield get
    for pool in made.values():
        pool.close()


@dataclasses.dataclass
class Run:
    """A run of all jobs of a config, by the URIs of the manifests that they have left."""

    manifests: dict[str, str]

    @property
    def dataset(self) -> Manifest:
        return read_manifest(self.manifests["preprocess"])

    @property
    def evaluation(self) -> EvaluationFigures:
        return EvaluationFigures.model_validate(read_manifest(self.manifests["evaluate"]).figures)


def run_jobs(config: PipelineConfig, folder: Path, jobs: dict) -> Run | None:
    """Runs the jobs. Returns None if the gate was not passed, so that nothing was published."""
    manifests: dict[str, str] = {}
    for name in JOBS:
        plan = plan_job(name, config, "run", manifests)
        attempt = Attempt(folder / f"{name}-{config.pipeline}")
        write_request(Attempt(open_root(attempt.folder)), plan.request)
        lease = Lease(lock_file(open_path(plan.request.artifact)))
        code = jobs[name](Job(plan.request, attempt, ProgressWriter(attempt.progress), lease))
        manifests[name] = str(plan.manifest)
        if code is ExitCode.GATE_NOT_PASSED:
            return None
        assert code is ExitCode.SUCCESS
    return Run(manifests)


@pytest.mark.training
@pytest.mark.timeout(240)
@pytest.mark.parametrize("number", range(SEED, SEED + COUNT))
def test_a_random_config_publishes_a_model_that_works_or_says_why_not(
    number, folder, changes, jobs, record_property
):
    file = draw_config(number, folder, changes)
    config = check_config(file)
    try:
        run = run_jobs(config, folder, jobs)
    except (ConfigError, DataError) as error:
        record_property("outcome", f"refused: {error}")
        assert _NAMES_ITS_PLACE.search(str(error)), f"{error}\n{file.read_text()}"
        return
    except BaseException as error:
        error.add_note(file.read_text())
        raise
    record_property("outcome", "published" if run else "not published")
    if run:
        check_served_model(config, run, file.read_text())


def check_served_model(config: PipelineConfig, run: Run, text: str) -> None:
    """Sends the raw files of the test split to the published model, and counts right answers."""
    import tensorflow as tf

    version = Registry(config.registry).find_champion()
    serve = tf.saved_model.load(str(Path(version.uri).parent)).signatures["serving_default"]
    names = DatasetFigures.model_validate(run.dataset.figures).class_names
    examples = list(iterate_tests(run))
    files = [find_raw_file(config, key) for key, _ in examples]
    answers = serve(image_bytes=tf.constant([file.read_bytes() for file in files]))
    metrics = run.evaluation.challenger.metrics
    if "probabilities" in answers:
        labels = [label for _, label in examples]
        right, expected = np.mean(answers["classes"].numpy() == labels), metrics["accuracy"]
    else:
        right, expected = measure_recall(answers, files, names), metrics["map_50"]
    assert right >= expected - _ALLOWED_DIFFERENCE, f"{right} for {expected}\n{text}"
    if any(rule.at_least for rule in config.evaluate.gate):  # otherwise any first model passes
        chance = 1 / len(names) if "probabilities" in answers else 0
        assert right > chance, f"{right} is chance\n{text}"


def iterate_tests(run: Run) -> Iterator[tuple[str, int | None]]:
    """Yields key and label of each example of the test split. A scene has no label."""
    import tensorflow as tf

    paths = list_shard_paths(run.manifests["preprocess"], run.dataset, "test")
    for record in tf.data.TFRecordDataset(paths).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        labels = features[LABEL].int64_list.value if LABEL in features else [None]
        yield features[KEY].bytes_list.value[0].decode(), labels[0]


def find_raw_file(config: PipelineConfig, key: str) -> Path:
    """Returns the file, not its equal copy beside the annotations of other formats."""
    return max((config.file.parent / "raw").rglob(Path(key.partition("#")[0]).name))


def measure_recall(answers: dict, files: Sequence[Path], names: Sequence[str]) -> float:
    """Computes the share of the raw boxes that one of the answers finds, with an IoU of 0.5."""
    lines = (files[0].parents[1] / "boxes.jsonl").read_text().splitlines()
    height, width = SCENE
    found = []
    for number, file in enumerate(files):
        [row] = (json.loads(line) for line in lines if line.split('"')[3].endswith(file.name))
        for box in row["boxes"]:
            label = box["label"] if box["label"] in names else "round"
            if label not in names:
                continue
            corners = [box["ymin"], box["xmin"], box["ymax"], box["xmax"]]
            true = np.array(corners) / [height, width, height, width]
            same = answers["classes"][number].numpy() == names.index(label)
            boxes = answers["boxes"][number].numpy()[same]
            found.append(bool(len(boxes)) and compute_ious(boxes, true).max() >= 0.5)
    return float(np.mean(found))


def compute_ious(boxes_N4: np.ndarray, box_4: np.ndarray) -> np.ndarray:
    low, high = np.maximum(boxes_N4[:, :2], box_4[:2]), np.minimum(boxes_N4[:, 2:], box_4[2:])
    common = np.maximum(high - low, 0).prod(1)
    areas = (boxes_N4[:, 2:] - boxes_N4[:, :2]).prod(1) + (box_4[2:] - box_4[:2]).prod()
    return common / np.maximum(areas - common, 1e-9)


def test_every_key_is_drawn_or_has_a_reason_that_is_about_some_key():
    keys = collect_fields(PipelineConfig)
    list_changes()  # raises an error for a key that is neither
    assert [name for name in NOT_DRAWN if not any(is_meant(key, name) for key in keys)] == []
