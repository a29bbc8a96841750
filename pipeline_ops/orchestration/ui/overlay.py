"""Some runs of a pipeline together: their curves, their metrics, and what differs between them.

All of it comes from the manifests that the runs have left. No model runs again, so metrics are
comparable only if the runs had the same test split, and the page says if they had not.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import ValidationError
from sqlalchemy.orm import Session

from pipeline_ops.contract.dataset import SPLITS, DatasetFigures
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.manifest import Manifest, read_manifest
from pipeline_ops.contract.results import (
    TEST_SPLIT,
    ClassFigures,
    EvaluationFigures,
    TrainingFigures,
)
from pipeline_ops.contract.task_record import find_recorded_manifest
from pipeline_ops.errors import DataError
from pipeline_ops.orchestration.airflow_runs import NotFound, PipelineRun, find_run
from pipeline_ops.orchestration.ui.head import RunHead, view_head
from pipeline_ops.orchestration.ui.progress import Chart
from pipeline_ops.orchestration.ui.runs import link_run
from pipeline_ops.pages.charts import LARGE, MAX_POINTS, Line, Point, draw_line_chart, thin
from pipeline_ops.pages.metric_titles import describe_metric
from pipeline_ops.registry.registry import Registry
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.storage.request_cache import map_requests

MAX_OVERLAID = 8
_JOBS = ("preprocess", "train", "evaluate")
_VALIDATION = "validation_"
_MAX_CLASSES = 100
_MAX_VALUE = 200


@dataclasses.dataclass(frozen=True)
class OverlaidRun:
    """One run, and what it has left. A job that has not succeeded has no manifest."""

    run_id: str
    address: str
    label: str
    """When it was started, or the version in service that it has made."""
    style: str
    head: RunHead | None
    manifests: dict[str, Manifest]
    training: TrainingFigures | None
    evaluation: EvaluationFigures | None
    dataset: DatasetFigures | None

    @property
    def test_split(self) -> str | None:
        evaluate = self.manifests.get("evaluate")
        return evaluate.fingerprint.inputs.get(TEST_SPLIT) if evaluate else None

    @property
    def top_k(self) -> int | None:
        evaluate = self.manifests.get("evaluate")
        return evaluate.fingerprint.config.get("top_k") if evaluate else None


@dataclasses.dataclass(frozen=True)
class Row:
    """A figure or a setting by its title. A run that does not have it has an empty value.

    `notes` are smaller, such as an interval. `unit` explains the title.
    """

    title: str
    values: list[str]
    notes: list[str] = dataclasses.field(default_factory=list)
    unit: str = ""

    @property
    def differs(self) -> bool:
        return len(set(self.values)) > 1


@dataclasses.dataclass(frozen=True)
class Overlay:
    """Runs in the order of their start. `curves` are for the script, `charts` for those without."""

    runs: list[OverlaidRun]
    charts: list[Chart]
    curves: dict[str, Any]
    metrics: list[Row]
    facts: list[Row]
    settings: list[Row]
    classes: list[Row]
    num_equal: int
    """The settings that are the same in all runs, which are left out."""
    have_same_test_split: bool
    problems: list[str]

    @property
    def has_champion(self) -> bool:
        return any(run.style == "champion" for run in self.runs)


def view_overlay(dag_id: str, run_ids: Sequence[str], session: Session) -> Overlay:
    """Reads the runs, and the one that has made the version in service.

    Raises NotFound for a run that is not there.
    """
    found = sorted(
        (find_run(dag_id, run_id, session) for run_id in run_ids),
        key=lambda run: (run.started is None, run.started),
    )
    heads = {run.run_id: view_head(run, session) for run in found}
    styles = {run.run_id: f"series-{number}" for number, run in enumerate(found)}
    if champion := _find_maker_of_champion(found, session):
        found.append(champion)
        styles[champion.run_id] = "champion"
    problems = list[str]()
    read = map_requests(lambda run: _read_manifests(run.layout, run.run_id), found)
    runs = []
    for run, manifests in zip(found, read, strict=True):
        problems += [str(each) for each in manifests.values() if isinstance(each, DataError)]
        head = heads.get(run.run_id)
        style = styles[run.run_id]
        view = _view_run(run, head, style, manifests, problems)
        if view.manifests or style != "champion":  # what it has left may have been removed
            runs.append(view)
    settings = _compare_settings(runs)
    splits = {run.test_split for run in runs if run.evaluation}
    return Overlay(
        runs=runs,
        charts=_draw_charts(runs),
        curves=_list_curves(runs),
        metrics=_compare_metrics(runs),
        facts=_compare_facts(runs),
        settings=[row for row in settings if row.differs],
        classes=_compare_classes(runs),
        num_equal=sum(not row.differs for row in settings),
        have_same_test_split=len(splits) <= 1,
        problems=problems,
    )


def _find_maker_of_champion(runs: Sequence[PipelineRun], session: Session) -> PipelineRun | None:
    """Finds the run that has made the version in service, unless it is among the runs."""
    run = runs[-1]
    try:
        champion = Registry(run.ref.registry).find_champion()
        maker = champion.read_manifest().made_by if champion else None
        if maker is None or maker.run_id in {each.run_id for each in runs}:
            return None
        return find_run(run.dag_id, maker.run_id, session)
    except (DataError, NotFound, OSError):
        return None  # its run was deleted, or the page of the model says what is wrong


def _read_manifests(layout: Layout, run_id: str) -> dict[str, Manifest | DataError]:
    manifests = dict[str, Manifest | DataError]()
    for job in _JOBS:
        try:
            if (place := find_recorded_manifest(layout, run_id, job, job)) and place.exists():
                manifests[job] = read_manifest(place)
        except DataError as error:
            manifests[job] = error
    return manifests


def _view_run(
    run: PipelineRun,
    head: RunHead | None,
    style: str,
    manifests: dict[str, Manifest | DataError],
    problems: list[str],
) -> OverlaidRun:
    whole = {job: each for job, each in manifests.items() if isinstance(each, Manifest)}

    def parse(job: str, figures: Any) -> Any:
        try:
            return figures.model_validate(whole[job].figures) if job in whole else None
        except ValidationError as error:
            problems.append(f"{run.run_id}: the figures of {job} can't be read: {error}")
            return None

    started = f"{run.started:%d %b %H:%M}" if run.started else run.run_id
    return OverlaidRun(
        run_id=run.run_id,
        address=link_run(run.dag_id, run.run_id),
        label=f"in service, of {started}" if style == "champion" else started,
        style=style,
        head=head,
        manifests=whole,
        training=parse("train", TrainingFigures),
        evaluation=parse("evaluate", EvaluationFigures),
        dataset=parse("preprocess", DatasetFigures),
    )


def _compare_metrics(runs: Sequence[OverlaidRun]) -> list[Row]:
    """Compares all metrics on the test split. Top-k of another k is another metric."""
    evaluated = [run.evaluation for run in runs if run.evaluation]
    names = list(dict.fromkeys(name for each in evaluated for name in each.challenger.metrics))
    if len({run.top_k for run in runs if run.evaluation}) > 1:
        names = [name for name in names if name != "top_k_accuracy"]
    rows = []
    for name in names:
        models = [run.evaluation.challenger if run.evaluation else None for run in runs]
        values = [model.metrics.get(name) if model else None for model in models]
        intervals = [model.intervals.get(name) if model else None for model in models]
        title, meaning = describe_metric(name, next((run.top_k for run in runs), None))
        rows.append(
            Row(
                title,
                ["" if value is None else f"{value:.4f}" for value in values],
                [
                    f"{low:.4f} to {high:.4f}" if each else ""
                    for each in intervals
                    for low, high in [each or (0, 0)]
                ],
                meaning,
            )
        )
    return rows


def _compare_facts(runs: Sequence[OverlaidRun]) -> list[Row]:
    """Compares what the trainings and the data sets were like."""

    def collect(run: OverlaidRun) -> dict[str, str]:
        facts = dict[str, str]()
        if dataset := run.dataset:
            facts |= {
                f"{split.capitalize()} images": f"{dataset.num_examples.get(split, 0):,}"
                for split in SPLITS
            }
            facts |= {
                "Rejected": f"{dataset.num_rejected:,}",
                "Classes": f"{len(dataset.class_names):,}",
            }
        if training := run.training:
            facts |= {
                "Epochs": f"{len(training.history):,}" + ", stopped early" * training.stopped_early,
                **({"Early stop": training.early_stop} if training.early_stop else {}),
                "Best epoch": str(training.best_epoch + 1),
                "Steps": f"{training.steps:,}",
                "Strategy": training.strategy,
                "Workers": str(training.workers),
                "Restarts": str(training.restarts),
                "Parameters": f"{training.num_parameters:,}",
                "Training": f"{training.seconds:.0f} s",
            }
        if evaluation := run.evaluation:
            version = evaluation.champion_version
            facts["Compared with"] = f"version {version}" if version else "no version"
            facts["Gate"] = "passed" if evaluation.gate_passed else "not passed"
        return facts

    return _join([collect(run) for run in runs])


def _compare_settings(runs: Sequence[OverlaidRun]) -> list[Row]:
    """Compares config leaf by leaf, package versions, and the code by a digest."""

    def collect(run: OverlaidRun) -> dict[str, str]:
        settings = dict[str, str]()
        for job, manifest in run.manifests.items():
            fingerprint = manifest.fingerprint
            for name, value in fingerprint.list_leaves().items():
                part, _, key = name.partition(" ")
                if part == "config":
                    settings[f"{job}.{key}"] = json.dumps(value)[:_MAX_VALUE]
                elif part == "versions":
                    settings[key] = str(value)
            if fingerprint.code:
                settings[f"Code of {job}"] = compute_digest(fingerprint.code)[:7]
        return settings

    return _join([collect(run) for run in runs])


def _join(by_run: Sequence[dict[str, str]]) -> list[Row]:
    titles = dict.fromkeys(title for each in by_run for title in each)
    return [Row(title, [each.get(title, "") for each in by_run]) for title in titles]


def _compare_classes(runs: Sequence[OverlaidRun]) -> list[Row]:
    """Compares recall by class. Of very many, those that differ most."""

    def collect(run: OverlaidRun) -> dict[str, ClassFigures]:
        classes = run.evaluation.challenger.classes if run.evaluation else []
        return {each.name: each for each in classes if each.support}

    by_run = [collect(run) for run in runs]
    names = list(dict.fromkeys(name for each in by_run for name in each))

    def get_spread(name: str) -> float:
        values = [each[name].recall for each in by_run if name in each]
        return max(values) - min(values)

    if len(names) > _MAX_CLASSES:
        names = sorted(names, key=get_spread, reverse=True)[:_MAX_CLASSES]
    return [
        Row(name, [f"{each[name].recall:.4f}" if name in each else "" for each in by_run])
        for name in names
    ]


def _list_points(run: OverlaidRun, metric: str) -> list[tuple[int, int, float]]:
    """Returns the epoch from 1 on, the step and the value of each epoch."""
    history = run.training.history if run.training else []
    return [
        (epoch.epoch + 1, epoch.step, epoch.metrics[metric])
        for epoch in history
        if metric in epoch.metrics
    ]


def _list_metrics(runs: Iterable[OverlaidRun]) -> list[str]:
    """The metrics of a training without those of its validation, in their order."""
    names = (
        name.removeprefix(_VALIDATION)
        for run in runs
        if run.training
        for epoch in run.training.history[:1]
        for name in epoch.metrics
    )
    return list(dict.fromkeys(names))


def _draw_charts(runs: Sequence[OverlaidRun]) -> list[Chart]:
    """Draws each metric by epoch: the validation, or the training if there is none."""
    charts = []
    for metric in _list_metrics(runs):
        lines = []
        for run in reversed(runs):  # the one in service is behind
            points: list[Point] = [
                (epoch, value)
                for epoch, _, value in _list_points(run, _VALIDATION + metric)
                or _list_points(run, metric)
            ]
            if points:
                lines.append(Line(run.label, run.style, points))
        title = describe_metric(metric)[0]
        drawing = draw_line_chart(f"{title} by epoch", lines, frame=LARGE, has_dots=False)
        charts.append(Chart(title, "", drawing))  # type: ignore[arg-type]
    return charts


def _list_curves(runs: Sequence[OverlaidRun]) -> dict[str, Any]:
    """Returns what the script draws: runs, and by metric the points of each run."""

    def list_drawn(run: OverlaidRun, metric: str) -> list[list[float | None]]:
        points = _list_points(run, metric)
        kept = thin([(number, point[2]) for number, point in enumerate(points)], MAX_POINTS)
        return [
            [points[int(number)][0], points[int(number)][1], value if abs(value) < 1e100 else None]
            for number, value in kept
        ]

    return {
        "runs": [
            {
                "name": run.label,
                "style": run.style,
                "best": run.training.best_epoch + 1 if run.training else 0,
            }
            for run in runs
        ],
        "metrics": [
            {
                "title": describe_metric(metric)[0],
                "validation": [list_drawn(run, _VALIDATION + metric) for run in runs],
                "training": [list_drawn(run, metric) for run in runs],
            }
            for metric in _list_metrics(runs)
        ],
    }
