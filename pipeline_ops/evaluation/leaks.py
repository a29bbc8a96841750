"""Leaks of the test split: test images that are also in a training split.

Equal images are raw files with the same bytes, according to the data set's index. Preprocessing
finds nearly equal images if `preprocess.duplicates: remove_near` is set.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pipeline_ops.artifacts.dataset import INDEX, IndexEntry, iterate_index
from pipeline_ops.artifacts.layout import find_input
from pipeline_ops.artifacts.manifest import Input, read_manifest
from pipeline_ops.errors import DataError
from pipeline_ops.evaluation.inputs import Champion, Dataset
from pipeline_ops.jobs.local_inputs import fetch_input
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.storage.store_path import StorePath

_MAX_NAMED_LEAKS = 3


@dataclasses.dataclass(frozen=True)
class Leaks:
    """The numbers of test examples with an equal image in the training split.

    One number is for the data set's training split, the other one for the champion's. A number is
    None if it is unknown: the data set has no index, there is no champion, or the champion's
    training data is gone.
    """

    challenger: int | None
    champion: int | None


def find_leaks(dataset: Dataset, champion: Champion | None, allowed: int, root: StorePath) -> Leaks:
    """Counts the test images that are also in a training split.

    The champion's training data is looked for below the present storage root first.

    Raises:
      DataError: the challenger was trained on more test images than are allowed. The message names
        the first of them.
    """
    index = _find_index(dataset.uri)
    if index is None:
        return Leaks(None, None)
    tests = {each.content: each for each in iterate_index(index) if _has_examples(each, "test")}
    leaked = _find_in_training(tests, index)
    if len(leaked) > allowed:
        pairs = ", ".join(
            f"{tests[record.content].key} equals {record.key}"
            for record in list(leaked.values())[:_MAX_NAMED_LEAKS]
        )
        raise DataError(
            f"{dataset.uri}: {len(leaked)} test image{'s are' if len(leaked) != 1 else ' is'} "
            f"also in the training split, evaluate.allowed_leaks is {allowed}: "
            f"{pairs}{', ...' if len(leaked) > _MAX_NAMED_LEAKS else ''}. "
            "Set preprocess.duplicates to remove_exact."
        )
    champion_index = _find_champion_index(champion, root) if champion else None
    return Leaks(
        len(leaked),
        None if champion_index is None else len(_find_in_training(tests, champion_index)),
    )


def _find_in_training(tests: dict[str, IndexEntry], index: Path) -> dict[str, IndexEntry]:
    """Returns the first training record that equals a test record, by content."""
    found: dict[str, IndexEntry] = {}
    for record in iterate_index(index):
        if record.content in tests and _has_examples(record, "train"):
            found.setdefault(record.content, record)
    return found


def _has_examples(entry: IndexEntry, split: str) -> bool:
    return entry.split == split and entry.num_examples > 0


def _find_index(dataset_uri: str) -> Path | None:
    dataset = fetch_input(Input(uri=dataset_uri, digest=""), lambda path: path == INDEX)
    path = Path(dataset.uri).parent / INDEX
    return path if path.is_file() else None


def _find_champion_index(champion: Champion, root: StorePath) -> Path | None:
    try:
        training = read_manifest(open_path(find_input(champion.manifest.inputs["train"], root).uri))
        return _find_index(find_input(training.inputs["preprocess"], root).uri)
    except (DataError, KeyError):
        return None
