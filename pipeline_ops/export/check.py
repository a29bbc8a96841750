"""Checks that the published model is the model that was trained, in every format.

The export job is a process that has never built the model. There, each signature of the SavedModel,
every format that was made of it, and the service of `trainyard serve` must give the answers that
training left (`served/references.py`), to the pixels of the data set and to raw files.
"""

from __future__ import annotations

import base64
import json
import statistics
import timeit
from pathlib import Path

import numpy as np

from pipeline_ops.config.export import Export
from pipeline_ops.config.model_catalogue import Task
from pipeline_ops.contract.results import FormatFigures
from pipeline_ops.errors import DataError
from pipeline_ops.export.formats import FORMAT_PATHS, PredictFunction, load_format
from pipeline_ops.served import contract
from pipeline_ops.served.http.model_reloader import LoadedModel, predict
from pipeline_ops.served.http.rest import BadRequest
from pipeline_ops.served.references import AgreementRule, References, check_agreement

_NUM_SERVED = 16
_TIMED_CALLS, _UNTIMED_CALLS = 30, 3


def choose_rule(name: str, config: Export, task: Task = "classification") -> AgreementRule:
    """The allowed difference of a format from the trained model."""
    if name == "tflite_int8":
        return AgreementRule(
            config.int8.tolerance,
            config.int8.top1_agreement,
            ("export.int8.tolerance", "export.int8.top1_agreement"),
        )
    if task == "detection" and name != "saved_model":
        keys = "export.tolerance", "export.box_agreement"
        return AgreementRule(config.tolerance, config.box_agreement, keys)
    return AgreementRule(config.tolerance, 1.0, ("export.tolerance", "the format"))


def check_format(
    name: str, references: References, folder: Path, config: Export, seconds: float = 0.0
) -> FormatFigures:
    """Checks one format of a version in a folder, or its SavedModel. `seconds` took the conversion.

    Raises DataError if it is not the trained model.
    """
    rule = choose_rule(name, config, references.task)
    infer: PredictFunction
    if name == "saved_model":
        path, files = "", [file for file in folder.rglob("*") if file.is_file()]
        agreement = references.check_prepared(rule)
        infer, image = _serve_first(references)
    else:
        path, files = FORMAT_PATHS[name], [folder / FORMAT_PATHS[name]]
        infer, image = load_format(name, files[0]), references.images[:1]
        answers = references.pack(infer(references.images))
        agreement = check_agreement(references.outputs, answers, rule, f"the format {name}")
    num_calls = _UNTIMED_CALLS + _TIMED_CALLS
    durations = timeit.repeat(lambda: infer(image), number=1, repeat=num_calls)
    return FormatFigures(
        name=name,
        path=path,
        num_bytes=sum(file.stat().st_size for file in files),
        **agreement._asdict(),
        tolerance=rule.tolerance,
        min_top1_agreement=rule.top1_agreement,
        latency_seconds=statistics.median(durations[_UNTIMED_CALLS:]),
        seconds=seconds,
    )


def _serve_first(references: References) -> tuple[PredictFunction, np.ndarray]:
    """How the SavedModel is called, and its input for one image: a raw file, if it takes files."""
    model = references.model
    if not model.takes_files:
        return lambda images: model.call_signature(contract.IMAGES, images=images), (
            references.images[:1]
        )
    files = [record.file for record, _ in references.files[:1]] or references.encoded[:1]
    return lambda files: model.call_signature(
        contract.SERVING_DEFAULT, image_bytes=files
    ), np.array(files, object)


def check_serving(folder: Path, references: References, config: Export) -> None:
    """Predicts some of the references as `trainyard serve` does.

    Raises DataError if the version cannot be loaded, or if it gives other answers than it gives in
    this process.
    """
    files = [record.file for record, _ in references.files[:_NUM_SERVED]]
    if not files or references.preprocessing.splits and not references.model.takes_files:
        return
    wanted = references.answer_files(files)
    images = [{"b64": base64.b64encode(file).decode()} for file in files]
    model = LoadedModel(1, folder, [], references.model.loaded)
    try:
        # Through JSON, as a client gets it.
        answer = json.loads(json.dumps(predict(model, json.dumps({"instances": images}).encode())))
    except BadRequest as error:
        raise DataError(
            f"a server refuses the reference examples: {error}. Nothing was published."
        ) from error
    rows = answer["predictions"]
    predictions = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    check_agreement(
        wanted,
        references.pack(predictions),
        choose_rule("saved_model", config),
        "the model behind a server",
    )
