"""The model card: the purpose of a model, its origin, and its quality at publication.

Two files have the same content: `model_card.json` for programs, `MODEL_CARD.md` for people. Nothing
in them depends on the clock or on the machine, so a retry writes the same bytes. Timings are in the
version's manifest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline_ops.artifacts.dataset import DatasetFigures
from pipeline_ops.artifacts.manifest import Input, Manifest, read_manifest
from pipeline_ops.artifacts.results import EvaluationFigures, FormatFigures, TrainingFigures
from pipeline_ops.config.export import Card, Export
from pipeline_ops.errors import DataError
from pipeline_ops.storage.atomic import write_json, write_whole

JSON, MARKDOWN = "model_card.json", "MODEL_CARD.md"
_OF_FORMATS = {
    "name",
    "path",
    "num_bytes",
    "num_checked",
    "max_difference",
    "tolerance",
    "top1_agreement",
    "min_top1_agreement",
}
_NOT_SAID = "Not said in the config (`export.card`)."


def make_card(
    config: Export,
    number: int,
    pipeline: str,
    training: Manifest,
    evaluation: EvaluationFigures,
    formats: Sequence[FormatFigures],
    inputs: Mapping[str, Input],
) -> dict[str, Any]:
    """Returns the content of both files."""
    figures, challenger = TrainingFigures.model_validate(training.figures), evaluation.challenger
    return {
        "model": config.model,
        "version": number,
        "pipeline": pipeline,
        **{key: getattr(config.card, key) for key in Card.model_fields},
        "data": _data(training.inputs.get("preprocess")),
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
        "formats": [each.model_dump(include=_OF_FORMATS) for each in formats],
        "lineage": {name: entry.digest for name, entry in sorted(inputs.items())}
        | {name: entry.digest for name, entry in sorted(training.inputs.items())},
        "versions": training.fingerprint.versions,
    }


def write_card(folder: Path, card: Mapping[str, Any]) -> None:
    """Writes both files into a version's folder."""
    write_json(folder / JSON, card)
    write_whole(folder / MARKDOWN, _markdown(card).encode())


def _data(entry: Input | None) -> dict[str, Any] | None:
    """Returns the figures of the data set, or None if it is gone.

    The digest in the lineage still names it.
    """
    try:
        figures = DatasetFigures.model_validate(read_manifest(entry.uri).figures) if entry else None
    except DataError:
        return None
    return figures and {
        "num_examples": figures.num_examples,
        "labels": figures.labels,
        "num_rejected": figures.num_rejected,
    }


def _markdown(card: Mapping[str, Any]) -> str:
    training, evaluation, data = card["training"], card["evaluation"], card["data"]
    against = (
        f"version {evaluation['compared_with']}"
        if evaluation["compared_with"]
        else "no champion: it was the first"
    )
    parts = [
        f"# {card['model']}, version {card['version']}",
        f"Made by the pipeline `{card['pipeline']}`.",
        "## Intended use",
        _plain(card["intended_use"]) or _NOT_SAID,
        "## Limitations",
        _plain(card["limitations"]) or _NOT_SAID,
        "## Contact",
        _plain(card["contact"]) or _NOT_SAID,
        "## Data",
        _data_table(data) if data else "The data set is gone; its digest is in the lineage below.",
        "## Training",
        (
            f"`{training['model']}`, {training['num_parameters']:,} parameters, "
            f"input {' x '.join(map(str, training['input']))}, "
            f"{training['steps']:,} steps under `{training['strategy']}` "
            f"with {training['workers']} worker(s)."
        ),
        "## Evaluation",
        f"On {evaluation['num_examples']:,} test examples, against {against}.",
        _table(
            ("metric", "value"),
            [(name, f"{value:.4f}") for name, value in evaluation["metrics"].items()],
        ),
        _table(
            ("class", "precision", "recall", "F1", "examples"),
            [
                (
                    each["name"],
                    *(f"{each[key]:.4f}" for key in ("precision", "recall", "f1")),
                    each["support"],
                )
                for each in evaluation["classes"]
            ],
        ),
        "The gate:",
        "\n".join(f"- {_plain(text)}" for text in evaluation["gate"]),
        "## Formats",
        _table(
            (
                "format",
                "file",
                "bytes",
                "same answers as the trained model",
                "largest difference",
                "allowed",
            ),
            [
                (
                    each["name"],
                    each["path"] or "this folder",
                    f"{each['num_bytes']:,}",
                    f"{each['top1_agreement']:.1%} of {each['num_checked']}",
                    f"{each['max_difference']:.2g}",
                    f"{each['tolerance']:g}",
                )
                for each in card["formats"]
            ],
        ),
        "## Lineage",
        _table(("made from", "digest"), card["lineage"].items()),
        _table(("package", "version"), card["versions"].items()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _data_table(data: Mapping[str, Any]) -> str:
    splits = list(data["num_examples"])
    names = sorted({name for labels in data["labels"].values() for name in labels})
    rows = [("all", *(f"{data['num_examples'][split]:,}" for split in splits))]
    rows += [
        (name, *(data["labels"].get(split, {}).get(name, 0) for split in splits)) for name in names
    ]
    return (
        _table(("class", *splits), rows)
        + f"\n\nKept out because it was unusable: {data['num_rejected']:,}."
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [f"| {' | '.join(_plain(cell) for cell in row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines]) if lines else ""


def _plain(value: Any) -> str:
    """Escapes text for Markdown and HTML, because class names come from untrusted folder names."""
    text = str(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#!~])", r"\\\1", " ".join(text.split()))
