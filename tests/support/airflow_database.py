"""A real Airflow database with a pipeline, Airflow's own users, and the output of a run's jobs."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from config_files import write_config
from manifests import make_manifest
from publishers import make_model_figures

from pipeline_ops.cli.embedded_airflow import make_bundle
from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.contract.dataset import (
    DATA_PAGE,
    QUARANTINE,
    RejectedRecord,
    build_shard_name,
)
from pipeline_ops.contract.layout import Attempt, Layout
from pipeline_ops.contract.manifest import Input, Maker, list_files, write_manifest
from pipeline_ops.contract.progress import ProgressEvent, ProgressWriter
from pipeline_ops.contract.results import REPORT
from pipeline_ops.contract.task_record import TaskRecord, write_record
from pipeline_ops.registry.registry import Registry
from pipeline_ops.storage.store_path import StorePath

ROOT = Path(__file__).resolve().parents[2]
DAG, RUN = "digits", "manual__2026-11-21T10:00:00.5+00:00"
USERS = {"viewer": "viewer", "user": "user", "op": "op", "admin": "admin"}


@pytest.fixture(scope="session")
def airflow_folder(tmp_path_factory) -> Path:
    """A folder with the config `digits.yaml`, whose DAG is in the database, with one run."""
    folder = tmp_path_factory.mktemp("airflow")
    write_config(folder, {"storage.root": "storage"})
    bundle = [{"name": "trainyard", **make_bundle(ROOT / "dags")}]
    os.environ |= {
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundle),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(
            f"{name}:{role}" for name, role in USERS.items()
        ),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(folder / "passwords.json"),
        "AIRFLOW__API_AUTH__JWT_SECRET": "0" * 128,
    }
    (folder / "passwords.json").write_text(json.dumps(dict.fromkeys(USERS, "password")))
    _fill_database(folder)
    return folder


def sync_dags(session: Any) -> None:
    """Reads the DAG files, as Airflow's DAG processor does."""
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    bag = DagBag(ROOT / "dags", bundle_path=ROOT / "dags", bundle_name="trainyard")
    assert not bag.import_errors, bag.import_errors
    sync_bag_to_db(bag, "trainyard", None, session=session)
    session.commit()


def _fill_database(folder: Path) -> None:
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.utils import db
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    db.initdb()
    with pytest.MonkeyPatch.context() as patch, create_session() as session:
        patch.setenv("TRAINYARD_CONFIGS", str(folder / "digits.yaml"))
        DagBundlesManager().sync_bundles_to_db(session=session)
        session.commit()
        sync_dags(session)
        SerializedDagModel.get(DAG, session=session).dag.create_dagrun(
            run_id=RUN,
            run_after=dt.datetime.now(dt.UTC),
            run_type=DagRunType.MANUAL,
            triggered_by=DagRunTriggeredByType.TEST,
            state=DagRunState.RUNNING,
            conf={"train.epochs": 3},
            session=session,
        )


@pytest.fixture(scope="session")
def plugin(airflow_folder):
    """The plugin's application, with Airflow's own user management behind it."""
    from airflow.api_fastapi.app import init_auth_manager

    from pipeline_ops.orchestration.ui.app import app

    init_auth_manager()
    return app


@pytest.fixture
def client(plugin) -> Callable[[str | None], object]:
    """Makes the browser of a user, or of none. It has the cookie of Airflow's login."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from fastapi.testclient import TestClient

    def make(user: str | None) -> TestClient:
        token = user and get_auth_manager().generate_jwt(
            SimpleAuthManagerUser(username=user, role=USERS[user], teams=None)
        )
        return TestClient(
            plugin,
            base_url="http://airflow.example",
            follow_redirects=False,
            cookies={"_token": token} if token else None,
        )

    return make


@pytest.fixture
def set_states(airflow_folder) -> Callable[..., None]:
    """Sets the states of the run and its tasks."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    def set_them(run: str, **tasks: str) -> None:
        with create_session() as session:
            session.scalar(select(DagRun).where(DagRun.run_id == RUN)).state = run
            for task in session.scalars(select(TaskInstance).where(TaskInstance.run_id == RUN)):
                task.state = tasks.get(task.task_id)
                now = dt.datetime.now(dt.UTC)
                task.start_date = now - dt.timedelta(seconds=90) if task.state else None
                task.end_date = now if task.state == "success" else None
                task.try_number = 1

    return set_them


