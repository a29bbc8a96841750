"""The collector beside runs, other collectors, and after being killed."""

from __future__ import annotations

import dataclasses
import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from config_files import write_config
from retention.simulated_pipeline import (
    DAY,
    SimulatedPipeline,
    check_lineage,
    find_problems,
    make_config,
)

from pipeline_ops.cli.main import main
from pipeline_ops.contract.layout import lock_file, usage_file, work_folder
from pipeline_ops.contract.manifest import NAME, read_manifest
from pipeline_ops.errors import ConfigError, ExitCode
from pipeline_ops.planning.job_kinds import JOBS
from pipeline_ops.retention.collector import Options, collect, explain_path, record_use
from pipeline_ops.retention.host_leftovers import remove_host_leftovers
from pipeline_ops.storage.local_store import LocalPath
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system import lease
from pipeline_ops.system.disk_cache import HostCache
from pipeline_ops.system.lease import create_record, get_record_path, hold_lease

KEEP = {"runs": 2, "days": 0}
NUM_DAYS = 6


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Path:
    """A folder with a config and a root: six daily runs, of which the newest two are needed."""
    folder = tmp_path_factory.mktemp("filled")
    pipeline = SimulatedPipeline(make_config(folder, "root", KEEP))
    for day in range(NUM_DAYS):
        pipeline.run_day(day, publish=day == 1)
    return folder


@pytest.fixture
def pipeline(filled, tmp_path) -> SimulatedPipeline:
    return open_copy(filled, tmp_path / "copy")


def open_copy(filled: Path, folder: Path) -> SimulatedPipeline:
    shutil.copytree(filled, folder)
    return SimulatedPipeline(make_config(folder, "root", KEEP))


def list_files(pipeline: SimulatedPipeline) -> set[str]:
    files = {file.name for file in pipeline.root.walk()}
    return {name for name in files if not name.startswith("gc/")}


def find_artifact(pipeline: SimulatedPipeline, job: str, day: int) -> StorePath:
    made = pipeline.layout.artifacts(job).find_in_folders(NAME)
    [found] = [each for each in made if each.modified == pipeline.start + day * DAY]
    return pipeline.layout.artifacts(job) / found.name.partition("/")[0]


def test_what_is_not_needed_goes_after_the_grace_period_and_not_before(pipeline):
    before = list_files(pipeline)
    report = pipeline.collect(NUM_DAYS, grace_seconds=(NUM_DAYS + 1) * DAY)
    assert report.removed == {} and report.waiting == {}
    assert list_files(pipeline) == before
    report = pipeline.collect(NUM_DAYS + 1.1)
    assert report.removed.keys() == {"artifact", "run"} and report.waiting == {}
    assert len(pipeline.root.list_folder()) > 2
    runs = (pipeline.root / "runs" / "digits").list_folder()
    assert [run.name for run in runs] == ["scheduled__0004", "scheduled__0005"]
    assert check_lineage(pipeline) == 1
    assert find_problems(str(find_artifact(pipeline, "preprocess", 5) / NAME)) == []


def test_a_temporary_file_beside_the_runs_stays(pipeline):
    """N8: it was two candidates, and the collector ended with a KeyError."""
    file = pipeline.root / "runs" / "digits" / ".x.deadbeef.tmp"
    file.write(b"")
    later = (time.time() - pipeline.start) / DAY
    assert pipeline.collect(later + 2).foreign == [file.key]
    assert file.exists()


def test_statistics_of_requests_beside_a_model_stay_and_are_no_model(pipeline):
    name = "models/digits.requests/2026-11-20/101530-00.jsonl"
    (pipeline.root / name).write(b"{")
    report = pipeline.collect(NUM_DAYS + 400)
    assert name in list_files(pipeline) and "artifact" in report.removed
    assert (report.problems, report.others, report.foreign) == ([], [], [])


def test_a_dry_run_changes_nothing(pipeline):
    before = {file.name for file in pipeline.root.walk()}
    report = collect(pipeline.config, Options(is_dry_run=True))
    assert report.removed.keys() == {"artifact", "run"} and report.waiting == {}
    young = collect(pipeline.config, Options(is_dry_run=True, grace_seconds=1e9))
    assert young.removed == {} and young.paths == [] != report.paths
    assert {file.name for file in pipeline.root.walk()} == before


