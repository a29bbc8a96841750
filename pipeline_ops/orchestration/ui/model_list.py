"""The list of all models: what is in service, since when, how good, and the last run's outcome."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup
from sqlalchemy.orm import Session

from pipeline_ops.config.pipeline_ref import PipelineRef
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.results import ModelFigures, format_figure
from pipeline_ops.errors import DataError, TrainyardError
from pipeline_ops.orchestration.airflow_runs import NotFound, find_pipeline
from pipeline_ops.orchestration.ui.models import find_coming, read_figures, read_origin
from pipeline_ops.orchestration.ui.runs import RunRow, view_last_run
from pipeline_ops.pages.charts import draw_sparkline
from pipeline_ops.pages.metric_titles import format_metric_title
from pipeline_ops.registry.aliases import CHAMPION, AliasMove
from pipeline_ops.registry.registry import Registry
from pipeline_ops.registry.versions import read_manifests

_MAX_DRAWN = 20
_MAX_MOVES = 20


@dataclasses.dataclass(frozen=True)
class ModelRow:
    """The model of a pipeline. `problem` is why it, or its last run, cannot be read."""

    dag_id: str
    name: str = ""
    champion: int | None = None
    came_by: AliasMove | None = None
    """The move by which the champion came into service. None if it was too long ago."""
    num_versions: int = 0
    metric: str = ""
    """The gate's first one."""
    value: float | None = None
    """Of the version in service."""
    course: Markup = Markup()
    """The metric of the newest versions."""
    aliases: Mapping[str, int] = dataclasses.field(default_factory=dict)
    last: RunRow | None = None
    problem: str = ""

    @property
    def is_empty(self) -> bool:
        return not self.num_versions and not self.problem


def view_models(
    dag_ids: Sequence[str], session: Session, may_read_runs: Callable[[str], bool]
) -> list[ModelRow]:
    """Reads the models of pipelines, those in service first and those without a version last."""
    rows = [
        row
        for dag_id in dag_ids
        if (row := _try_view_row(dag_id, session, may_read_runs(dag_id))) is not None
    ]
    return sorted(rows, key=lambda row: (row.is_empty, row.champion is None))


def _try_view_row(dag_id: str, session: Session, may_read_runs: bool) -> ModelRow | None:
    """Returns None for a DAG of ours that is no pipeline."""
    try:
        row = _view_row(dag_id, find_pipeline(dag_id, session))
    except NotFound:
        return None
    except (TrainyardError, OSError) as problem:
        return ModelRow(dag_id, problem=str(problem))
    try:
        last = view_last_run(dag_id, session) if may_read_runs else None
    except (TrainyardError, OSError) as problem:
        return dataclasses.replace(row, problem=str(problem))
    return dataclasses.replace(row, last=last)


def _view_row(dag_id: str, pipeline: PipelineRef) -> ModelRow:
    registry, layout = Registry(pipeline.registry), Layout(pipeline.root, pipeline.pipeline)
    versions, present = registry.list_versions(), registry.read_aliases()
    champion = present.names.get(CHAMPION)
    drawn = [
        version
        for position, version in enumerate(reversed(versions))
        if position < _MAX_DRAWN or version.number == champion
    ][::-1]
    figures = dict[int, ModelFigures]()
    judged: Sequence[str] = ()
    for version, manifest in zip(drawn, read_manifests(drawn), strict=True):
        try:
            figures[version.number] = read_figures(manifest)
        except (DataError, ValueError):
            continue  # the page of the model says why
        if version.number == champion:
            summary = read_origin(layout, champion, manifest).summary
            judged = list(summary.metrics) if summary else []
    served = figures.get(champion or 0)
    metric = next(iter([*judged, *(served.metrics if served else ())]), "")
    return ModelRow(
        dag_id,
        name=pipeline.model,
        champion=champion,
        came_by=find_coming(champion, registry.read_history(newest=_MAX_MOVES)),
        num_versions=len(versions),
        metric=metric,
        value=served.metrics.get(metric) if served else None,
        course=_draw_course(metric, figures, champion),
        aliases={
            name: number for name, number in sorted(present.names.items()) if name != CHAMPION
        },
    )


def _draw_course(metric: str, figures: Mapping[int, ModelFigures], champion: int | None) -> Markup:
    values = {
        number: each.metrics[metric] for number, each in figures.items() if metric in each.metrics
    }
    if len(values) < 2:
        return Markup()
    numbers = list(values)
    first, last = numbers[0], numbers[-1]
    title = (
        f"{format_metric_title(metric)} of versions {first} to {last}: from "
        f"{format_figure(values[first])} to {format_figure(values[last])}"
    )
    marked = numbers.index(champion) if champion in values else None
    return draw_sparkline(title, [*values.values()], marked)