@dataclasses.dataclass(frozen=True)
class RunWriter:
    """Writes what the jobs of the run would leave."""

    config: PipelineConfig

    @staticmethod
    def address(path: str, **query: str) -> str:
        """The address of one of the run's pages."""
        return f"/pipelines/{DAG}/{path}?{urlencode({'run_id': RUN} | query)}"

    @property
    def layout(self) -> Layout:
        return Layout(self.config.root, self.config.pipeline)

    @property
    def registry(self) -> Registry:
        return Registry(self.config.registry)

    def attempt(
        self,
        task: str,
        events: list[ProgressEvent],
        workers: Mapping[str, list[ProgressEvent]] | None = None,
    ) -> Attempt[StorePath]:
        # A new one each time: the plugin remembers what it has read of a folder.
        attempt = Attempt(self.layout.attempts(RUN, task) / f"attempt-{uuid.uuid4().hex[:8]}")
        attempt.request.write(b"{}")
        files = {attempt.worker_progress(name): lines for name, lines in (workers or {}).items()}
        for path, lines in {attempt.progress: events, **files}.items():
            writer = ProgressWriter(path.local)
            for event in lines:
                writer.forward(event)
        return attempt

    def record(self, task: str, run_id: str = RUN, **values) -> None:
        record = TaskRecord(**{"state": "success"} | values)
        write_record(self.layout.task_record(run_id, task), record)

    def artifact(
        self,
        task: str,
        files: Mapping[str, str],
        figures: Mapping | None = None,
        inputs: Mapping[str, Input] | None = None,
    ) -> str:
        folder = self.layout.artifact(task, "0" * 32).local
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text)
        fields = {"files": list_files(folder), "figures": figures, "inputs": inputs or {}}
        write_manifest(folder, make_manifest(task, fingerprint_digest="0" * 32, **fields))
        self.record(task, manifest=str(folder / "manifest.json"))
        return str(folder / "manifest.json")

    def dataset(self, **figures) -> None:
        values = {
            "class_names": ["0", "1"],
            "image_shape": [28, 28, 1],
            "num_examples": {"train": 1437, "validation": 180, "test": 178},
            "labels": {},
            "num_rejected": 2,
            "rejected_by_reason": {"not an image": 2},
        }
        rejected = [
            RejectedRecord(key=f"{name}.png", stage="decode", reason="not an image")
            for name in ("a", "b")
        ]
        lines = "".join(f"{record.model_dump_json()}\n" for record in rejected)
        files = {DATA_PAGE: "<h1>Data</h1>", QUARANTINE: lines}
        for split in ("train", "validation", "test"):
            files |= {build_shard_name(split, index, 2): "bytes" for index in range(2)}
        self.artifact("preprocess", files, values | figures)

    def report(self, html: str, published: str = "") -> None:
        """Writes the report of the evaluation and, if something was published, of the export."""
        evaluation = self.artifact("evaluate", {REPORT: html})
        if published:
            inputs = {"evaluate": Input(uri=evaluation, digest="0" * 32)}
            self.artifact("export", {REPORT: published}, inputs=inputs)

    def publish(self, *accuracies: float) -> None:
        """Publishes versions 1 and so on, and promotes each of them."""
        for number, accuracy in enumerate(accuracies, 1):
            changes = {
                "compared_with": number - 1 or None,
                "metrics": {"accuracy": accuracy, "macro_f1": accuracy - 0.01},
            }
            figures = make_model_figures(number).model_copy(update=changes)
            made_by = Maker(run_id=RUN, time=dt.datetime(2026, 11, number, 3, tzinfo=dt.UTC))
            fields = {"fingerprint_digest": str(number), "made_by": made_by}
            manifest = make_manifest("export", figures=figures, **fields)
            folder = self.config.registry.local / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            write_manifest(folder, manifest)
            self.registry.promote(number, "passed the gate")


@pytest.fixture
def run_writer(airflow_folder) -> RunWriter:
    """A writer with an empty storage root."""
    shutil.rmtree(airflow_folder / "storage", ignore_errors=True)
    return RunWriter(load_config(airflow_folder / "digits.yaml"))