def test_a_referenced_shard_outlives_its_data_set(pipeline):
    old = find_artifact(pipeline, "preprocess", 2)
    pipeline.collect(NUM_DAYS + 1.1)
    assert not (old / NAME).exists()
    newest = read_manifest(find_artifact(pipeline, "preprocess", 5) / NAME)
    referenced = {file.stored_at for file in newest.files if file.stored_at}
    kept = {f"{old.name}/{file.name}" for file in old.walk()}
    assert kept and kept <= referenced


def test_an_artifact_in_use_stays(pipeline):
    old = find_artifact(pipeline, "train", 2)
    assert record_use(pipeline.root, [str(old / NAME)])
    touched = pipeline.start + (NUM_DAYS + 0.5) * DAY
    os.utime(usage_file(old).local, (touched, touched))
    pipeline.collect(NUM_DAYS + 1.1)
    assert find_problems(str(old / NAME)) == []


def test_an_artifact_that_is_being_made_again_stays(pipeline):
    old = find_artifact(pipeline, "train", 2)
    with hold_lease(lock_file(old), "a job"):
        assert "artifact" in pipeline.collect(NUM_DAYS + 1.1).waiting
        assert find_problems(str(old / NAME)) == []
    pipeline.collect(NUM_DAYS + 1.2)
    assert not old.walk()


@dataclasses.dataclass(frozen=True)
class CallingPath(LocalPath):
    """Calls a function with the key before each change."""

    call: object = None

    def write(self, data, mode=0o666):
        self.call(self.key)
        super().write(data, mode)

    def remove(self):
        self.call(self.key)
        super().remove()

    def remove_tree(self):
        self.call(self.key)
        super().remove_tree()


def with_calls(pipeline: SimulatedPipeline, call) -> SimulatedPipeline:
    """The pipeline of a root that calls a function before each change."""
    config = pipeline.config
    config.__dict__["root"] = CallingPath(str(config.root), call=call)
    return pipeline


def test_a_run_that_finds_an_artifact_just_before_its_removal_keeps_it(pipeline):
    old, plain = find_artifact(pipeline, "train", 2), pipeline.root
    is_found = []

    def use(key):
        if key == f"{old.key}/{NAME}" and not is_found:
            is_found.append(record_use(plain, [str(old / NAME)]))

    with_calls(pipeline, use).collect(NUM_DAYS + 1.1)
    assert is_found == [True]
    assert find_problems(str(old / NAME)) == []


def test_a_run_that_comes_later_sees_that_the_artifact_is_gone(pipeline):
    old = find_artifact(pipeline, "train", 2)
    pipeline.collect(NUM_DAYS + 1.1)
    assert not record_use(pipeline.root, [str(old / NAME)])


