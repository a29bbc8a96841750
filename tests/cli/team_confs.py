"""Confs by which a member of team A requests team B's data, or bypasses the author's rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cli.team_scene import Scene

from pipeline_ops.config.fields import collect_fields
from pipeline_ops.config.pipeline import PipelineConfig

CONFS = ("F1", "F2", "F6", "F12", "every_key")
_MAX_REFUSALS = 20
"""The number of keys that a message names."""


def confs(scene: Scene) -> dict[str, list[dict[str, Any]]]:
    """Confs by the name of the attack."""
    brought, private = scene.a.folder / "brought", scene.b.folder / "private"
    csv = {"type": "csv", "path": str(private), "manifest": "list.csv", "task": "classification"}
    hosts = [
        str(brought / "hosts"),
        "../../brought/hosts",
        str(private / "hosts"),
        "../../../b/private/hosts",
    ]
    return {
        "F1": [
            *({"train.hosts": name} for name in hosts),
            {"train": {"model": "digits_cnn", "hosts": hosts[0]}},
        ],
        "F2": [
            {"train.warm_start": str(brought / "model")},
            {"train": {"model": "digits_cnn", "warm_start": str(brought / "model")}},
        ],
        "F6": [
            {"evaluate.approval": None},
            {"evaluate.gate": [{"metric": "accuracy", "at_least": 0}]},
            {"evaluate.gate.0.at_least": 0},
            {"evaluate": {"gate": [{"metric": "accuracy", "at_least": 0}]}},
            {"export.registry": str(scene.b.registry)},
            {"export.model": "b_digits", "export.registry": str(scene.b.registry)},
            {"pipeline": "b_digits"},
            {"pipeline": "b_digits", "storage.root": str(scene.b.folder / "storage")},
            {"storage": {"root": str(scene.b.folder / "storage")}},
            {"export": {"model": "b_digits", "registry": str(scene.b.registry)}},
        ],
        "F12": [
            {"preprocess.source": csv},
            {"preprocess.source.path": str(scene.b.raw)},
            {"preprocess.source.manifest": str(private / "list.csv")},
        ],
        "every_key": list(_every_key(str(scene.b.folder / "storage"))),
    }


def _every_key(value: str) -> Iterator[dict[str, Any]]:
    """Confs with all keys that belong to the author, and with all whole sections."""
    leaves = collect_fields(PipelineConfig)
    keys = [key.replace("[]", ".0") for key, leaf in leaves.items() if not leaf.is_per_run]
    for begin in range(0, len(keys), _MAX_REFUSALS):
        yield dict.fromkeys(keys[begin : begin + _MAX_REFUSALS], value)
    yield {
        section: {"root": value, "path": value, "registry": value}
        for section in PipelineConfig.model_fields
    }
