"""Many runs and versions of a pipeline in an Airflow's database and in its storage.

    python demo_runs.py CONFIG --runs 60 --versions 8

The environment is that of an Airflow that has read the config. Each run has ended in one of the
outcomes that need no live process, with the summary, the records and the sentence that the tasks
leave. What jobs have made before (`trainyard run`) is left alone.
"""

from __future__ import annotations

import argparse
import datetime as dt
import math
import random
import uuid
from collections.abc import Iterator
from pathlib import Path

from manifests import make_manifest
from publishers import make_model_figures

from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.manifest import Maker, write_manifest
from pipeline_ops.contract.outcome import Kind, RunOutcome
from pipeline_ops.contract.run_summary import (
    MetricSummary,
    RunSummary,
    TaskSummary,
    write_summary,
)
from pipeline_ops.contract.task_record import TaskRecord, write_record
from pipeline_ops.registry.registry import Registry

TASKS = ("preprocess", "train", "evaluate", "export")
_PATTERN: tuple[Kind, ...] = (
    *("unchanged",) * 6,
    "published",
    "refused",
    "unchanged",
    "refused",
    "failed",
    "unchanged",
    "data_refused",
    "rejected",
    "cancelled",
    "out_of_date",
    "unanswered",
    "not_in_service",
)
_SENTENCES: dict[Kind, str] = {
    "unchanged": "Unchanged: same as an earlier run. Version {champion} stays.",
    "published": "Published as version {version}, in service (accuracy {value:.4f}).",
    "not_in_service": "Published as version {version}, which stays out of service.",
    "refused": "Refused by the gate: accuracy {value:.4f} is too low. Version {champion} stays.",
    "failed": "Failed in train: worker 0 failed at step 45: KeyError 'lose' (boom.py:6).",
    "data_refused": "Data refused: 13 of 1,797 files are unusable, allowed are 5.",
    "rejected": "Rejected by anna: too slow on phones. Version {champion} stays.",
    "unanswered": "Nobody answered until 15:08 UTC. Version {champion} stays.",
    "cancelled": "Cancelled by anna in evaluate.",
    "out_of_date": "Out of date: version {champion} came into service while this model waited.",
}
_FAILED: dict[Kind, str] = {
    "failed": "train",
    "data_refused": "preprocess",
    "cancelled": "evaluate",
    "out_of_date": "export",
}


def iterate_runs(count: int, now: dt.datetime) -> Iterator[tuple[dt.datetime, RunSummary]]:
    """Yields the runs from the oldest to the newest, four hours apart."""
    chance, version = random.Random(0), 0
    for number in range(count):
        kind = _PATTERN[number % len(_PATTERN)]
        started = now - dt.timedelta(hours=4 * (count - number), minutes=number % 7)
        value = 0.9 + 0.09 * (1 - math.exp(-number / 20)) + chance.uniform(-0.004, 0.004)
        champion = version or None
        if kind in ("published", "not_in_service"):
            version += 1
        made = kind in ("published", "not_in_service")
        sentence = _SENTENCES[kind].format(version=version, value=value, champion=champion or 0)
        failed = _FAILED.get(kind)
        metric = MetricSummary(
            value=value,
            champion=value - 0.002 if champion else None,
            low=-0.003 if champion else None,
            high=0.007 if champion else None,
        )
        yield (
            started,
            RunSummary(
                run_id=f"scheduled__{started:%Y-%m-%dT%H:%M:%S}+00:00",
                outcome=RunOutcome(kind=kind, sentence=sentence),
                started=started.timestamp(),
                ended=(started + dt.timedelta(minutes=4)).timestamp(),
                triggered_by="anna" if number % 9 == 0 else "scheduled",
                metrics={"accuracy": metric} if failed in (None, "export") else {},
                version=version if made else None,
                champion=champion,
                num_examples={"train": 1437 + number, "validation": 180, "test": 180},
                num_rejected=number % 3,
                tasks={
                    task: TaskSummary(
                        state="failed" if task == failed else "success",
                        cached=kind == "unchanged",
                        fingerprint=f"{number:032x}",
                    )
                    for task in TASKS
                },
                values={"train.epochs": 12} if number % 9 == 0 else {},
            ),
        )


def add_runs(config: PipelineConfig, count: int) -> list[RunSummary]:
    """Adds the runs of `iterate_runs`, and returns their summaries."""
    from airflow.models.dag_version import DagVersion
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    layout, summaries, rows = Layout(config.root, config.pipeline), [], []
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    with create_session() as session:
        newest = DagVersion.get_latest_version(config.pipeline, session=session)
        for started, summary in iterate_runs(count, now):
            failed = _FAILED.get(summary.outcome.kind)
            run = DagRun(
                dag_id=config.pipeline,
                run_id=summary.run_id,
                run_type="manual" if summary.triggered_by == "anna" else "scheduled",
                state="failed" if failed else "success",
                run_after=started,
                start_date=started,
                conf=summary.values,
                triggering_user_name="anna" if summary.triggered_by == "anna" else None,
            )
            run.end_date = started + dt.timedelta(minutes=4)
            session.add(run)
            is_over = False
            for number, task in enumerate(TASKS):
                state = "upstream_failed" if is_over else "failed" if task == failed else "success"
                is_over = is_over or task == failed
                rows.append(
                    {
                        "id": uuid.uuid4(),
                        "task_id": task,
                        "dag_id": config.pipeline,
                        "run_id": summary.run_id,
                        "map_index": -1,
                        "state": state,
                        "try_number": 1,
                        "max_tries": 0,
                        "pool": "default_pool",
                        "pool_slots": 1,
                        "dag_version_id": newest.id,
                        "start_date": started + dt.timedelta(minutes=number),
                        "end_date": started + dt.timedelta(minutes=number, seconds=40),
                    }
                )
                if state != "upstream_failed":
                    message = summary.outcome.sentence if task == failed else ""
                    record = TaskRecord(state=state, message=message, try_number=1)
                    write_record(layout.task_record(summary.run_id, task), record)
            write_summary(layout, summary)
            summaries.append(summary)
        session.flush()
        session.execute(TaskInstance.__table__.insert(), rows)
    return summaries


def add_versions(config: PipelineConfig, count: int, run_ids: list[str]) -> None:
    """Adds versions after those that are there, each promoted by one of the runs."""
    registry = Registry(config.registry)
    first = max((version.number for version in registry.list_versions()), default=0) + 1
    start = dt.datetime.now(dt.UTC) - dt.timedelta(hours=count)
    for number in range(first, first + count):
        accuracy = 0.99 - 0.09 / number
        figures = make_model_figures(number).model_copy(
            update={
                "metrics": {"accuracy": accuracy, "macro_f1": accuracy - 0.002},
                "compared_with": number - 1 if number > 1 else None,
            }
        )
        made_by = Maker(
            run_id=run_ids[number % len(run_ids)], time=start + dt.timedelta(hours=number - first)
        )
        fields = {"fingerprint_digest": f"{number:032x}", "made_by": made_by}
        manifest = make_manifest("export", figures=figures, pipeline=config.pipeline, **fields)
        folder = config.registry.local / str(number)
        folder.mkdir(parents=True)
        write_manifest(folder, manifest)
        registry.promote(number, "passed the gate")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--versions", type=int, default=8)
    options = parser.parse_args()
    config = load_config(options.config)
    summaries = add_runs(config, options.runs)
    add_versions(config, options.versions, [summary.run_id for summary in summaries])


if __name__ == "__main__":
    main()
