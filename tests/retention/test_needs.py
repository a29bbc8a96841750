"""A table of artifacts, with the reason why each one is needed."""

from __future__ import annotations

import pytest
from manifests import make_manifest

from pipeline_ops.config.storage import Keep
from pipeline_ops.contract.manifest import Input
from pipeline_ops.contract.task_record import TaskRecord
from pipeline_ops.retention.inventory import (
    Content,
    Inventory,
    OpenAttempt,
    StoredArtifact,
    StoredRun,
)
from pipeline_ops.retention.needs import DAY_SECONDS, Needs, Policy
from pipeline_ops.storage.store_path import Entry

NOW = 1000 * DAY_SECONDS
JOBS = ("preprocess", "train", "evaluate")
KEEP = Keep(runs=2, days=5)


def fingerprint(day: int) -> str:
    return f"{day:032x}"


def to_uri(job: str, day: int, root: str = "s3://old/root") -> str:
    return f"{root}/artifacts/p/{job}/{fingerprint(day)}/manifest.json"


def make_artifact(job: str, day: int, problem: str = "") -> StoredArtifact:
    """The artifact of a job of a day. It was made from those of the same day."""
    path = f"artifacts/p/{job}/{fingerprint(day)}"
    inputs = {name: Input(uri=to_uri(name, day), digest="") for name in JOBS[: JOBS.index(job)]}
    inputs["base"] = inputs["last_evaluation"] = Input(uri=to_uri(job, day - 1), digest="")
    manifest = make_manifest(job, pipeline="p", fingerprint_digest=fingerprint(day), inputs=inputs)
    entry = Entry(f"{path}/manifest.json", 1, day * DAY_SECONDS)
    return StoredArtifact(
        job, fingerprint(day), Content(path, (entry,)), None if problem else manifest, problem
    )


def make_run(day: int, **changes) -> StoredRun:
    """A successful run of a day, which made the artifacts of that day."""
    content = Content(f"runs/p/{day}", (Entry(f"runs/p/{day}/a", 1, day * DAY_SECONDS),))
    records = {job: TaskRecord(state="success", manifest=to_uri(job, day)) for job in JOBS}
    records["export"] = TaskRecord(state="skipped")
    values = {"name": str(day), "content": content, "records": records} | changes
    return StoredRun(**values)


def find(days, runs=(), versions=(), keep: Keep | None = KEEP, artifacts=(), **policy) -> Needs:
    made = [make_artifact(job, day) for job in JOBS for day in days]
    inventory = Inventory("p", [*made, *artifacts], [*runs], versions=[*versions])
    return Needs(inventory, Policy(keep, NOW, **policy))


def days_of(needs, job: str) -> set[int]:
    return {int(name, 16) for found, name in needs.artifacts if found == job}


def test_the_newest_successful_runs_stay_with_their_artifacts():
    needs = find(range(100, 110), [make_run(day) for day in range(100, 110)])
    assert needs.runs.keys() == {"108", "109"}
    assert [days_of(needs, job) for job in JOBS] == [{108, 109}] * 3
    assert "newest 2 successful runs" in needs.runs["108"]


def test_without_runs_the_newest_artifact_of_each_job_stays_for_the_next_run():
    needs = find(range(100, 104))
    assert [days_of(needs, job) for job in JOBS] == [{103}] * 3


def test_a_version_keeps_what_it_was_made_from_and_not_the_bases_before():
    version = make_artifact("evaluate", 100).manifest
    needs = find(range(90, 110), versions=[("models/m/1", version)])
    assert days_of(needs, "preprocess") == days_of(needs, "train") == {100, 109}
    assert "models/m/1" in needs.artifacts["train", fingerprint(100)]


RECENT = NOW - 3600
OPEN = OpenAttempt("runs/p/100/train/attempt-00000001", (to_uri("preprocess", 95),), NOW + 60)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"is_protected": True}, "a file named keep"),
        ({"open_attempts": (OPEN,)}, "may still run"),
        ({"content": Content("runs/p/100", (Entry("a", 1, RECENT),))}, "grace period"),
        (
            {
                "content": Content("runs/p/100", (Entry("a", 1, NOW - 3 * DAY_SECONDS),)),
                "records": {"preprocess": TaskRecord(state="failed")},
            },
            "within 5 days",
        ),
        (
            {
                "content": Content("runs/p/100", (Entry("a", 1, NOW - 6 * DAY_SECONDS),)),
                "records": {"train": TaskRecord(state="success", manifest=to_uri("train", 100))},
            },
            "may wait for a pool or for a person",
        ),
        (
            {
                "content": Content("runs/p/100", (Entry("a", 1, NOW - 8 * DAY_SECONDS),)),
                "records": {"train": TaskRecord(state="failed")},
            },
            None,
        ),
    ],
)
def test_another_run_stays_for_a_reason(changes, reason):
    runs = [make_run(100, **changes), *(make_run(day) for day in (997, 998))]
    old = [make_run(day) for day in (90, 91)]
    needs = find((90, 91, 95, 100, 997, 998), [*runs, *old])
    assert needs.runs.keys() - {"100"} == {"997", "998"}
    if reason is None:
        assert "100" not in needs.runs
    else:
        assert reason in needs.runs["100"]
    assert (95 in days_of(needs, "preprocess")) == bool(changes.get("open_attempts"))


def test_a_limit_on_data_sets_spares_those_of_versions():
    version = make_artifact("evaluate", 100).manifest
    keep = Keep(runs=5, days=0, datasets=2)
    runs = [make_run(day) for day in range(100, 110)]
    needs = find(range(100, 110), runs, [("models/m/1", version)], keep)
    assert days_of(needs, "train") == {100, *range(105, 110)}
    assert days_of(needs, "preprocess") == {100, 108, 109}


def test_the_data_set_that_the_config_asks_for_stays():
    needs = find(range(100, 110), pinned_dataset=fingerprint(101)[:32])
    assert days_of(needs, "preprocess") == {101, 109}


def test_without_rules_everything_stays():
    needs = find(range(100, 103), [make_run(101)], keep=None)
    assert len(needs.artifacts) == 9 and needs.runs.keys() == {"101"}


def test_a_manifest_that_can_not_be_read_is_a_problem():
    needs = find(
        range(100, 103), artifacts=[make_artifact("train", 90, "it is of a later version")]
    )
    assert needs.problems == ["it is of a later version"]


def test_another_pipelines_artifact_of_the_same_name_is_not_meant():
    record = TaskRecord(state="success", manifest=to_uri("train", 100).replace("/p/", "/q/"))
    needs = find((100, 109), [make_run(998, records={"train": record})])
    assert days_of(needs, "train") == {109}
