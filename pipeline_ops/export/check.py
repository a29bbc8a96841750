"""Checks that the published model is the model that was trained, in every format.

Training leaves real test examples, and the probabilities that the model in memory gave for them.
The export job is a process that has never built the model. There, the SavedModel must give the same
probabilities through each of its signatures, and so must every format that was made of it.

Legend: N images, H W C one image, K classes.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from pipeline_ops.artifacts.results import (
    LEAST_SCORE,
    REFERENCE_EXAMPLES,
    REFERENCE_OUTPUTS,
    FormatFigures,
)
from pipeline_ops.config.export import Export
from pipeline_ops.config.model_catalogue import Task
from pipeline_ops.errors import DataError
from pipeline_ops.export.formats import PATHS, load_format
from pipeline_ops.input import detections
from pipeline_ops.input.saved_model_client import ServedModel, read_encoded, read_serialized
from pipeline_ops.storage.read_errors import unreadable

_BATCH = 64
_SCORE = 4  # the index in box, score and class
_TIMED_CALLS, _UNTIMED_CALLS = 30, 3


@dataclasses.dataclass(frozen=True)
class AgreementRule:
    """The allowed difference of a format from the trained model, and its config keys."""

    tolerance: float
    top1_agreement: float
    keys: tuple[str, str]

    @classmethod
    def of(cls, name: str, config: Export, task: Task = "classification") -> AgreementRule:
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


@dataclasses.dataclass(frozen=True)
class Agreement:
    """The agreement of two sets of probabilities for the same images.

    It has the number of images, the largest difference, and the share of equal answers.
    """

    num_checked: int
    max_difference: float
    top1_agreement: float


class References:
    """The answers of the trained model, and a SavedModel that has to give the same ones.

    Args:
      training: the folder of a training's artifact.
      folder: the SavedModel.
      num_classes: K.
      task: the task of the model.

    Raises:
      DataError: a file cannot be read or loaded.
    """

    def __init__(
        self, training: Path, folder: Path, num_classes: int, task: Task = "classification"
    ):
        self.task, self.outputs = task, _read_outputs(training / REFERENCE_OUTPUTS)
        file = str(training / REFERENCE_EXAMPLES)
        if task == "detection":
            self.model = ServedModel(folder, "the candidate", num_classes, detections.OUTPUTS)
            batches = [
                (batch, self.packed(self.model.detect(batch)))
                for batch in read_encoded([file], _BATCH)
            ]
        else:
            self.model = ServedModel(folder, "the candidate", num_classes)
            batches = [
                (batch, self.model.classify(batch)[0]) for batch in read_encoded([file], _BATCH)
            ]  # reads the whole file, names a bad image
        self.encoded = [image for batch, _ in batches for image in batch.images]
        self._answers = (
            np.concatenate([answers for _, answers in batches])
            if batches
            else np.empty((0, num_classes), np.float32)
        )
        self.serialized = read_serialized(file)

    def packed(self, answer: Mapping[str, np.ndarray]) -> np.ndarray:
        """Packs an answer in the form of the reference outputs."""
        return (
            detections.pack(answer)
            if self.task == "detection"
            else np.asarray(answer["probabilities"], np.float32)
        )

    def check_saved_model(self, rule: AgreementRule) -> Agreement:
        """Checks every signature that answers."""
        found = [compare(self.outputs, self._answers, rule, "the SavedModel")]
        answers = {
            "images": self.model.ask("images", images=self.images()),
            "examples": self.model.ask("examples", examples=np.array(self.serialized)),
        }
        found += [
            compare(
                self.outputs, self.packed(answer), rule, f"the signature {name} of the SavedModel"
            )
            for name, answer in answers.items()
        ]
        return max(found, key=lambda agreement: agreement.max_difference)

    def images(self) -> np.ndarray:
        """Returns the images as the model takes them: float32 [N, H, W, C]."""
        return self.model.ask("decode", image_bytes=np.array(self.encoded))["images"]


def check_saved_model(references: References, folder: Path, config: Export) -> FormatFigures:
    """Checks the SavedModel. Raises DataError if it is not the trained model."""
    rule, image = AgreementRule.of("saved_model", config), np.array(references.encoded[:1])
    agreement = references.check_saved_model(rule)
    num_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return _figures(
        "saved_model",
        "",
        num_bytes,
        rule,
        agreement,
        lambda: references.model.ask("serving_default", image_bytes=image),
        seconds=0.0,
    )


def check_format(
    name: str, references: References, folder: Path, config: Export, seconds: float
) -> FormatFigures:
    """Checks one format. Raises DataError if it is not the trained model."""
    rule, file, images = (
        AgreementRule.of(name, config, references.task),
        folder / PATHS[name],
        references.images(),
    )
    ask = load_format(name, file)
    agreement = compare(
        references.outputs, references.packed(ask(images)), rule, f"the format {name}"
    )
    return _figures(
        name, PATHS[name], file.stat().st_size, rule, agreement, lambda: ask(images[:1]), seconds
    )


def compare(
    references: np.ndarray, answers: np.ndarray, rule: AgreementRule, what: str
) -> Agreement:
    """Compares probabilities (float32 [N, K]) or detections (float32 [N, D, 6]).

    Raises:
      DataError: a number differs by more than the rule allows, or too many answers differ.
    """
    if references.shape != answers.shape or not len(references):
        raise DataError(
            f"{REFERENCE_OUTPUTS} has the shape {references.shape}, "
            f"{REFERENCE_EXAMPLES} gives {answers.shape}; train again"
        )
    agreement = (
        _agreement_of_detections(references, answers, rule)
        if references.ndim == 3
        else _agreement(references, answers)
    )
    if not (
        agreement.max_difference <= rule.tolerance
        and agreement.top1_agreement >= rule.top1_agreement
    ):  # refuses NaN, too
        raise DataError(
            f"{what} is not the model that was trained: "
            f"on {agreement.num_checked} test images a number differs "
            f"by {agreement.max_difference:.3g}, where {rule.keys[0]} allows {rule.tolerance:g}, "
            f"and {agreement.top1_agreement:.1%} of the answers are the same, "
            f"where {rule.keys[1]} asks for {rule.top1_agreement:.1%}; nothing was published"
        )
    return agreement


def _agreement(references: np.ndarray, answers: np.ndarray) -> Agreement:
    return Agreement(
        len(references),
        float(np.abs(references - answers).max()),
        float(np.mean(references.argmax(axis=-1) == answers.argmax(axis=-1))),
    )


def _agreement_of_detections(
    references: np.ndarray, answers: np.ndarray, rule: AgreementRule
) -> Agreement:
    """Compares sets of detections.

    Each detection of one set must be in the other set, in any position: if two have nearly the same
    score, either may come first. A detection with a score that is barely sufficient may be missing.

    If two boxes are almost equal, rounding decides which of them stays. So for a format that may
    differ in some images, the difference is that of the other images.
    """
    differences = np.array(
        [
            max(_farthest(one, other, rule.tolerance), _farthest(other, one, rule.tolerance))
            for one, other in zip(references, answers, strict=True)
        ]
    )
    agrees = differences <= rule.tolerance
    counted = differences[agrees] if rule.top1_agreement < 1 and agrees.any() else differences
    return Agreement(len(references), float(counted.max()), float(agrees.mean()))


def _farthest(detections_D6: np.ndarray, others_D6: np.ndarray, tolerance: float) -> float:
    """Returns the largest distance between a detection and its nearest one among the others.

    A detection of another class is at least 1 away.
    """
    found = detections_D6[detections_D6[:, _SCORE] > 0]
    least = (
        found[:, _SCORE].min() if len(found) == len(detections_D6) else LEAST_SCORE
    )  # the last score of a full list, or the least that counts
    surely = found[found[:, _SCORE] > least + tolerance]
    if not len(surely):
        return 0.0
    if not (others_D6[:, _SCORE] > 0).any():
        return 1.0
    return float(np.abs(surely[:, None] - others_D6[None]).max(axis=-1).min(axis=-1).max())


def _figures(
    name: str,
    path: str,
    num_bytes: int,
    rule: AgreementRule,
    agreement: Agreement,
    call: Callable[[], object],
    seconds: float,
) -> FormatFigures:
    return FormatFigures(
        name=name,
        path=path,
        num_bytes=num_bytes,
        num_checked=agreement.num_checked,
        max_difference=agreement.max_difference,
        tolerance=rule.tolerance,
        top1_agreement=agreement.top1_agreement,
        min_top1_agreement=rule.top1_agreement,
        latency_seconds=_latency_seconds(call),
        seconds=seconds,
    )


def _latency_seconds(call: Callable[[], object]) -> float:
    """Returns the median of some calls, after some untimed calls."""
    taken = []
    for _ in range(_UNTIMED_CALLS + _TIMED_CALLS):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[_UNTIMED_CALLS:])


def _read_outputs(path: Path) -> np.ndarray:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise unreadable(f"{path}: can't be read", error, "; train again") from error
