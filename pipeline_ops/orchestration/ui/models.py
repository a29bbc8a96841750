"""The registry of a model, for its page: versions, metrics, charts and moves of aliases."""

from __future__ import annotations

import dataclasses
from collections import defaultdict

from pipeline_ops.config.pipeline_ref import PipelineRef
from pipeline_ops.contract.manifest import Maker, Manifest
from pipeline_ops.contract.results import ModelFigures
from pipeline_ops.errors import DataError
from pipeline_ops.orchestration.ui.progress import Chart, draw_version_charts
from pipeline_ops.pages.charts import Point
from pipeline_ops.registry.aliases import CHAMPION, PREVIOUS, AliasMove
from pipeline_ops.registry.registry import Registry
from pipeline_ops.registry.versions import read_manifests

_MAX_VERSIONS = 200
"""The number of newest versions to show. A manifest in a bucket costs a request each."""
_MAX_MOVES = 100
_MIN_POINTS = 3
"""A chart of fewer versions shows less than the table."""


@dataclasses.dataclass(frozen=True)
class VersionView:
    """One version. If its manifest cannot be read, `figures` is None, and `problem` says why."""

    number: int
    aliases: list[str]
    figures: ModelFigures | None
    made_by: Maker | None = None
    """The run that has published it. Older versions do not have it."""
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class ModelView:
    """A model. The newest version and the newest move come first."""

    name: str
    location: str
    champion: int | None
    previous: int | None
    versions: list[VersionView]
    num_hidden: int
    metrics: list[str]
    charts: list[Chart]
    moves: list[AliasMove]
    problems: list[str]
    """The problems of records that cannot be read."""

    @property
    def in_service(self) -> VersionView | None:
        return next((version for version in self.versions if version.number == self.champion), None)


def view_model(pipeline: PipelineRef) -> ModelView:
    """Reads a model's registry. Raises MachineError or OSError if it cannot be reached."""
    registry = Registry(pipeline.registry)
    aliases, versions = registry.read_aliases(), registry.list_versions()
    history = registry.read_history(newest=_MAX_MOVES)
    shown = versions[-_MAX_VERSIONS:]
    views = [
        _view_version(version.number, aliases.find_names(version.number), manifest)
        for version, manifest in zip(shown, read_manifests(shown), strict=True)
    ]
    points = defaultdict[str, list[Point]](list)
    for view in views:
        for metric, value in view.figures.metrics.items() if view.figures else ():
            points[metric].append((view.number, value))
    return ModelView(
        name=pipeline.model,
        location=str(registry.location),
        champion=aliases.names.get(CHAMPION),
        previous=aliases.names.get(PREVIOUS),
        versions=views[::-1],
        num_hidden=len(versions) - len(shown),
        metrics=list(points),
        charts=draw_version_charts(
            {name: drawn for name, drawn in points.items() if len(drawn) >= _MIN_POINTS}
        ),
        moves=history.moves[::-1],
        problems=history.problems,
    )


def describe_move(move: AliasMove) -> str:
    """Describes a move: `version 3 came into service`."""
    if move.retired:
        return f"retired {', '.join(map(str, move.retired))}"
    if move.alias == CHAMPION:
        return f"version {move.version} came into service"
    return f"{move.alias} names " + (
        f"version {move.version}" if move.version else "no version now"
    )


def _view_version(number: int, aliases: list[str], manifest: Manifest | DataError) -> VersionView:
    try:
        if isinstance(manifest, DataError):
            raise manifest
        figures = ModelFigures.model_validate(manifest.figures)
        return VersionView(number, aliases, figures, manifest.made_by)
    except (DataError, ValueError) as error:
        return VersionView(number, aliases, None, problem=str(error))