def test_two_collectors_at_once_remove_everything_once(pipeline):
    reports = []
    threads = [
        threading.Thread(target=lambda: reports.append(pipeline.collect(NUM_DAYS + 1.1)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(len(report.removed) for report in reports) == [0, 2]
    assert check_lineage(pipeline) == 1


def collect_and_die(pipeline: SimulatedPipeline, at: int) -> bool:
    """Collects in another process, which is killed before the change of that number.

    Returns whether it was killed.
    """
    child = os.fork()
    if child == 0:
        calls = iter(range(1_000_000))
        with_calls(pipeline, lambda key: os._exit(9) if next(calls) == at else None)
        pipeline.collect(NUM_DAYS + 1.1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.stores
@pytest.mark.timeout(900)
def test_a_collector_that_was_killed_anywhere_is_finished_by_later_ones(filled, tmp_path):
    whole = open_copy(filled, tmp_path / "whole")
    for day in (1.1, 2.2, 3.3):
        whole.collect(NUM_DAYS + day)
    expected = list_files(whole)
    for at in range(1000):
        pipeline = open_copy(filled, tmp_path / str(at))
        was_killed = collect_and_die(pipeline, at)
        assert check_lineage(pipeline) == 1
        newest = find_artifact(pipeline, "preprocess", 5)
        assert find_problems(str(newest / NAME)) == []
        for day in (2.2, 3.3, 4.4):
            pipeline.date_files(NUM_DAYS + 1)
            pipeline.collect(NUM_DAYS + day)
        assert list_files(pipeline) == expected, at
        shutil.rmtree(tmp_path / str(at))
        if not was_killed:
            assert at > 40
            return


def test_leftovers_of_killed_jobs_go_even_without_rules(tmp_path):
    pipeline = SimulatedPipeline(make_config(tmp_path, "root", None))
    made = pipeline.run_day(0)
    artifact = pipeline.layout.artifact("train", Path(made["train"]).parent.name)
    gone = artifact.with_name("a" * 32)
    leftovers = [
        artifact.with_name(f".{artifact.name}.12.ab.staging") / "file",
        work_folder(artifact) / "checkpoint",
        lock_file(gone),
        pipeline.layout.run_folder("scheduled__0000") / ".train.json.12.34.tmp",
    ]
    strange = artifact.with_name("notes.txt")
    for path in [*leftovers, strange]:
        path.write(b"left")
    target = tmp_path / "of another user"
    target.mkdir()
    (target / "file").write_bytes(b"")
    link = artifact.with_name(f".{gone.name}.work").local
    link.symlink_to(target)
    pipeline.date_files(0)
    whole = list_files(pipeline) - {path.key for path in leftovers}
    pipeline.collect(1)
    assert [path for path in leftovers if path.exists()] == []
    assert whole <= list_files(pipeline) | {lock_file(artifact).key}
    assert strange.exists() and link.is_symlink() and (target / "file").exists()


def test_shards_stay_as_long_as_the_next_try_may_continue_with_them(tmp_path):
    pipeline = SimulatedPipeline(make_config(tmp_path, "root", None))
    pipeline.run_day(0)
    artifact = pipeline.layout.artifact("preprocess", "a" * 32)
    kept = [
        artifact / "00000001" / "train.tfrecord",  # in a bucket
        work_folder(artifact) / "draft" / "train.tfrecord",  # in a folder
        work_folder(artifact) / "preprocess" / "results" / "train.tfrecord.json",
    ]
    for path in kept:
        path.write(b"left")
    pipeline.date_files(0)
    for day in (1, 29):
        pipeline.collect(day)
        assert all(path.exists() for path in kept)
    pipeline.collect(31)
    assert [path for path in kept if path.exists()] == []


FOREIGN = (
    "README.txt",
    "exp1/events.out.tfevents.1700000000.host",  # TensorBoard's own default folder is runs/
    "exp1/train/events.out.tfevents.1700000000.host",
    "exp2/config.json",
    "exp3/train.json",
    "exp4/train/attempt-00000001/request.json",
    "exp5/train/attempt-00000001/log.txt",
    "exp6/trials.json",
    ".x.deadbeef.tmp",
    ".train.json.1.2.tmp",
    ".hidden/file",
    "keep/keep",
    "a b/ü.txt",
    f"{'a' * 32}/weights.h5",
    f"{'b' * 32}/00000001/part",
    f"{'c' * 31}/file",
    f"{'D' * 32}/file",
    f".{'e' * 32}.backup",
    f".{'f' * 32}.lock.old",
    "0001.index",
    "model.json",
)


@pytest.mark.parametrize("kind", ["folder", pytest.param("s3", marks=pytest.mark.stores)])
def test_what_nothing_shows_to_be_ours_stays_and_is_reported(tmp_path, make_root, kind):
    """N2."""
    root = make_root(kind)
    keep = {"runs": 1, "days": 0}
    pipeline = SimulatedPipeline(make_config(tmp_path, root.uri, keep), start=time.time() - DAY)
    pipeline.run_day(0)
    folders = ["runs/digits", *(f"artifacts/digits/{job}" for job in (*JOBS, "search")), "listings"]
    for folder in folders:
        for name in FOREIGN:
            (pipeline.root / folder / name).write(b"{}")
    (pipeline.root / "checked" / f"{'a' * 32}.json").write(b"{}")  # of an earlier version
    before = list_files(pipeline)
    report = pipeline.collect(400)
    assert list_files(pipeline) == before
    firsts = {name.partition("/")[0] for name in FOREIGN}
    for folder in folders:
        assert {f"{folder}/{first}" for first in firsts} <= set(report.foreign)
    assert "nothing shows" in explain_path(pipeline.config, "runs/digits/exp1", Options())


def test_an_unreadable_manifest_stops_the_removal_of_artifacts(pipeline):
    (find_artifact(pipeline, "train", 2) / NAME).write(b"{}")
    pipeline.date_files(2)
    report = pipeline.collect(NUM_DAYS + 1.1)
    assert "artifact" not in report.removed and "run" in report.removed
    assert "not a manifest of this version" in report.problems[0]


def test_a_broken_version_of_another_pipeline_stops_the_removal_of_its_artifacts_only(pipeline):
    """N5."""
    models = pipeline.root / "models"
    (models / "cats/1/manifest.json").write(b"{}")
    report = pipeline.collect(NUM_DAYS + 1.1)
    assert "cats/1" in report.problems[0]  # nothing tells whose it is
    assert "artifact" not in report.removed
    (pipeline.root / "artifacts/cats/train" / ("c" * 32) / NAME).write(b"{}")
    report = pipeline.collect(NUM_DAYS + 1.2)
    assert report.problems == [] and "cats/1" in report.others[0]
    assert "artifact" in report.removed


def test_a_broken_version_beside_one_of_this_pipeline_stops_the_removal_of_artifacts(pipeline):
    """N5."""
    models = pipeline.root / "models"
    shutil.copytree((models / "digits").local, (models / "cats").local)
    (models / "cats/7/manifest.json").write(b"{}")
    (pipeline.root / "artifacts/cats/train" / ("c" * 32) / NAME).write(b"{}")
    report = pipeline.collect(NUM_DAYS + 1.1)
    assert "cats/7" in report.problems[0] and "artifact" not in report.removed


def test_a_key_that_is_no_path_is_the_problem_of_its_pipeline(tmp_path, make_root, capsys):
    """N5."""
    root = make_root("s3")
    now, bucket = time.time(), root.uri.removeprefix("s3://")
    pipeline = SimulatedPipeline(make_config(tmp_path, root.uri, KEEP), start=now - DAY)
    for day in range(4):
        pipeline.run_day(day, publish=day == 0)
    for key in ("models/cats//x", "artifacts/cats/train//x", "listings//x"):
        root.server.put_empty_object(f"{bucket}/{key}")
    report = pipeline.collect(400)
    assert "artifact" in report.removed and report.problems == []
    assert [each.partition(": ")[0] for each in report.others] == [
        f"{root.uri}/models/cats//x",
        f"{root.uri}/listings//",
    ]
    other = tmp_path / "cats.yaml"
    other.write_text(pipeline.config.file.read_text().replace("pipeline: digits", "pipeline: cats"))
    assert main(["gc", str(other), str(pipeline.config.file)]) == ExitCode.DATA
    output = capsys.readouterr().out
    assert f"nothing is removed, because {root.uri}/artifacts/cats/train//" in output
    assert f"digits: {root.uri}\n  stays" in output


def test_what_a_job_on_a_lost_host_left_in_a_bucket_goes_and_a_damaged_lease_stops_no_other(
    tmp_path, s3_root, monkeypatch
):
    pipeline = SimulatedPipeline(make_config(tmp_path, str(s3_root), KEEP), start=2e9)
    lost, damaged = (pipeline.layout.artifact("train", letter * 32) for letter in "ab")
    for artifact in (lost, damaged):
        (artifact / "00000001/weights.npz").write(b"half")
    with monkeypatch.context() as patch:
        patch.setattr(lease, "get_pid_space", lambda: "a host that is gone")
        create_record(lock_file(lost), 1, "held")
    get_record_path(lock_file(damaged), 1).write(b"{}")
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.3)
    report = pipeline.collect(1)
    assert lost.walk() == lock_file(lost).walk() == []
    assert len(damaged.walk()) == 1
    [problem] = report.problems
    assert "Remove it while no job uses what it protects" in problem


@pytest.mark.stores
def test_a_yaml_with_another_endpoint_for_the_same_root_changes_no_decision(
    tmp_path, s3_address, s3_root, monkeypatch
):
    """N1. The endpoint is in the config alone, as two teams on two stores have it."""
    pipeline = SimulatedPipeline(make_config(tmp_path, str(s3_root), KEEP), start=2e9)
    for day in range(3):
        pipeline.run_day(day, publish=True)
    for name in s3_address.build_environment():
        if "ENDPOINT" in name:
            monkeypatch.delenv(name)
    storage = {"root": str(s3_root), "endpoint": s3_address.address, "keep": KEEP}
    pipeline.config = pipeline.config.with_overrides({"storage": storage})
    pipeline.collect(3)
    before = pipeline.collect(3)
    theirs = {"root": f"{s3_root}/models/digits", "endpoint": "http://127.0.0.1:9"}
    config = pipeline.config.with_overrides({"storage": theirs})
    assert config.root.options.endpoint == "http://127.0.0.1:9"
    assert [version.number for version in pipeline.registry.list_versions()] == [1, 2, 3]
    assert pipeline.collect(3) == before and not before.problems


def test_one_path_is_explained(pipeline):
    def why(path) -> str:
        return explain_path(pipeline.config, str(path), Options())

    assert "models/digits" in why(find_artifact(pipeline, "train", 1))
    assert "it is the newest evaluate" in why(find_artifact(pipeline, "evaluate", 5) / NAME)
    assert "newest 2 successful runs" in why("runs/digits/scheduled__0004/train.json")
    unneeded = why(find_artifact(pipeline, "train", 2))
    due = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(pipeline.start + 3 * DAY))
    assert f"no version, run, or next run needs it. It is removed from {due} on" in unneeded
    dataset = find_artifact(pipeline, "preprocess", 2)
    kept = [file.name for file in dataset.walk() if file.name.endswith(".tfrecord")]
    assert f"{dataset.key}/{kept[0]} will stay: other artifacts reference it" in why(dataset)
    assert "will stay" not in why(dataset / "index") and "will stay" in why(dataset / kept[0])
    (pipeline.root / "runs/digits/notes/train.json").write(b"{}")  # of somebody else
    pipeline.date_files(0)
    assert "nothing shows that Trainyard has written it" in why("runs/digits/notes")
    with pytest.raises(ConfigError, match="Name artifacts/digits/TASK/FINGERPRINT or"):
        why("artifacts/digits/train")


@pytest.mark.parametrize("age", ["30", "d", "1.5d", "36h", "30 days"])
def test_a_wrong_age_is_refused(age, capsys):
    assert main(["gc", "--older-than", age]) == 2
    error = capsys.readouterr().err
    assert "Invalid value for '--older-than': must be" in error and "such as 30d" in error
    assert f"got {age!r}" in error


def test_the_command_prints_bytes_by_kind(pipeline, capsys):
    config = str(pipeline.config.file)
    assert main(["gc", config, "--dry-run", "--older-than", "1d"]) == 0
    output = capsys.readouterr().out
    assert "would be removed: artifact:" in output and "MiB" in output
    assert main(["gc", config, "--why", "runs/digits/scheduled__0005"]) == 0
    assert "scheduled__0005 stays" in capsys.readouterr().out
    assert main(["gc", config, "--why", f"{pipeline.root}/runs/digits/scheduled__0005"]) == 0
    assert "scheduled__0005 stays" in capsys.readouterr().out


def test_a_hosts_cache_loses_what_was_long_unused(tmp_path, monkeypatch):
    pipeline = SimulatedPipeline(make_config(tmp_path, "root", None))
    monkeypatch.setenv("TRAINYARD_LOCAL_FOLDER", str(tmp_path / "local"))
    cache = HostCache(tmp_path / "local", 1 << 30)
    fill = lambda folder: (folder / "file").write_bytes(b"x" * 100)  # noqa: E731
    old = cache.get_or_create("dataset", "aa", fill)
    os.utime(old, (0, 0))
    kept = Path(str(cache.get_or_create("dataset", "bb", fill)))
    job = tmp_path / "local" / "trainyard-jobs" / str(os.geteuid()) / ("c" * 32)
    job.mkdir(parents=True)
    (job / "job.log").write_bytes(b"x" * 10)
    os.utime(job / "job.log", (0, 0))
    removed = remove_host_leftovers(pipeline.config.train.input, is_dry_run=False)
    assert removed["folder of a job on this host"].num_bytes == 10
    assert not job.exists() and kept.exists()


def test_pipelines_that_never_ran_are_one_line_and_nothing_to_remove_has_a_reason(tmp_path, capsys):
    pipeline = SimulatedPipeline(make_config(tmp_path, "root", None))
    pipeline.run_day(1)
    others = [
        write_config(tmp_path / "more", {"pipeline": name}, pipeline.config.file, f"{name}.yaml")
        for name in ("letters", "shapes")
    ]
    assert main(["gc", str(pipeline.config.file), *map(str, others)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("digits: ") and lines[1].startswith("  stays: ")
    assert "2 pipelines have not run yet: letters, shapes" in lines
    assert any(line.startswith("All together stays: ") for line in lines)
    assert lines[-1].startswith("Nothing to remove: without storage.keep and --older-than")
    assert main(["gc", str(pipeline.config.file), "--older-than", "1000d"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Nothing to remove."
