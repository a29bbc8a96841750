"""Sentences about annotations that are valid, and yet may not be what their owner means.

They are no errors: an image without boxes may be background, or may have lost them. `init`,
`validate` and the pages of a data set show them. A split that is too small is also named where its
figures are: by the training and by the evaluation.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from pipeline_ops.contract.dataset import SPLITS
from pipeline_ops.contract.results import COCO_DETECTIONS, choose_max_detections

_CROWDS = "crowds (iscrowd: 1), which a detector does not learn from"
_MAX_NAMED = 5
_SEPARATORS = re.compile(r"[\s_]+")


def describe_empty_images(empty: Mapping[str, int], images: Mapping[str, int]) -> list[str]:
    """`empty` and `images` are numbers by split."""
    if not sum(empty.values()):
        return []
    return [f"{_count(empty, images, 'image has', 'images have')} no boxes{_list(empty, images)}"]


def describe_counts(labels: Mapping[str, Mapping[str, int]], boxes: Mapping[str, int]) -> list[str]:
    """Describes crowds, and classes of similar names.

    `labels` counts examples, or boxes without crowds, by split and class. `boxes` counts all boxes
    by split.
    """
    sentences = _describe_similar_names(sum(map(Counter, labels.values()), Counter[str]()))
    crowds = {split: max(0, boxes[split] - sum(labels[split].values())) for split in boxes}
    if sum(crowds.values()):
        number = _count(crowds, boxes, "box is", "boxes are")
        sentences.append(f"{number} {_CROWDS}{_list(crowds, boxes)}")
    return sentences


def describe_unlearned(
    labels: Mapping[str, Mapping[str, int]], class_names: Sequence[str]
) -> list[str]:
    """Names the classes without a training example. `labels` are as for `describe_counts`."""
    missing = [name for name in class_names if not labels["train"].get(name)]
    if not missing:
        return []
    named, number = ", ".join(missing[:_MAX_NAMED]), len(missing)
    more = f" and {number - _MAX_NAMED} more classes" if number > _MAX_NAMED else ""
    tested = sum(labels["test"].get(name, 0) for name in missing)
    return [
        f"No training example of {named}{more}, so the model never learns to find "
        f"{'it' if number == 1 else 'them'}" + f", and misses the {tested:,} in test" * bool(tested)
    ]


def describe_untested(
    labels: Mapping[str, Mapping[str, int]], class_names: Sequence[str]
) -> list[str]:
    """Names the learned classes without a test example. `labels` are as for `describe_counts`."""
    missing = [
        name for name in class_names if labels["train"].get(name) and not labels["test"].get(name)
    ]
    if not missing or not sum(labels["test"].values()):
        return []
    named, number = ", ".join(missing[:_MAX_NAMED]), len(missing)
    more = f" and {number - _MAX_NAMED} more classes" if number > _MAX_NAMED else ""
    return [f"No test example of {named}{more}, so no figure says how well the model finds it"]


_LOSS, _MIN_LOST = 0.5, 10


def describe_losses(
    labels: Mapping[str, Mapping[str, int]], before: Mapping[str, Mapping[str, int]]
) -> list[str]:
    """Names the classes that have lost half of their examples, and ten or more of them.

    `labels` and `before` are as for `describe_counts`, of a data set and the previous one.
    """
    ours, theirs = (sum(map(Counter, each.values()), Counter[str]()) for each in (labels, before))
    lost = sorted(
        (ours[name] / count, name)
        for name, count in theirs.items()
        if count - ours[name] >= max(_MIN_LOST, _LOSS * count)
    )
    sentences = [
        f"Class {name} has lost {1 - share:.0%} since the previous data set: {theirs[name]:,} "
        f"before, {ours[name]:,} now"
        for share, name in lost[:_MAX_NAMED]
    ]
    more = [f"{len(lost) - _MAX_NAMED} more classes have lost half or more"]
    return sentences + more * (len(lost) > _MAX_NAMED)


def describe_moves(came: int, left: int) -> str:
    """Says how many images came and left since the previous data set."""
    if not came and not left:
        return "no image came or left"
    return f"{came:,} image{'' if came == 1 else 's'} came, {left:,} left"


def describe_doubles(doubles: Mapping[str, int], boxes: Mapping[str, int]) -> list[str]:
    """`doubles` are boxes by split that nearly equal another one of their class and image."""
    if not sum(doubles.values()):
        return []
    number = _count(doubles, boxes, "box nearly equals", "boxes nearly equal")
    return [
        f"{number} another one of its class and image{_list(doubles, boxes)}, as one drawn twice"
    ]


FEW_IMAGES = 30
"""A split with fewer images decides by chance.

