"""A model's page: its versions, what is left of the run that made each, and moves of aliases."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Sequence

from pipeline_ops.config.pipeline_ref import PipelineRef
from pipeline_ops.contract.fingerprint import Fingerprint
from pipeline_ops.contract.layout import Layout, parse_artifact_uri
from pipeline_ops.contract.manifest import Maker, Manifest, ManifestFile, read_manifest
from pipeline_ops.contract.results import ModelFigures
from pipeline_ops.contract.run_summary import MetricSummary, RunSummary, read_summary
from pipeline_ops.errors import DataError
from pipeline_ops.orchestration.ui.progress import Chart, draw_version_charts
from pipeline_ops.pages.charts import Point
from pipeline_ops.registry.aliases import CHAMPION, PREVIOUS, Aliases, AliasHistory, AliasMove
from pipeline_ops.registry.registry import Registry
from pipeline_ops.registry.versions import read_manifests
from pipeline_ops.storage.request_cache import map_requests

ROWS = 50
"""The number of versions on a page. Each costs three small reads."""
_MAX_MOVES = 200
_MAX_FILES = 10
_MIN_POINTS = 3
"""A chart of fewer versions shows less than the table."""


@dataclasses.dataclass(frozen=True)
class VersionView:
    """One version. If its manifest or its figures cannot be read, `problem` says why."""

    number: int
    aliases: list[str]
    badge: str = ""
    """`rolled back`, `never in service` or `retired`. Empty if none is true and known."""
    manifest: Manifest | None = None
    figures: ModelFigures | None = None
    summary: RunSummary | None = None
    """What is left of the run that made it. None if it is gone, or of another pipeline."""
    before: int | None = None
    """The version that `changes` compares with."""
    changes: list[str] | None = None
    """What is different in its training. None if one of the two trainings is gone."""
    problem: str = ""
    retired: AliasMove | None = None

    @property
    def made_by(self) -> Maker | None:
        """The run that has published it. Older versions do not have it."""
        return self.manifest.made_by if self.manifest else None

    @property
    def num_examples(self) -> int:
        """The size of the data set, or 0 if the summary of the run is gone."""
        return sum(self.summary.num_examples.values()) if self.summary else 0

    @property
    def first_files(self) -> Sequence[ManifestFile]:
        return self.manifest.files[:_MAX_FILES] if self.manifest else []

    def find_metric(self, name: str) -> MetricSummary | None:
        """Returns a metric, with its difference if the run compared it at the publication."""
        if self.figures is None or name not in self.figures.metrics:
            return None
        value, summary = self.figures.metrics[name], self.summary
        judged = summary.metrics.get(name) if summary else None
        is_same = judged and judged.value == value  # and not of a later evaluation
        if judged and summary and is_same and summary.champion == self.figures.compared_with:
            return judged
        return MetricSummary(value=value)


@dataclasses.dataclass(frozen=True)
class ModelView:
    """A page of a model's versions. The newest version and the newest move come first."""

    name: str
    location: str
    pipeline: str
    champion: int | None
    previous: int | None
    in_service: VersionView | None
    came_by: AliasMove | None
    """The move by which the champion came into service. None if it was too long ago."""
    versions: list[VersionView]
    num_versions: int
    has_older: bool
    metrics: list[str]
    """Those that the gate has judged, in its order."""
    charts: list[Chart]
    moves: list[AliasMove]
    problems: list[str]
    """The problems of records that cannot be read."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """The remains of the run and of the training that a version comes from."""

    summary: RunSummary | None = None
    training: Fingerprint | None = None
    problem: str = ""


def view_model(pipeline: PipelineRef, page: int = 0) -> ModelView:
    """Reads a page of a model's versions, 0 for the newest ones.

    Raises MachineError or OSError if the registry cannot be reached.
    """
    registry, layout = Registry(pipeline.registry), Layout(pipeline.root, pipeline.pipeline)
    present, history = registry.read_aliases(), registry.read_history(newest=_MAX_MOVES)
    versions = {version.number: version for version in registry.list_versions()}
    champion = present.names.get(CHAMPION)
    numbers = sorted({*versions, *present.retired}, reverse=True)
    shown, older = numbers[page * ROWS : (page + 1) * ROWS], numbers[(page + 1) * ROWS :]
    before_all = [number for number in older if number in versions][:1]
    needed = sorted({*shown, *before_all, champion or 0} & versions.keys())
    manifests = read_manifests([versions[number] for number in needed])
    origins = map_requests(
        lambda each: read_origin(layout, *each), list(zip(needed, manifests, strict=True))
    )
    views = dict[int, VersionView]()
    older_origin, before = Origin(), None
    for number, manifest, origin in zip(needed, manifests, origins, strict=True):
        figures, problem = _try_read_figures(manifest)
        views[number] = VersionView(
            number,
            present.find_names(number),
            _find_badge(number, present, history),
            summary=origin.summary,
            before=before,
            changes=_describe_changes(older_origin, origin),
            manifest=None if isinstance(manifest, DataError) else manifest,
            figures=figures,
            problem=problem,
        )
        older_origin, before = origin, number
    retired = {number: move for move in history.moves for number in move.retired}
    rows = [
        views.get(number) or VersionView(number, [], "retired", retired=retired.get(number))
        for number in shown
    ]
    metrics = _list_metrics(rows)
    return ModelView(
        name=pipeline.model,
        location=str(registry.location),
        pipeline=pipeline.pipeline,
        champion=champion,
        previous=present.names.get(PREVIOUS),
        in_service=views.get(champion) if champion else None,
        came_by=find_coming(champion, history),
        versions=rows,
        num_versions=len(versions),
        has_older=bool(older),
        metrics=metrics,
        charts=_draw_charts(metrics, rows),
        moves=history.moves[::-1],
        problems=history.problems + [each.problem for each in origins if each.problem],
    )


def find_coming(champion: int | None, history: AliasHistory) -> AliasMove | None:
    """Finds the move by which the champion came into service, or None if it is not among these."""
    moves = (move for move in reversed(history.moves) if move.alias == CHAMPION)
    newest = next(moves, None)
    return newest if newest and newest.version == champion else None


def describe_move(move: AliasMove) -> str:
    """Describes a move: `version 3 came into service`."""
    if move.retired:
        return f"retired {', '.join(map(str, move.retired))}"
    if move.alias == CHAMPION:
        return f"version {move.version} came into service"
    return f"{move.alias} names " + (
        f"version {move.version}" if move.version else "no version now"
    )


def read_figures(manifest: Manifest | DataError) -> ModelFigures:
    """Returns the figures of a version. Raises DataError or ValueError if it has none."""
    if isinstance(manifest, DataError):
        raise manifest
    return ModelFigures.model_validate(manifest.figures)


def read_origin(layout: Layout, number: int, manifest: Manifest | DataError) -> Origin:
    """Reads what is left of the run and of the training of a version of this pipeline."""
    if isinstance(manifest, DataError) or manifest.pipeline != layout.pipeline:
        return Origin()
    trained = manifest.inputs.get("train")
    place = parse_artifact_uri(trained.uri) if trained else None
    training = None
    if trained and place:
        with contextlib.suppress(DataError):  # it was removed, or the storage root has moved
            path = layout.check_manifest("train", trained.uri)
            training = read_manifest(path).fingerprint
    try:
        summary = read_summary(layout, manifest.made_by.run_id) if manifest.made_by else None
    except DataError as error:
        return Origin(None, training, str(error))
    is_same = summary is not None and summary.version == number
    if summary and summary.version is None:  # its export has failed after the publication
        task = summary.tasks.get("train")
        is_same = bool(task and place and task.fingerprint == place[2])
    return Origin(summary if is_same else None, training)


def _try_read_figures(manifest: Manifest | DataError) -> tuple[ModelFigures | None, str]:
    """Returns the figures of a version, or the problem with them."""
    try:
        return read_figures(manifest), ""
    except (DataError, ValueError) as error:
        return None, str(error)


def _find_badge(number: int, present: Aliases, history: AliasHistory) -> str:
    if number in present.succession:
        return ""
    if any(move.alias == CHAMPION and move.version == number for move in history.moves):
        return "rolled back"
    is_whole = len(history.moves) < _MAX_MOVES and not history.problems
    return "never in service" if is_whole else ""


def _describe_changes(older: Origin, newer: Origin) -> list[str] | None:
    if older.training is None or newer.training is None:
        return None
    return newer.training.describe_changes_since(older.training)


def _list_metrics(rows: Sequence[VersionView]) -> list[str]:
    """Lists the metrics that the gate has judged, or the first one if no run is known."""
    judged = [name for row in rows if row.summary for name in row.summary.metrics]
    return (
        list(dict.fromkeys(judged))
        or [name for row in rows if row.figures for name in row.figures.metrics][:1]
    )


def _draw_charts(metrics: Sequence[str], rows: Sequence[VersionView]) -> list[Chart]:
    points = defaultdict[str, list[Point]](list)
    for row in reversed(rows):
        for name in metrics:
            if metric := row.find_metric(name):
                points[name].append((row.number, metric.value))
    return draw_version_charts(
        {name: drawn for name, drawn in points.items() if len(drawn) >= _MIN_POINTS}
    )
