"""The model card: the purpose of a model, its origin, and its quality at publication.

Two files have the same content: `model_card.json` for programs, `MODEL_CARD.md` for people. Nothing
in them depends on the clock or on the machine, so a retry writes the same bytes. Timings are in the
version's manifest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from pipeline_ops.config.export import Export
from pipeline_ops.contract.dataset import DatasetFigures
from pipeline_ops.contract.manifest import Input, Manifest, read_manifest
from pipeline_ops.contract.request import Request
from pipeline_ops.contract.results import (
    EvaluationFigures,
    FileFigures,
    FormatFigures,
    TrainingFigures,
)
from pipeline_ops.errors import DataError
from pipeline_ops.storage.local_files import write_atomically, write_json
from pipeline_ops.storage.open_store import open_path

CARD_JSON, CARD_MARKDOWN = "model_card.json", "MODEL_CARD.md"


def write_card(
    folder: Path,
    config: Export,
    number: int,
    request: Request,
    training: Manifest,
    evaluation: EvaluationFigures,
    formats: Sequence[FormatFigures],
    files: FileFigures,
) -> None:
    """Writes both files into a version's folder."""
    figures, challenger = TrainingFigures.model_validate(training.figures), evaluation.challenger
    card = {
        "model": config.model,
        "version": number,
        "pipeline": request.pipeline,
        "texts": config.card,
        "data": _read_data_figures(training.inputs.get("preprocess")),
        "training": {
            "model": training.fingerprint.config.get("model"),
            "strategy": figures.strategy,
            "workers": figures.workers,
            "steps": figures.steps,
            "num_parameters": figures.num_parameters,
            "weights_digest": figures.weights_digest,
            "seeds": training.seeds,
            "input": list(figures.image_shape),
            "classes": figures.class_names,
        },
        "evaluation": {
            "num_examples": evaluation.num_examples,
            "metrics": challenger.metrics,
            "classes": [
                each.model_dump(include={"name", "precision", "recall", "f1", "support"})
                for each in challenger.classes
            ],
            "compared_with": evaluation.champion_version,
            "gate": [rule.text for rule in evaluation.rules],
        },
        "formats": [each.model_dump(exclude={"latency_seconds", "seconds"}) for each in formats],
        "files": files.model_dump(),
        "lineage": {
            name: entry.digest
            for inputs in (request.inputs, training.inputs)
            for name, entry in sorted(inputs.items())
        },
        "versions": training.fingerprint.versions,
    }
    write_json(folder / CARD_JSON, card)
    write_atomically(folder / CARD_MARKDOWN, _to_markdown(card).encode())


def _read_data_figures(entry: Input | None) -> dict[str, Any] | None:
    """Returns the figures of the data set, or None if it is gone."""
    if entry is None:
        return None
    try:
        manifest = read_manifest(open_path(entry.uri))
    except DataError:
        return None
    figures = DatasetFigures.model_validate(manifest.figures)
    return figures.model_dump(include={"num_examples", "labels", "num_rejected"})


def _to_markdown(card: Mapping[str, Any]) -> str:
    environment = jinja2.Environment(  # noqa: S701 (`finalize` escapes every value)
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        finalize=_escape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    labels = card["data"]["labels"].values() if card["data"] else ()
    label_names = sorted({name for split in labels for name in split})
    return environment.get_template("model_card.md.jinja").render(card, label_names=label_names)


def _escape(value: Any) -> str:
    """Escapes text for Markdown and HTML, because class names come from untrusted folder names."""
    text = str(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#!~])", r"\\\1", " ".join(text.split()))
