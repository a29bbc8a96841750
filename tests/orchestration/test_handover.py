"""An XCom counts only if it equals the record in the store (F9)."""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowFailException
from answering_server import answering_server
from config_files import write_config
from manifests import make_manifest
from task_contexts import make_context

from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.manifest import NAME, write_manifest
from pipeline_ops.contract.task_record import TaskRecord, read_record, write_record
from pipeline_ops.errors import DataError
from pipeline_ops.orchestration.task_run import TaskRun, pull_manifests
from pipeline_ops.orchestration.tasks import ExportOperator

RUN = "manual__1"
TASKS = ("train", "evaluate")


@pytest.fixture
def config(tmp_path) -> PipelineConfig:
    return load_config(write_config(tmp_path, {"storage.root": str(tmp_path / "root")}))


def make_layout(config: PipelineConfig) -> Layout:
    return Layout(config.root, config.pipeline)


def make(config: PipelineConfig, job: str, letter: str) -> str:
    """Makes an artifact and returns its manifest."""
    folder = make_layout(config).artifact(job, letter * 32).local
    folder.mkdir(parents=True)
    write_manifest(folder, make_manifest(job, fingerprint_digest=letter * 32))
    return str(folder / NAME)


def record(config: PipelineConfig, task: str, manifest: str, state: str = "success") -> None:
    path = make_layout(config).task_record(RUN, task)
    write_record(path, TaskRecord(state=state, manifest=manifest))


@pytest.fixture
def handed(config) -> dict[str, str]:
    """The manifests that the tasks of the run have left and recorded."""
    manifests = {task: make(config, task, "a") for task in TASKS}
    for task, manifest in manifests.items():
        record(config, task, manifest)
    return manifests


def test_what_the_tasks_have_left_is_handed_on(config, handed):
    assert pull_manifests(TaskRun(config, make_context(handed)), TASKS) == handed


def test_another_artifact_of_the_same_pipeline_can_not_take_the_place_of_the_one_that_was_made(
    config, handed
):
    """F9: an edited XCom substituted an evaluation that passes the gate."""
    better = make(config, "evaluate", "b")
    message = f"the XCom of evaluate is '{better}', but the task has left {handed['evaluate']}"
    with pytest.raises(DataError, match=message):
        pull_manifests(TaskRun(config, make_context(handed | {"evaluate": better})), TASKS)


@pytest.mark.parametrize(
    "hostile",
    [
        "/etc/passwd",
        "../../manifest.json",
        "file:///etc/passwd",
        "s3://bucket/manifest.json",
        "x" * 100_000,
        "\0",
        "\ud800",
        7,
        ["a"],
        {"a": 1},
        True,
        {"train": "a"},
    ],
)
def test_an_xcom_of_any_kind_is_refused_with_its_task(config, handed, hostile):
    """F9."""
    message = "the XCom of train is .*Clear train to run it again."
    with pytest.raises(DataError, match=message) as refused:
        pull_manifests(TaskRun(config, make_context(handed | {"train": hostile})), TASKS)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("nothing", [None, "", [], {}, 0, False])
def test_a_task_that_was_marked_a_success_has_left_nothing(config, handed, nothing):
    message = "train has left no manifest, so it was marked a success before it had ended. "
    with pytest.raises(DataError, match=f"{message}Clear train"):
        pull_manifests(TaskRun(config, make_context(handed | {"train": nothing})), TASKS)


@pytest.mark.parametrize("state", ["failed", "skipped", None])
def test_a_task_that_has_no_record_of_a_success_has_left_nothing_whatever_its_xcom_says(
    config, handed, state
):
    """F9: marked a success by hand, with an XCom written by hand."""
    make_layout(config).task_record(RUN, "train").remove()
    if state:
        record(config, "train", handed["train"], state)
    with pytest.raises(DataError, match="train has left no manifest"):
        pull_manifests(TaskRun(config, make_context(handed)), TASKS)


@pytest.mark.parametrize(
    "uri",
    [
        "/etc/passwd",
        "http://127.0.0.1:1/manifest.json",
        "{root}/artifacts/other/train/{a}/manifest.json",
        "{root}/artifacts/digits/evaluate/{a}/manifest.json",
        "{root}/artifacts/digits/train/../train/{a}/manifest.json",
        "{root}/artifacts/digits/train/{a}/other.json",
        "{root}/artifacts/digits/train/{a}",
        "{root}/models/digits/1/manifest.json",
        "{root}//artifacts/digits/train/{a}/manifest.json",
        "{root}/artifacts/digits/train/A{a}/manifest.json",
        "manifest.json",
        "",
    ],
)
def test_a_record_can_name_no_other_place_than_that_of_an_artifact_of_its_task(config, handed, uri):
    """F9: record and XCom agree, and both are wrong."""
    manifest = uri.format(root=config.root, a="a" * 32)
    record(config, "train", manifest)
    message = "is not a manifest of the job train of the pipeline digits below"
    with pytest.raises(DataError, match=f"{message}|train has left no manifest"):
        pull_manifests(TaskRun(config, make_context(handed | {"train": manifest})), TASKS)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"state": "great"}',
        b'{"state": "success", "manifest": 7}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_record_is_an_error_at_its_place(config, handed, content):
    make_layout(config).task_record(RUN, "train").write(content)
    with pytest.raises(DataError, match="train.json: not a valid TaskRecord"):
        pull_manifests(TaskRun(config, make_context(handed)), TASKS)


def test_no_address_is_asked_because_of_an_xcom(config, handed):
    """F9: the worker sent requests to it, and printed the answer."""
    asked: list[str] = []
    refusal = "export: DATA: the XCom of evaluate is 'http://"
    with answering_server(lambda _, path: (404, asked.append(path) or b"")) as host:
        context = make_context(handed | {"evaluate": f"http://{host}/latest/manifest.json"})
        with pytest.raises(AirflowFailException, match=refusal):
            ExportOperator(config_file=str(config.file)).execute(context)
    assert asked == []
    assert read_record(make_layout(config).task_record(RUN, "export")).state == "failed"
