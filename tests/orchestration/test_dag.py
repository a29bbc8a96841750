"""The DAG file: cheap to parse, light to import,
and a broken config does not take the others down."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from airflow.models.taskinstance import TaskInstance
from config_files import DIGITS, write_config

from pipeline_ops.planning.job_kinds import JOBS

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("tensorflow", "keras", "apache_beam", "cv2", "PIL", "sklearn", "scipy", "optuna")
CLIENTS = ("obstore", "kubernetes", "docker", "urllib3", "websocket")
"""What only a process that uses a bucket or a cluster imports."""

PARSE = """
import json, sys, time
from airflow.sdk import DAG, BaseOperator, Param
from airflow.triggers.base import BaseTrigger
before = set(sys.modules)
begin = time.process_time()
import runpy
made = runpy.run_path(sys.argv[1])
print(json.dumps({"seconds": time.process_time() - begin, \
"dags": sorted({v.dag_id for v in made.values() if isinstance(v, DAG)}),
                  "new": sorted(set(sys.modules) - before)}))
"""


def parse(**environment: str) -> dict:
    """The DAGs and imports of the DAG file in a clean interpreter."""
    output = subprocess.run(
        [sys.executable, "-c", PARSE, str(ROOT / "dags" / "trainyard.py")],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | environment,
    )
    return json.loads(output.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def parsed() -> dict:
    return parse()


def test_every_config_becomes_a_dag(parsed):
    assert parsed["dags"] == sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))


def test_the_dag_file_imports_nothing_heavy(parsed):
    assert [module for module in parsed["new"] if module.split(".")[0] in HEAVY] == []


def test_a_pipeline_in_a_bucket_and_a_cluster_imports_no_client_of_them(tmp_path):
    (tmp_path / "hosts").mkdir()
    pods = {"launcher": "kubernetes", "image": f"jobs@sha256:{'1' * 64}"}
    (tmp_path / "hosts" / "pods.yaml").write_text(yaml.safe_dump(pods))
    box = {"launcher": "container", "image": "jobs"}
    (tmp_path / "hosts" / "box.yaml").write_text(yaml.safe_dump(box))
    source = {"type": "image_folder", "path": "s3://bucket/raw"}
    places = {"preprocess.source": source, "storage.root": "s3://bucket/root"}
    places |= {"preprocess.runs_on": "pods", "train.runs_on": "box"}
    file = write_config(tmp_path, places)
    made = parse(TRAINYARD_CONFIGS=str(file))
    print(f"{made['seconds']:.2f} s of a core")
    assert made["dags"] == ["digits"]
    assert [name for name in made["new"] if name.split(".")[0] in HEAVY + CLIENTS] == []


@pytest.fixture
def read_dag(monkeypatch):
    """Reads the DAG of a config as Airflow does."""

    def read_dag(file: Path = DIGITS):
        from airflow.dag_processing.dagbag import DagBag

        monkeypatch.setenv("TRAINYARD_CONFIGS", str(file))
        return DagBag(ROOT / "dags", bundle_path=ROOT / "dags", bundle_name="dags").dags[file.stem]

    return read_dag


def test_the_tasks_run_one_after_the_other(read_dag):
    dag = read_dag()
    assert [task.task_id for task in dag.topological_sort()] == [*JOBS]
    assert dag.get_task("train").upstream_task_ids == {"preprocess"}
    assert dag.get_task("train").retries == 2


def test_the_first_retry_comes_at_once_and_later_ones_outlast_an_airflow_that_comes_back_slowly(
    read_dag,
):
    end = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    failed = {"task": read_dag().get_task("train"), "dag_id": "digits", "task_id": "train"}
    failed |= {"logical_date": None, "end_date": end, "retry_delay_override": None}
    for number, low, high in ((1, 5, 10), (2, 30, 60), (3, 180, 300), (4, 300, 300)):
        retry = TaskInstance.next_retry_datetime(SimpleNamespace(try_number=number, **failed))
        assert low <= (retry - end).total_seconds() <= high, number


def test_a_task_has_the_pool_that_its_section_names(tmp_path, read_dag):
    dag = read_dag(write_config(tmp_path, {"train.pool": "gpu_hosts"}))
    train, evaluate = dag.get_task("train"), dag.get_task("evaluate")
    assert (train.pool, evaluate.pool) == ("gpu_hosts", "default_pool")


def test_a_search_stands_for_train_and_what_comes_after_it_knows_nothing_of_it(tmp_path, read_dag):
    search = {"parameters": {"train.optimizer.learning_rate": [0.001, 0.01]}, "max_parallel": 3}
    dag = read_dag(write_config(tmp_path, {"search": search}))
    upstream = {task.task_id: task.upstream_task_ids for task in dag.tasks}
    assert upstream == {
        "preprocess": set(),
        "search": set(),
        "trial": {"preprocess", "search"},
        "train": {"trial"},
        "evaluate": {"train"},
        "export": {"evaluate"},
    }
    assert dag.get_task("trial").is_mapped
    assert dag.get_task("trial").max_active_tis_per_dagrun == 3
    assert dag.get_task("train").trigger_rule == "all_done"


def test_the_form_stands_in_the_dag_once_and_not_in_each_of_its_tasks(read_dag):
    """Airflow would check every copy whenever the file is read:
    a third of a second for each pipeline."""
    dag = read_dag()
    assert len(dag.params) > 20
    assert [len(task.params) for task in dag.tasks] == [0, 0, 0, 0]
