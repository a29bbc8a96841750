"""OpenLineage: what the real provider gets out of the operators, and sends. A run with its listener
is in `test_existing_airflow.py`."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
from config_files import write_config
from manifests import make_manifest
from publishers import make_model_figures

from pipeline_ops.contract.fingerprint import Fingerprint
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.manifest import NAME, Input, ManifestFile, write_manifest
from pipeline_ops.contract.task_record import TaskRecord, write_record
from pipeline_ops.orchestration.tasks import OPERATORS
from pipeline_ops.planning.job_kinds import JOBS
from pipeline_ops.storage.open_store import open_root

FIGURES = {"export": make_model_figures(3)}


class Run:
    """The artifacts of a run below a storage root,
    and their lineage from the provider."""

    def __init__(self, root: Path):
        self.layout = Layout(open_root(root), "digits")
        changes = {"storage.root": str(root), "preprocess.source.path": "s3://lake/raw/digits"}
        self.config = write_config(root / "configs", changes)

    def leave(self, job: str, raw: dict[str, str] | None = None, **inputs: Input) -> Input:
        fingerprint = Fingerprint(config={}, inputs=raw or {}, code={}, versions={"job": job})
        folder = self.layout.artifact(job, fingerprint.digest).local
        folder.mkdir(parents=True)
        count = 4 if job == "preprocess" else None
        files = [
            ManifestFile(path=f"{job}-{i}", num_bytes=10, crc32c="0" * 8, num_examples=count)
            for i in range(2)
        ]
        manifest = make_manifest(job, fingerprint, FIGURES.get(job, {}), inputs=inputs, files=files)
        write_manifest(folder, manifest)
        record = TaskRecord(state="success", manifest=str(folder / NAME))
        write_record(self.layout.task_record("run-1", job), record)
        return Input(uri=str(folder / NAME), digest=manifest.digest)

    def emit_event(self, job: str, events: Path) -> dict:
        """Lets the provider ask the operator, and send; the event as it arrives."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the provider's own imports
            manager = pytest.importorskip(
                "airflow.providers.openlineage.extractors.manager",
                reason="the provider of OpenLineage is not installed",
            )
            from airflow.providers.openlineage.plugins.adapter import OpenLineageAdapter
            from openlineage.client import OpenLineageClient
            from openlineage.client.transport.file import FileConfig, FileTransport
        operator = next(each for each in OPERATORS if each.job == job)(config_file=str(self.config))
        context = {"dag_run": SimpleNamespace(conf={}), "run_id": "run-1"}
        task_instance = SimpleNamespace(run_id="run-1", get_template_context=lambda: context)
        found = manager.ExtractorManager().extract_metadata(
            SimpleNamespace(run_id="run-1"), operator, "success", task_instance
        )
        transport = FileTransport(FileConfig(log_file_path=str(events), append=True))
        run_id, time = "0" * 8 + "-0000-7000-8000-" + "0" * 12, "2026-11-21T00:00:00+00:00"
        OpenLineageAdapter(OpenLineageClient(transport=transport)).complete_task(
            run_id, f"digits.{job}", time, found, None, None, None, None, ""
        )
        return json.loads(events.read_text().splitlines()[-1])


def as_rows(datasets: list[dict]) -> list[tuple[str, str, str]]:
    return [
        (entry["namespace"], entry["name"], entry["facets"]["version"]["datasetVersion"])
        for entry in datasets
    ]


def test_every_task_tells_which_version_it_made_from_which(tmp_path):
    run, events = Run(tmp_path / "root"), tmp_path / "events"
    made, models = f"{tmp_path}/root/artifacts/digits", f"{tmp_path}/root/models/digits"
    dataset = run.leave("preprocess", raw={"raw files": "digest-of-files"})
    training = run.leave("train", preprocess=dataset)
    champion = Input(uri=f"{models}/2/manifest.json", digest="digest-of-version-2")
    last = Input(uri=f"{made}/evaluate/x/manifest.json", digest="x")
    others = {"champion": champion, "last_evaluation": last}
    evaluation = run.leave("evaluate", preprocess=dataset, train=training, **others)
    run.leave("export", train=training, evaluate=evaluation)
    found = {job: run.emit_event(job, events) for job in JOBS}
    data, weights, verdict = (
        ("file", f"{made}/{job}", entry.digest)
        for job, entry in (("preprocess", dataset), ("train", training), ("evaluate", evaluation))
    )
    assert {job: as_rows(event["inputs"]) for job, event in found.items()} == {
        "preprocess": [("s3://lake", "raw/digits", "digest-of-files")],
        "train": [data],
        "evaluate": [data, weights, ("file", models, "2")],
        "export": [weights, verdict],
    }
    assert {job: as_rows(event["outputs"]) for job, event in found.items()} == {
        "preprocess": [data],
        "train": [weights],
        "evaluate": [verdict],
        "export": [("file", models, "3")],
    }
    statistics = found["preprocess"]["outputs"][0]["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["size"], statistics["fileCount"]) == (8, 20, 2)
    assert all(event["eventType"] == "COMPLETE" for event in found.values())


def test_a_task_that_left_nothing_is_told_without_data_sets(tmp_path):
    event = Run(tmp_path / "root").emit_event("train", tmp_path / "events")
    assert (event["inputs"], event["outputs"]) == ([], [])


@pytest.mark.airflow
def test_nothing_of_openlineage_is_imported_before_it_asks():
    code = (
        "import sys, pipeline_ops.orchestration.dags, pipeline_ops.orchestration.tasks;"
        "print([name for name in sys.modules if name.startswith('openlineage')])"
    )
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
