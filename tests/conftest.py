"""What tests of several packages share: a small real data set, written with TensorFlow's own
writer, and train jobs on it."""

from __future__ import annotations

import gc
import json
import multiprocessing.util
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from manifests import list_counted
from small_datasets import write_dataset

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.dataset import CLASS_WEIGHTS
from pipeline_ops.contract.layout import Attempt, lock_file
from pipeline_ops.contract.manifest import read_manifest, write_manifest
from pipeline_ops.contract.progress import ProgressWriter
from pipeline_ops.contract.request import write_request
from pipeline_ops.job.runner import Job
from pipeline_ops.planning.plan import plan_job
from pipeline_ops.storage.open_store import open_path, open_root
from pipeline_ops.system.lease import Lease
from pipeline_ops.system.temp_dirs import use_temporary_folder

pytest_plugins = [
    "sandbox",
    "publishers",
    "scenes",
    "small_disks",
    "log_tails",
    "airflow_database",
    "object_servers.fixtures",
    "engines.fixtures",
    "images",
    "outside_place",
    "real_kubernetes.fixtures",
]

DIGITS = Path(__file__).resolve().parents[1] / "configs" / "digits.yaml"
LONG_FIRST = (
    "docker",  # its images are built first
    "orchestration/test_plain_airflows.py",
    "orchestration/test_dag_bundles.py",
    "cli/test_durable.py",
    "cli/test_ended_trainings.py",
    "cli/test_runs_on_a_bucket.py",
    "launch/test_ssh.py",
    "training/test_detection_equality.py",
    "cli/test_end_to_end.py",
    "launch/test_faults.py",
    "faults",
    "cli",
    "launch",
    "training",
    "export",
    "orchestration",
    "evaluation",
)

os.environ.setdefault(
    "PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir()
)  # where pytest keeps the folders of tests that have failed
_temporary = use_temporary_folder("tests")
_folder = _temporary.__enter__()
# No file may import this one by its name: it would be run again, with a folder that goes in the
# middle of the tests.
os.environ["AIRFLOW_HOME"] = str(_folder / "airflow")  # before anything imports Airflow
os.environ["TRAINYARD_LOCAL_FOLDER"] = str(_folder / "local")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# TensorFlow, Beam, Airflow and the tests themselves are a million objects that stay to the end.
# Each full collection would walk over all of them, a tenth of the time of all tests.
gc.disable()

# A shell starts background processes with these signals ignored, and their children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """The tests' temporary files go with them, once multiprocessing has tidied up in there; those
    of tests that are killed, with the next ones."""
    multiprocessing.util.Finalize(None, _temporary.__exit__, (None, None, None), exitpriority=-1000)


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """A temporary folder for this process and those that it starts, as /tmp is."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@pytest.fixture(scope="session")
def dataset(tmp_path_factory) -> str:
    """The URI of a data set's manifest: 900 of scikit-learn's digits, 16x16 grey."""
    import tensorflow as tf
    from sklearn.datasets import load_digits

    digits = load_digits()

    def encode(index: int) -> tuple[bytes, int]:
        image = digits.images[index].repeat(2, 0).repeat(2, 1)[..., None] * 15
        return tf.io.encode_png(tf.cast(image, tf.uint8)).numpy(), int(digits.target[index])

    parts = {"train": range(0, 700), "validation": range(700, 800), "test": range(800, 900)}
    splits = {split: list(map(encode, indexes)) for split, indexes in parts.items()}
    folder = tmp_path_factory.mktemp("dataset")
    return write_dataset(folder, (16, 16, 1), [str(digit) for digit in range(10)], splits)


@pytest.fixture(scope="session")
def weighted_dataset(dataset, tmp_path_factory) -> str:
    """The same data set, balanced: with a weight for each class, from 0.5 to 1.4."""
    manifest, folder = read_manifest(dataset), tmp_path_factory.mktemp("weighted") / "dataset"
    shutil.copytree(Path(dataset).parent, folder)
    (folder / CLASS_WEIGHTS).write_text(
        json.dumps({str(digit): 0.5 + digit / 10 for digit in range(10)})
    )
    counts = {file.path: file.num_examples for file in manifest.files}
    write_manifest(folder, manifest.model_copy(update={"files": list_counted(folder, counts)}))
    return str(folder / "manifest.json")


@pytest.fixture(scope="module")
def user_package():
    """The package `acme_vision`, a user's own, is where Python finds it, also in the processes that
    are started meanwhile."""
    folder = str(Path(__file__).parent / "own")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", folder, prepend=os.pathsep)
        yield


@pytest.fixture
def make_job(dataset, tmp_path):
    """Makes train jobs on the small data set, with overrides of configs/digits.yaml."""
    return job_maker(tmp_path, dataset)


@pytest.fixture(scope="session")
def make_job_in():
    """As `make_job`, for a folder and a data set of one's own."""
    return job_maker


def job_maker(folder: Path, dataset: str, file: Path = DIGITS):
    def make(name: str = "attempt", **overrides) -> Job:
        config = load_config(
            file,
            {"storage.root": str(folder / "root")}
            | {k.replace("__", "."): v for k, v in overrides.items()},
        )
        plan = plan_job("train", config, "run", {"preprocess": dataset})
        write_request(Attempt(open_root(folder / name)), plan.request)
        attempt = Attempt(folder / name)
        lease = Lease(lock_file(open_path(plan.request.artifact)))
        return Job(plan.request, attempt, ProgressWriter(attempt.progress), lease)

    return make


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files with long tests first, so that parallel runs end at the same time."""
    tests = Path(__file__).parent

    def find_position(item: pytest.Item) -> int:
        path = item.path.relative_to(tests).as_posix()
        return next((n for n, start in enumerate(LONG_FIRST) if path.startswith(start)), 99)

    items.sort(key=find_position)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """On CI a skipped test fails, unless it needs data that are not part of this repository."""
    report = yield
    if report.skipped and os.environ.get("CI") and "BCCD" not in str(report.longrepr):
        report.outcome = "failed"
    return report


@pytest.fixture(scope="session")
def s3_address():
    """An S3 server with threads and an empty bucket `trainyard`."""
    from object_servers.s3_server import S3Server

    with S3Server() as server:
        server.make_bucket("trainyard")
        yield server


@pytest.fixture
def s3_root(s3_address, monkeypatch, tmp_path):
    """An empty root in a bucket. What a client needs is in the environment."""
    from pipeline_ops.storage.open_store import open_root

    for name, value in s3_address.build_environment().items():
        monkeypatch.setenv(name, value)
    return open_root(f"s3://trainyard/{tmp_path.name}")
