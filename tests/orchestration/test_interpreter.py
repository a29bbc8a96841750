"""A task's job in an interpreter of its own: Airflow's environment without TensorFlow and Beam, the
job's without Airflow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from config_files import use_interpreter, write_config
from environments import link_packages
from processes import wait_until

from pipeline_ops.config.hosts import parse_hosts
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.errors import ConfigError
from pipeline_ops.places.open_place import make_place
from pipeline_ops.places.place import JobLaunch
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.user_code.interpreter import read_versions

ROOT = Path(__file__).resolve().parents[2]
_ONLY_FOR_JOBS = """
    tensorflow keras apache_beam cv2 numpy sklearn scipy simplejpeg tensorboard h5py ml_dtypes jax
    optuna
"""
ONLY_FOR_JOBS = _ONLY_FOR_JOBS.split()
ONLY_FOR_AIRFLOW = ("airflow", "fastapi", "sqlalchemy", "uvicorn", "starlette")


def run_python(python: Path, code: str, *arguments: str, **environment: str) -> str:
    """Returns the last line of a script's output.

    The script finds our code in the way that it finds an installed package.
    """
    answer = subprocess.run(
        [python, "-c", code, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip().splitlines()[-1]


@pytest.fixture
def bare(tmp_path) -> Path:
    """An environment in which a numpy 9.9 is installed, by name, and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    [packages] = (tmp_path / "bare").glob("lib/python*/site-packages")
    (packages / "numpy-9.9.dist-info").mkdir()
    (packages / "numpy-9.9.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: numpy\nVersion: 9.9\n"
    )
    return tmp_path / "bare" / "bin" / "python"


def config_with(tmp_path: Path, python: str):
    return load_config(write_config(tmp_path, use_interpreter(tmp_path, python, "train")))


def test_the_versions_are_those_of_the_other_interpreter(bare):
    assert read_versions(bare, ["numpy", "keras"]) == {"numpy": "9.9"}
    assert set(read_versions(None, ["numpy", "keras"])) == {"numpy", "keras"}


def test_the_path_in_the_hosts_file_is_used_and_a_link_is_not_followed(bare, tmp_path, monkeypatch):
    assert config_with(tmp_path, str(bare)).resolve_interpreter("train") == bare
    assert bare.resolve() != bare
    assert config_with(tmp_path, str(bare)).resolve_interpreter("evaluate") is None
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config_with(tmp_path, "~/bare/bin/python").resolve_interpreter("train") == bare


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"python": "bare/bin/python"}, "python: must be an absolute path, or begin with ~/"),
        ({"code": "/opt/trainyard"}, "code: is for other hosts"),
    ],
)
def test_what_a_job_of_this_host_cannot_have_is_told_with_its_line(tmp_path, keys, message):
    changes = use_interpreter(tmp_path, sys.executable, "train")
    file = tmp_path / "hosts" / "venv.yaml"
    file.write_text(yaml.safe_dump({"launcher": "local"} | keys, sort_keys=False))
    with pytest.raises(ConfigError, match=f"venv.yaml:2: {message}"):
        load_config(write_config(tmp_path, changes))


def test_a_gang_of_this_host_has_the_interpreter_of_its_supervisor(tmp_path, bare):
    use_interpreter(tmp_path, bare)
    with pytest.raises(ConfigError, match="Write train.runs_on: venv instead"):
        load_config(write_config(tmp_path, {"train.hosts": "venv"}))


def test_a_job_has_the_variables_of_the_hosts_file(tmp_path):
    variables = {"OMP_NUM_THREADS": "1", "TRAINYARD_LOCAL_FOLDER": str(tmp_path / "own")}
    place = make_place(parse_hosts({"launcher": "local", "environment": variables}))
    attempt = Attempt(open_root(str(tmp_path)) / "attempt")
    attempt.folder.local.mkdir()
    script = tmp_path / "printing.py"
    script.write_text("import os, sys; print(os.environ['OMP_NUM_THREADS'], flush=True)")
    launch = JobLaunch(attempt, "printing", {"PYTHONPATH": str(tmp_path)}, 60)
    place.start(launch)
    wait_until(lambda: place.find(attempt).phase == "ended", 30)
    assert place.read_output(attempt) == "1"


