"""Checks that the published model is the model that was trained, in every format.

Training leaves real test examples, and the probabilities that the model in memory gave for them.
The export job is a process that has never built the model. There, each signature of the SavedModel,
every format that was made of it, and the service of `trainyard serve` must give the same
probabilities.

Legend: N images, H W C one image, K classes.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import statistics
import timeit
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipeline_ops.artifacts.results import (
    MIN_SCORE,
    REFERENCE_EXAMPLES,
    REFERENCE_OUTPUTS,
    FormatFigures,
)
from pipeline_ops.config.export import Export
from pipeline_ops.config.model_catalogue import Task
from pipeline_ops.errors import DataError
from pipeline_ops.export.formats import FORMAT_PATHS, PredictFunction, load_format
from pipeline_ops.export.serving.model_reloader import LoadedModel, predict
from pipeline_ops.export.serving.rest import BadRequest
from pipeline_ops.input.saved_model_client import (
    DETECTOR_OUTPUTS,
    SavedModelClient,
    pack_detections,
    read_encoded_batches,
    read_serialized,
)
from pipeline_ops.storage.read_errors import make_read_error

_BATCH = 64
_NUM_SERVED = 16
_OUTPUTS: dict[Task, Sequence[str]] = {
    "classification": ("probabilities", "classes"),
    "detection": DETECTOR_OUTPUTS,
}
_SCORE = 4  # the index in box, score and class
_TIMED_CALLS, _UNTIMED_CALLS = 30, 3


@dataclasses.dataclass(frozen=True)
class AgreementRule:
    """The allowed difference of a format from the trained model, and its config keys."""

    tolerance: float
    top1_agreement: float
    keys: tuple[str, str]

    @classmethod
    def for_format(cls, name: str, config: Export, task: Task = "classification") -> AgreementRule:
        if name == "tflite_int8":
            return cls(
                config.int8.tolerance,
                config.int8.top1_agreement,
                ("export.int8.tolerance", "export.int8.top1_agreement"),
            )
        if task == "detection" and name != "saved_model":
            return cls(
                config.tolerance, config.box_agreement, ("export.tolerance", "export.box_agreement")
            )
        return cls(config.tolerance, 1.0, ("export.tolerance", "the format"))


class Agreement(NamedTuple):
    """The number of compared images, the largest difference, and the share of equal answers."""

    num_checked: int
    max_difference: float
    top1_agreement: float


class References:
    """The answers of the trained model, and a SavedModel that has to give the same ones.

    `training` is the folder of a training's artifact, `folder` the SavedModel. Raises DataError if
    a file cannot be read or loaded.
    """

    def __init__(
        self, training: Path, folder: Path, num_classes: int, task: Task = "classification"
    ):
        self.task = task
        try:
            self.outputs = np.load(training / REFERENCE_OUTPUTS, allow_pickle=False)
        except (OSError, ValueError) as error:
            problem = f"cannot read {training / REFERENCE_OUTPUTS}"
            raise make_read_error(problem, error, ". Train again.") from error
        self.model = SavedModelClient(folder, "the candidate", num_classes, _OUTPUTS[task])
        examples, predictions = str(training / REFERENCE_EXAMPLES), []
        self.encoded: list[bytes] = []
        for batch in read_encoded_batches([examples], _BATCH):  # names a bad image
            if task == "detection":
                predictions.append(pack_detections(self.model.predict(batch)))
            else:
                predictions.append(self.model.classify(batch)[0])
            self.encoded += batch.images.tolist()
        self._predictions = np.concatenate(predictions or [np.empty((0, num_classes))])
        self.serialized = read_serialized(examples)

    def pack(self, prediction: Mapping[str, np.ndarray]) -> np.ndarray:
        """Packs an answer in the form of the reference outputs."""
        if self.task == "detection":
            return pack_detections(prediction)
        return np.asarray(prediction["probabilities"], np.float32)

    def predict(self, image_bytes: np.ndarray) -> dict[str, np.ndarray]:
        return self.model.call_signature("serving_default", image_bytes=image_bytes)

    def check_saved_model(self, rule: AgreementRule) -> Agreement:
        """Checks every signature that answers."""
        decoded = self.decode_images()
        images = self.model.call_signature("images", images=decoded)
        examples = self.model.call_signature("examples", examples=np.array(self.serialized))
        answers = {
            "the SavedModel": self._predictions,
            "the signature images of the SavedModel": self.pack(images),
            "the signature examples of the SavedModel": self.pack(examples),
        }
        if self.task == "detection":
            answers["the signature detection_api of the SavedModel"] = self._detect_as_api(decoded)
        found = [compare(self.outputs, each, rule, name) for name, each in answers.items()]
        return max(found, key=lambda agreement: agreement.max_difference)

    def _detect_as_api(self, images_NHWC: np.ndarray) -> np.ndarray:
        pixels = np.broadcast_to(np.rint(images_NHWC).astype(np.uint8), (*images_NHWC.shape[:3], 3))
        found = self.model.call_signature("detection_api", input_tensor=pixels)
        boxes, scores = found["detection_boxes"], found["detection_scores"]
        classes = np.where(scores > 0, found["detection_classes"] - 1, 0)
        return pack_detections({"boxes": boxes, "scores": scores, "classes": classes})

    def decode_images(self) -> np.ndarray:
        """Returns the images as the model takes them: float32 [N, H, W, C]."""
        return self.model.call_signature("decode", image_bytes=np.array(self.encoded))["images"]


def check_format(
    name: str, references: References, folder: Path, config: Export, seconds: float = 0.0
) -> FormatFigures:
    """Checks one format of a version in a folder, or its SavedModel. `seconds` took the conversion.

    Raises DataError if it is not the trained model.
    """
    rule = AgreementRule.for_format(name, config, references.task)
    infer: PredictFunction
    if name == "saved_model":
        path, files = "", [file for file in folder.rglob("*") if file.is_file()]
        agreement = references.check_saved_model(rule)
        infer, image = references.predict, np.array(references.encoded[:1])
    else:
        path, files = FORMAT_PATHS[name], [folder / FORMAT_PATHS[name]]
        infer, images = load_format(name, files[0]), references.decode_images()
        answers, image = references.pack(infer(images)), images[:1]
        agreement = compare(references.outputs, answers, rule, f"the format {name}")
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


def check_serving(folder: Path, references: References, config: Export) -> None:
    """Predicts some of the references as `trainyard serve` does, in rows and in columns.

    Raises DataError if the version cannot be loaded, or if it gives other answers than training.
    """
    images = [
        {"b64": base64.b64encode(image).decode()} for image in references.encoded[:_NUM_SERVED]
    ]
    model = LoadedModel(1, folder, [], references.model.loaded)
    answers = []
    for body in ({"instances": images}, {"inputs": {"image_bytes": images}}):
        try:
            # Through JSON, as a client gets it.
            answers.append(json.loads(json.dumps(predict(model, json.dumps(body).encode()))))
        except BadRequest as error:
            raise DataError(
                f"a server refuses the reference examples: {error}. Nothing was published."
            ) from error
    rows, columns = answers[0]["predictions"], answers[1]["outputs"]
    for found in ({name: [row[name] for row in rows] for name in rows[0]}, columns):
        predictions = {name: np.array(values) for name, values in found.items()}
        compare(
            references.outputs[:_NUM_SERVED],
            references.pack(predictions),
            AgreementRule.for_format("saved_model", config),
            "the model behind a server",
        )


def compare(
    references: np.ndarray, predictions: np.ndarray, rule: AgreementRule, name: str
) -> Agreement:
    """Compares probabilities (float32 [N, K]) or detections (float32 [N, D, 6]).

    Raises DataError if a number differs by more than the rule allows, or if too many answers do.
    """
    if references.shape != predictions.shape or not len(references):
        raise DataError(
            f"{name}: {REFERENCE_OUTPUTS} has the shape {references.shape}, "
            f"{REFERENCE_EXAMPLES} gives {predictions.shape}. Train again."
        )
    if references.ndim == 3:
        agreement = _compare_detections(references, predictions, rule)
    else:
        agreement = Agreement(
            len(references),
            float(np.abs(references - predictions).max()),
            float(np.mean(references.argmax(axis=-1) == predictions.argmax(axis=-1))),
        )
    if not (  # refuses NaN as well
        agreement.max_difference <= rule.tolerance
        and agreement.top1_agreement >= rule.top1_agreement
    ):
        raise DataError(
            f"{name} is not the model that was trained: "
            f"on {agreement.num_checked} test images a number differs "
            f"by {agreement.max_difference:.3g}, {rule.keys[0]} allows {rule.tolerance:g}, "
            f"and {agreement.top1_agreement:.1%} of the answers are the same, "
            f"{rule.keys[1]} requires {rule.top1_agreement:.1%}. Nothing was published."
        )
    return agreement


def _compare_detections(
    references: np.ndarray, predictions: np.ndarray, rule: AgreementRule
) -> Agreement:
    """Compares sets of detections.

    Each detection of one set must be in the other set. Its position does not count, because
    rounding swaps detections with nearly equal scores. A detection may be missing if its score is
    barely sufficient.

    Rounding also decides which of two almost equal boxes survives non-maximum suppression. A format
    may therefore differ in some images (`rule.top1_agreement`). The largest difference is measured
    on the others.
    """
    differences = np.array(
        [
            max(
                _find_largest_distance(first, second, rule.tolerance),
                _find_largest_distance(second, first, rule.tolerance),
            )
            for first, second in zip(references, predictions, strict=True)
        ]
    )
    agrees = differences <= rule.tolerance
    compared = differences[agrees] if rule.top1_agreement < 1 and agrees.any() else differences
    return Agreement(len(references), float(compared.max()), float(agrees.mean()))


def _find_largest_distance(
    detections_D6: np.ndarray, other_D6: np.ndarray, tolerance: float
) -> float:
    """Returns the largest distance between a detection and its nearest one in the other set.

    A detection of another class is at least 1 away.
    """
    found = detections_D6[detections_D6[:, _SCORE] > 0]
    # The last score of a full list, or the minimum that counts.
    min_score = found[:, _SCORE].min() if len(found) == len(detections_D6) else MIN_SCORE
    certain = found[found[:, _SCORE] > min_score + tolerance]
    if not len(certain):
        return 0.0
    if not (other_D6[:, _SCORE] > 0).any():
        return 1.0
    return float(np.abs(certain[:, None] - other_D6[None]).max(axis=-1).min(axis=-1).max())
