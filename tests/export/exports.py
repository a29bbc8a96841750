"""Exports of the sandbox: their plan, and the numbers of the published versions."""

from __future__ import annotations

from pipeline_ops.planning.plan import JobPlan


def planned(sandbox, model: str, tag: str = "", **overrides) -> JobPlan:
    """The export of a model that was trained and evaluated just now."""
    train = sandbox.train(model, tag=tag)
    return sandbox.plan("export", train, sandbox.evaluate(train), **overrides)


def numbers(sandbox) -> list[int]:
    return [version.number for version in sandbox.registry.list_versions()]
