"""The effect of a change of a model's aliases, for the page on which a person confirms it.

It is computed by the functions that the registry itself moves by, and changes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from pipeline_ops.config.pipeline_ref import PipelineRef
from pipeline_ops.contract.manifest import Manifest
from pipeline_ops.contract.results import ModelFigures
from pipeline_ops.contract.run_summary import MetricSummary
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.orchestration.ui.models import read_figures
from pipeline_ops.registry.aliases import CHAMPION, PREVIOUS, Aliases
from pipeline_ops.registry.registry import Registry

Action = Literal["promote", "rollback", "alias", "retire"]


@dataclasses.dataclass(frozen=True)
class Choice:
    """A version before or after a change. Without a readable manifest, there are no figures."""

    number: int
    manifest: Manifest | None = None
    figures: ModelFigures | None = None

    @property
    def made(self) -> str:
        made_by = self.manifest.made_by if self.manifest else None
        return f"{made_by.time:%Y-%m-%d %H:%M} UTC" if made_by else ""


@dataclasses.dataclass(frozen=True)
class MetricChange:
    """One metric of both versions. A version without it has None."""

    name: str
    before: float | None
    after: float | None

    @property
    def difference(self) -> str:
        """The difference with its sign, or "" if a version lacks the metric."""
        if self.before is None or self.after is None:
            return ""
        return MetricSummary(value=self.after, champion=self.before).difference


@dataclasses.dataclass(frozen=True)
class ModelChange:
    """A change that nobody has made yet.

    `expected` is the version that the moved alias names now. The change is refused if it names
    another one by then.
    """

    action: Action
    title: str
    moved: str
    """The alias that a person moves. Empty for a retirement."""
    version: int | None
    expected: int | None
    aliases: Sequence[tuple[str, int | None, int | None]]
    """The aliases that would name another version: the name, and both versions."""
    before: Choice | None
    after: Choice | None

    @property
    def metrics(self) -> list[MetricChange]:
        """The metrics of both versions. Empty unless both are known."""
        if not (self.before and self.before.figures and self.after and self.after.figures):
            return []
        before, after = self.before.figures.metrics, self.after.figures.metrics
        return [
            MetricChange(name, before.get(name), after.get(name))
            for name in dict.fromkeys([*after, *before])
        ]

    @property
    def changes_classes(self) -> bool:
        """Returns whether both versions are known, and answer with other classes."""
        before, after = self.before, self.after
        if not (before and before.figures and after and after.figures):
            return False
        return before.figures.class_names != after.figures.class_names


def plan_change(
    pipeline: PipelineRef, action: Action, version: int | None, alias: str
) -> ModelChange:
    """Says what a change would do. Raises ConfigError if the registry would refuse it."""
    registry = Registry(pipeline.registry)
    present = registry.read_aliases()
    if action == "rollback":
        version = present.names.get(PREVIOUS)
    if version is not None:
        registry.get_version(version, present)
    after = _plan(registry, present, action, version, alias)
    moved = {"alias": alias, "retire": ""}.get(action, CHAMPION)
    names = sorted({*present.names, *after.names}, key=lambda name: (name != moved, name))
    expected = present.names.get(moved)
    return ModelChange(
        action=action,
        title=_describe(action, version, alias, pipeline.model),
        moved=moved,
        version=version,
        expected=expected,
        aliases=[
            (name, present.names.get(name), after.names.get(name))
            for name in names
            if present.names.get(name) != after.names.get(name)
        ],
        before=_read_choice(registry, present, expected),
        after=_read_choice(registry, present, version),
    )


def _plan(
    registry: Registry, present: Aliases, action: Action, version: int | None, alias: str
) -> Aliases:
    if action == "alias":
        return present.with_alias(alias, version, "")
    if version is None:
        missing = "There is no earlier champion." if action == "rollback" else "Which version?"
        raise ConfigError(f"{missing} Choose a version on the page of the model.")
    if action == "retire":
        registry.check_retirable(version, present)
        return present.with_retired([version], "")
    return present.with_champion(version, "")


def _describe(action: Action, version: int | None, alias: str, model: str) -> str:
    if action == "retire":
        return f"Retire version {version} of {model}"
    if action == "alias":
        if version is None:
            return f"Remove the alias {alias} of {model}"
        return f"Let {alias} name version {version} of {model}"
    back = "back " * (action == "rollback")
    return f"Put version {version} of {model} {back}in service"


def _read_choice(registry: Registry, present: Aliases, number: int | None) -> Choice | None:
    if number is None:
        return None
    try:
        manifest = registry.get_version(number, present).read_manifest()
        return Choice(number, manifest, read_figures(manifest))
    except (ConfigError, DataError, ValueError):
        return Choice(number)