Of 30 images with 27 right answers, the 95 % interval of the accuracy (Wilson's) is 0.74 to 0.97:
wider than the differences between models that are compared.
"""
_DECIDED = {
    "validation": ("the best epoch and an early stop follow", "preprocess.split.validation"),
    "test": ("the gate and the report follow", "preprocess.split.test"),
}


def describe_small_splits(num_images: Mapping[str, int]) -> list[str]:
    """Names the splits whose figures are a matter of chance. `num_images` are numbers by split."""
    return [
        f"Only {count} image{' is' if count == 1 else 's are'} in the {split} split, fewer than "
        f"{FEW_IMAGES}: one changes a figure by {1 / count:.0%}, so {follow} chance. Add images, "
        f"or raise {key}"
        for split, (follow, key) in _DECIDED.items()
        if 0 < (count := num_images.get(split, 0)) < FEW_IMAGES
    ]


def explain_crowds(number: int, what: str = "") -> str:
    """Says why there is nothing to learn from, with the cure."""
    return (
        f"{number:,} of {number:,} boxes{what} are {_CROWDS}. Set iscrowd to 0 where a box is one "
        "object, or annotate the objects one by one."
    )


def _count(part: Mapping[str, int], whole: Mapping[str, int], one: str, more: str) -> str:
    total = sum(whole.values())
    return f"{sum(part.values()):,} of {total:,} {one if total == 1 else more}"


def _list(part: Mapping[str, int], whole: Mapping[str, int]) -> str:
    shares = [f"{split} {part[split]:,} of {whole[split]:,}" for split in SPLITS if part.get(split)]
    return f" ({', '.join(shares)})"


def _describe_similar_names(counts: Mapping[str, int]) -> list[str]:
    """Names the classes that a person may mean as one. `counts` are examples or boxes."""
    similar: dict[str, list[str]] = defaultdict(list)
    for name in sorted(counts):
        text = unicodedata.normalize("NFKC", name).casefold()
        similar[_SEPARATORS.sub("", text)].append(name)
    groups = [names for names in similar.values() if len(names) > 1]
    sentences = [_describe_group(names, counts) for names in groups[:_MAX_NAMED]]
    more = [f"{len(groups) - _MAX_NAMED} more classes have similar names"]
    return sentences + more * (len(groups) > _MAX_NAMED)


def _describe_group(names: Sequence[str], counts: Mapping[str, int]) -> str:
    first, *rest = (f"{name} ({counts[name]:,})" for name in names)
    difference = "case, blanks, underscores or the form of letters"
    if len({name.casefold() for name in names}) == 1:
        difference = "case"
    elif len({_SEPARATORS.sub("", name) for name in names}) == 1:
        difference = "blanks or underscores"
    return f"{first} and {' and '.join(rest)} differ in {difference} only"


def describe_most_boxes(image: str, most_boxes: int, limit: int | None = None) -> list[str]:
    """`limit` is `train.model_parameters.max_detections`. `image` begins the sentence."""
    if limit is None and most_boxes > COCO_DETECTIONS:
        return [
            f"{image} has {most_boxes:,} boxes. A model answers up to "
            f"{choose_max_detections(most_boxes):,} (train.model_parameters.max_detections: null), "
            f"and as many count in its figures, instead of COCO's {COCO_DETECTIONS}"
        ]
    if limit is not None and most_boxes > limit:
        return [
            f"{image} has {most_boxes:,} boxes, and train.model_parameters.max_detections is "
            f"{limit:,}: the model cannot find the others. Raise it, or set it to null"
        ]
    return []
