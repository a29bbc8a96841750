"""The published version in the page and the figures of the evaluation.

The evaluation's own page is part of an artifact that never changes, and exists before anything is
published. Export writes the whole page once more, with a section on the version and its formats in
the place that is reserved for it. So a run has one page, which is complete at any time.
"""

from __future__ import annotations

from pathlib import Path

from pipeline_ops.artifacts.results import METRICS, PUBLICATION, REPORT, ModelFigures
from pipeline_ops.config.model_catalogue import Task
from pipeline_ops.errors import DataError
from pipeline_ops.pages.page import render_part
from pipeline_ops.storage.local_files import read_json, write_atomically, write_json

_FORMAT_TITLES = {
    "saved_model": "SavedModel",
    "tflite": "TFLite",
    "tflite_int8": "TFLite, eight bits",
    "onnx": "ONNX",
}


def write_report(
    folder: Path, evaluation: Path, task: Task, model: ModelFigures, outcome: str
) -> None:
    """Writes both files of a run.

    Args:
      folder: the folder of the artifact that is being made.
      evaluation: the folder of the evaluation's artifact.
      task: the task of the model.
      model: the published version.
      outcome: the outcome of the promotion, for people: "version 3 is in service".

    Raises:
      DataError: the evaluation's page has no place for the section.
    """
    page = (evaluation / REPORT).read_text(encoding="utf-8")
    if page.count(PUBLICATION) != 1:
        raise DataError(
            f"{evaluation / REPORT} has no place for the publication. Run the evaluation again."
        )
    section = render_part(
        Path(__file__).with_name("publication.html"),
        model=model,
        outcome=outcome,
        names=_FORMAT_TITLES,
        is_detector=task == "detection",
    )
    write_atomically(folder / REPORT, page.replace(PUBLICATION, section).encode())
    write_json(
        folder / METRICS,
        {
            **read_json(evaluation / METRICS),
            "publication": {"outcome": outcome, **model.model_dump(mode="json")},
        },
    )
