"""Evaluations of the sandbox: a gate that all models pass, and the figures of an artifact."""

from __future__ import annotations

from pathlib import Path

from pipeline_ops.contract.manifest import NAME, read_manifest
from pipeline_ops.contract.results import EvaluationFigures

LENIENT = [{"metric": "accuracy", "at_least": 0.5, "max_regression": 0.05}]


def read_figures(folder: Path) -> EvaluationFigures:
    return EvaluationFigures.model_validate(read_manifest(folder / NAME).figures)
