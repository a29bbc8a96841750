"""The registry of a model, for its page.

It has the versions with their aliases and metrics, charts of the metrics over the versions, and
every move.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict

from pipeline_ops.artifacts.results import ModelFigures
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.errors import DataError
from pipeline_ops.pages.svg import Point
from pipeline_ops.registry.aliases import CHAMPION, PREVIOUS, Move
from pipeline_ops.registry.registry import Registry, Version
from pipeline_ops.ui.charts import Chart, Curve, drawable, line_chart, metric_title

_MAX_VERSIONS = 200
"""The number of newest versions to show. A manifest in an object store costs a request each."""
_MAX_MOVES = 100


@dataclasses.dataclass(frozen=True)
class VersionView:
    """One version. `figures` is None if its manifest cannot be read, for the reason `problem`."""

    number: int
    folder: str
    aliases: list[str]
    figures: ModelFigures | None
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class ModelView:
    """A model. The newest version and the newest move come first."""

    name: str
    place: str
    champion: int | None
    previous: int | None
    versions: list[VersionView]
    num_hidden: int
    metrics: list[str]
    charts: list[Chart]
    moves: list[Move]
    problems: list[str]
    """The problems of records that cannot be read."""

    @property
    def in_service(self) -> VersionView | None:
        return next((version for version in self.versions if version.number == self.champion), None)


def view_model(config: PipelineConfig) -> ModelView:
    """Reads a model's registry. Raises MachineError or OSError if it cannot be reached."""
    registry = Registry(config.registry)
    aliases, versions, records = registry.aliases(), registry.versions(), registry.records()
    shown = versions[-_MAX_VERSIONS:]
    views = [_view(version, aliases.named(version.number)) for version in shown]
    metrics = list(
        dict.fromkeys(name for view in views if view.figures for name in view.figures.metrics)
    )
    return ModelView(
        name=config.export.model,
        place=str(registry.place),
        champion=aliases.names.get(CHAMPION),
        previous=aliases.names.get(PREVIOUS),
        versions=views[::-1],
        num_hidden=len(versions) - len(shown),
        metrics=metrics,
        charts=_charts(views, metrics),
        moves=records.moves[: -_MAX_MOVES - 1 : -1],
        problems=records.problems[:_MAX_MOVES],
    )


def describe_move(move: Move) -> str:
    """Describes a move as the end of "at that time, ...": `version 3 came into service`."""
    if move.retired:
        return f"retired {', '.join(map(str, move.retired))}"
    if move.alias == CHAMPION:
        return f"version {move.version} came into service"
    return f"{move.alias} names " + (
        f"version {move.version}" if move.version else "no version any more"
    )


def _view(version: Version, aliases: list[str]) -> VersionView:
    try:
        return VersionView(
            version.number,
            version.folder,
            aliases,
            ModelFigures.model_validate(version.manifest().figures),
        )
    except (DataError, ValueError) as error:
        return VersionView(version.number, version.folder, aliases, None, str(error))


def _charts(views: list[VersionView], metrics: list[str]) -> list[Chart]:
    points: dict[str, list[Point]] = defaultdict(list)
    for view in views:
        for metric, value in view.figures.metrics.items() if view.figures else ():
            points[metric].append((view.number, value))
    charts = []
    for metric in metrics:
        curve = Curve(metric, "training", drawable(points[metric]))
        if not curve.points:
            continue
        charts.append(
            Chart(metric_title(metric), [curve], line_chart(metric, [curve], "version", dots=True))
        )
    return charts