@pytest.mark.parametrize("python", ["/nowhere/bin/python", "/bin/false", "/etc/passwd"])
def test_what_is_no_interpreter_is_refused_by_name(python):
    message = f"{python} cannot be used as an interpreter: .*must be the path of a Python"
    with pytest.raises(ConfigError, match=message):
        read_versions(Path(python), ["numpy"])


def test_the_path_is_no_part_of_the_fingerprint_and_variables_are(bare, tmp_path):
    hosts = config_with(tmp_path, str(bare)).find_job_hosts("train")
    assert hosts.code_digests == {}
    assert set(hosts.model_copy(update={"environment": {"A": "1"}}).code_digests) == {"environment"}


_PARSE = """
import json, runpy, sys
from airflow.sdk import DAG
made = runpy.run_path(sys.argv[1])
print(json.dumps([sorted(v.dag_id for v in made.values() if isinstance(v, DAG)), \
sorted({name.split(".")[0] for name in sys.modules})]))
"""

_TASK = """
import sys
sys.path.append("TESTS")
from task_contexts import make_context
from upstream_artifacts import copy_artifacts
from pipeline_ops.config.hosts import parse_hosts
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.contract.layout import Layout
from pipeline_ops.orchestration.tasks import TrainOperator
config, dataset = sys.argv[1:]
operator = TrainOperator(config_file=config)
operator.defer_after_seconds = 300
layout = Layout(load_config(config).root, "digits")
manifests = copy_artifacts(layout, "1", {"preprocess": dataset})
print(operator.execute(make_context(manifests, "1", {"train.epochs": 2})))
"""


@pytest.mark.airflow
def test_airflow_without_tensorflow_and_beam_runs_a_training_without_airflow(dataset, tmp_path):
    for_airflow = link_packages(tmp_path / "airflow", ONLY_FOR_JOBS)
    for_jobs = link_packages(tmp_path / "jobs", ONLY_FOR_AIRFLOW)
    for python, absent in ((for_airflow, ONLY_FOR_JOBS[:5]), (for_jobs, ONLY_FOR_AIRFLOW[:1])):
        find = (
            "import importlib.util, sys; "
            "print([name for name in sys.argv[1:] if importlib.util.find_spec(name)])"
        )
        assert run_python(python, find, *absent) == "[]"
    config = config_with(tmp_path, str(for_jobs))
    environment = {"AIRFLOW_HOME": str(tmp_path / "home"), "TRAINYARD_CONFIGS": str(config.file)}
    dags, modules = json.loads(
        run_python(for_airflow, _PARSE, str(ROOT / "dags" / "trainyard.py"), **environment)
    )
    assert "digits" in dags
    assert not set(modules) & set(ONLY_FOR_JOBS)
    task = _TASK.replace("TESTS", str(ROOT / "tests" / "support"))
    manifest = read_manifest(
        run_python(for_airflow, task, str(config.file), dataset, **environment)
    )
    assert {"tensorflow-cpu", "keras"} & set(manifest.fingerprint.versions)
    assert manifest.figures["workers"] == 2


_SEARCH = """
import sys
sys.path.append("TESTS")
from task_contexts import make_context
from pipeline_ops.orchestration.search import SearchOperator
operator = SearchOperator(config_file=sys.argv[1])
operator.defer_after_seconds = 300
print([trial["number"] for trial in operator.execute(make_context({}, "1"))], *sys.modules)
"""


@pytest.mark.airflow
def test_airflow_without_optuna_draws_the_trials_of_a_search_where_train_runs(tmp_path):
    for_airflow = link_packages(tmp_path / "airflow", ONLY_FOR_JOBS)
    for_jobs = link_packages(tmp_path / "jobs", ONLY_FOR_AIRFLOW)
    search = {"parameters": {"train.optimizer.learning_rate": [0.1, 0.01, 0.001]}}
    config = write_config(
        tmp_path, use_interpreter(tmp_path, for_jobs, "train") | {"search": search}
    )
    task = _SEARCH.replace("TESTS", str(ROOT / "tests" / "support"))
    output = run_python(for_airflow, task, str(config), AIRFLOW_HOME=str(tmp_path / "home"))
    assert output.startswith("[0, 1, 2] ")
    assert not {*output.split()} & set(ONLY_FOR_JOBS)
