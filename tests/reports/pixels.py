"""Compares what the product reads with the pixels: boxes, labels, and objects without a box."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
from reports.drawing import COLOURS, Box

from beam_jobs.io.raw import read_raw
from beam_jobs.stages import run_stages
from beam_jobs.stages.stage import Example, Rejected
from pipeline_ops.cli.arguments import load_checked, read_source

MIN_AREA, MAX_DISTANCE = 12, 90
NAMES = {
    "red": {"cat", "CAT", "Cat", "Kätzchen", "猫", "焊点", "Äpfel", "0", "/m/01yrx"},
    "blue": {"dog", "DOG", "Hündchen", "狗", "Öl", "1", "/m/0bt9lr"},
    "green": {"bird"},
}
"""The classes of a colour. A case may have others."""


@dataclass
class Findings:
    """Numbers of boxes, or of images with a label. `missed` are objects without a box.

    `rejected` are the reasons of rejects, with their details.
    """

    right: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    missed: int = 0
    doubled: int = 0
    rejected: dict[str, str] = field(default_factory=dict)
    num_rejected_images: int = 0
    splits: Counter[str | None] = field(default_factory=Counter)


def find_objects(image: np.ndarray) -> list[Box]:
    """The rectangles of one colour, each with the name of its colour as its label."""
    found = []
    for name, colour in COLOURS.items():
        if image.shape[2] == 1:
            break
        near = np.abs(image.astype(int) - colour).max(axis=2) < MAX_DISTANCE
        _, _, figures, _ = cv2.connectedComponentsWithStats(near.astype(np.uint8))
        for x, y, width, height, area in figures[1:].tolist():
            if area >= MIN_AREA:
                found.append(Box(name, x, y, x + width, y + height))
    return found


def compute_ious(corners: tuple[float, ...], objects: list[Box]) -> np.ndarray:
    """The overlap of one box with each object, intersection over union."""
    others = np.array([each.corners for each in objects], float).reshape(-1, 4)
    low, high = np.maximum(corners[:2], others[:, :2]), np.minimum(corners[2:], others[:, 2:])
    common = (high - low).clip(0).prod(1)
    areas = (others[:, 2:] - others[:, :2]).prod(1)
    return common / (areas + (corners[2] - corners[0]) * (corners[3] - corners[1]) - common)


def check_config(
    file: Path, more: Mapping[str, str] | None = None, min_iou: float = 0.75
) -> Findings:
    """Reads a data set as the preprocess job does, and looks at all of its pixels.

    `more` has the colours of further classes, by the beginnings of their names.
    """
    source = read_source(load_checked(file))
    colours = {name: _find_colour(name, more or {}) for name in source.class_names}
    findings = Findings()
    for each in source.found.rejected:
        findings.rejected[each.reason] = f"{each.key}: {each.detail}"
        findings.num_rejected_images += "#box" not in each.key
    for record in source.found.records:
        example = record.to_example(read_raw(record.file, source.folder))
        try:
            results = run_stages(source.stages, example, Counter(), Counter())
        except Rejected as reject:
            findings.rejected[reject.reason] = f"{record.key}: {reject.detail}"
            findings.num_rejected_images += 1
            continue
        findings.splits[record.split] += 1
        for result in results:
            objects = find_objects(result.image)
            if result.boxes is None:
                _check_label(result.label, objects, colours, findings)
            else:
                _check_boxes(result, objects, colours, min_iou, findings)
    return findings


def _find_colour(label: str, more: Mapping[str, str]) -> str:
    found = [colour for start, colour in more.items() if label.startswith(start)]
    found += [colour for colour, names in NAMES.items() if label in names]
    return found[0] if found else f"none of {label}"


def _check_label(
    label: str, objects: list[Box], colours: Mapping[str, str], findings: Findings
) -> None:
    """A grey picture may have any label."""
    seen = {each.label for each in objects} or {colours[label]}
    if colours[label] in seen:
        findings.right += 1
    else:
        findings.wrong[f"label {label} of a {' and '.join(map(str, seen))} picture"] += 1


def _check_boxes(
    result: Example,
    objects: list[Box],
    colours: Mapping[str, str],
    min_iou: float,
    findings: Findings,
) -> None:
    used: Counter[Box] = Counter()
    for box in result.boxes or ():
        corners = box.xmin, box.ymin, box.xmax, box.ymax
        overlaps = compute_ious(corners, objects)
        overlap = overlaps.max(initial=0)
        if overlap < min_iou:
            findings.wrong[f"box of {box.label}, IoU {overlap:.1f}"] += 1
            continue
        best = objects[overlaps.argmax()]
        if colours[box.label] != best.label:
            findings.wrong[f"box of {box.label} around {best.label}"] += 1
        else:
            findings.right += 1
            used[best] += 1
    findings.missed += sum(each not in used for each in objects)
    findings.doubled += used.total() - len(used)
