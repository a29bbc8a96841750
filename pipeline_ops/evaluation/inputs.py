"""The inputs of an evaluation, checked against their manifests, and their lineage.

Only data set, challenger and champion affect the result. A file that differs from its manifest is
refused by name before a model reads it. A test split is refused if it is not the one pinned by the
request, or if the challenger was trained on its images.

The lineage is traced through manifests. The report mentions artifacts that are gone. Locations are
relative to the storage root, so the report does not depend on the location of the storage.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from pydantic import BaseModel

from pipeline_ops.config.evaluate import Evaluate
from pipeline_ops.contract.dataset import (
    INDEX,
    QUARANTINE,
    STATISTICS,
    DatasetFigures,
    IndexEntry,
    compute_split_digest,
    is_raw_test_file,
    is_shard,
    iterate_index,
    list_raw_test_paths,
    list_removed_positions,
    list_shard_paths,
)
from pipeline_ops.contract.fingerprint import Fingerprint
from pipeline_ops.contract.layout import find_input
from pipeline_ops.contract.manifest import (
    BASE,
    RAW_FILES,
    REFERENCE_DIGESTS,
    Input,
    Manifest,
    ManifestFile,
    check_files,
    read_input,
    read_manifest,
)
from pipeline_ops.contract.remarks import describe_moves
from pipeline_ops.contract.request import Request
from pipeline_ops.contract.results import (
    LAST_EVALUATION,
    SAVED_MODEL,
    SEEN_PICTURES,
    TEST_SPLIT,
    EvaluationFigures,
    ModelFigures,
    TrainingFigures,
    is_saved_model_file,
)
from pipeline_ops.errors import DataError
from pipeline_ops.job.local_inputs import fetch_input, use_local_inputs
from pipeline_ops.registry.versions import fetch_version
from pipeline_ops.served.client import SavedModelClient, read_encoded_batches, read_raw_records
from pipeline_ops.storage.open_store import open_path, open_root
from pipeline_ops.storage.store_path import StorePath

_SAVED_MODEL_PARTS = ("saved_model.pb", "fingerprint.pb", "variables", "assets")
"""The parts of a SavedModel. A version's folder may hold other formats next to them."""
_NUM_WARMUP_CALLS, _NUM_TIMED_CALLS, _MAX_TIMED_IMAGES = 5, 50, 50
_MAX_LINE = 200
_MAX_NAMED_LEAKS, _MAX_NAMED_CLASSES = 3, 3
Changes = dict[str, list[str]]
"""The changes since an older run: lines for each job."""
FiguresT = TypeVar("FiguresT", bound=BaseModel)


@dataclasses.dataclass(frozen=True)
class Artifact(Generic[FiguresT]):
    uri: str
    manifest: Manifest
    figures: FiguresT

    @property
    def folder(self) -> Path:
        return Path(self.uri).parent


class EvaluatedModel(NamedTuple):
    """A SavedModel to run, and its name in messages."""

    name: str
    saved_model: Path
    num_bytes: int


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The inputs of an evaluation. There may be no champion yet."""

    dataset: Artifact[DatasetFigures]
    challenger: Artifact[TrainingFigures]
    champion: Artifact[ModelFigures] | None

    @property
    def test_shards(self) -> list[str]:
        return list_shard_paths(self.dataset.uri, self.dataset.manifest, "test")

    @property
    def raw_test_files(self) -> list[str]:
        return list_raw_test_paths(self.dataset.uri, self.dataset.manifest)

    @property
    def removed_test_positions(self) -> tuple[tuple[int, ...], ...]:
        return list_removed_positions(self.dataset.manifest, "test")

    @property
    def num_test_examples(self) -> int:
        return self.dataset.figures.num_examples["test"]

    @property
    def class_names(self) -> list[str]:
        return self.dataset.figures.class_names

    @property
    def models(self) -> list[EvaluatedModel]:
        """The challenger, and the champion if it has the same classes."""
        trained, champion = self.challenger, self.champion
        found = [("the challenger", trained.folder / SAVED_MODEL, trained.manifest)]
        if champion and not self.no_champion_reason:
            found.append((self._champion_name, champion.folder, champion.manifest))
        return [
            EvaluatedModel(name, folder, sum(map(_count_model_bytes, manifest.files)))
            for name, folder, manifest in found
        ]

    @property
    def no_champion_reason(self) -> str:
        """The reason for an evaluation without a champion, as the end of a sentence, or ""."""
        if self.champion is None:
            return "there is no champion to compare it with"
        known, wanted = self.champion.figures.class_names, self.class_names
        if known == wanted:
            return ""
        unknown, missing = sorted(set(wanted) - set(known)), sorted(set(known) - set(wanted))
        parts = [f"does not know {', '.join(unknown)}"] if unknown else []
        parts += [f"knows {', '.join(missing)}, which the data set lacks"] if missing else []
        return f"{self._champion_name} {' and '.join(parts) or 'has the classes in another order'}"

    @property
    def _champion_name(self) -> str:
        return f"the champion (version {self.champion.figures.version})" if self.champion else ""


def read_inputs(request: Request) -> Inputs:
    """Reads the inputs.

    Raises DataError if an artifact is gone, changed or damaged, or does not belong to the others.
    """
    request = use_local_inputs(request, {"preprocess": _is_needed, "train": _is_needed_of_training})
    dataset = _read_artifact(request.inputs["preprocess"], DatasetFigures)
    challenger = _read_artifact(request.inputs["train"], TrainingFigures)
    entry = request.inputs.get("champion")
    champion = _read_artifact(fetch_version(entry), ModelFigures) if entry else None
    inputs = Inputs(dataset, challenger, champion)
    if challenger.manifest.inputs["preprocess"].digest != dataset.manifest.digest:
        raise DataError(
            f"{challenger.uri}: the challenger was trained on another data set than {dataset.uri} "
            "and may have seen its test examples. Start a new run."
        )
    if not inputs.num_test_examples:
        raise DataError(
            f"{dataset.uri}: the test split is empty. Raise preprocess.split.test or add data."
        )
    # The manifest's own digest covers its files, but not the removal of examples from them.
    pinned = request.fingerprint.inputs[TEST_SPLIT]
    found = compute_split_digest(dataset.manifest, "test")
    if found != pinned:
        raise DataError(
            f"{dataset.uri}: the digest of its test split is {found}, "
            f"but {pinned} is pinned in this evaluation's request. Start a new run."
        )
    needed = [file for file in dataset.manifest.files if _is_needed(file.path)]
    check_files(open_path(dataset.uri), dataset.manifest, needed)
    trained = [file for file in challenger.manifest.files if _is_needed_of_training(file.path)]
    check_files(open_path(challenger.uri), challenger.manifest, trained)
    if champion:
        check_files(open_path(champion.uri), champion.manifest, champion.manifest.files)
    return inputs


def _is_needed(path: str) -> bool:
    """Returns whether an evaluation reads a file of its data set."""
    description = QUARANTINE, INDEX, STATISTICS
    return is_shard(path, "test") or is_raw_test_file(path) or path in description


def _is_needed_of_training(path: str) -> bool:
    return is_saved_model_file(path) or path == SEEN_PICTURES


def _read_artifact(entry: Input, figures: type[FiguresT]) -> Artifact[FiguresT]:
    manifest = read_input(entry)
    return Artifact(entry.uri, manifest, figures.model_validate(manifest.figures))


def _count_model_bytes(file: ManifestFile) -> int:
    part = file.path.removeprefix(f"{SAVED_MODEL}/").split("/")[0]
    return file.num_bytes if part in _SAVED_MODEL_PARTS else 0


def measure_models(
    config: Evaluate, inputs: Inputs, clients: Sequence[SavedModelClient]
) -> list[dict[str, float]]:
    """Returns size and latency of each served model.

    A latency depends on the clock, so it is measured only if a rule needs it. The calls of the
    models alternate, so other load affects all of them alike.
    """
    measures = [{"model_bytes": float(model.num_bytes)} for model in inputs.models]
    if not config.needs_latency:
        return measures
    images = next(
        read_encoded_batches(inputs.test_shards, _MAX_TIMED_IMAGES, inputs.removed_test_positions)
    ).images.tolist()
    if all(client.takes_files for client in clients):
        records = read_raw_records(inputs.raw_test_files)
        files = (record.file for record in records if record.is_servable)
        images = list(itertools.islice(files, _MAX_TIMED_IMAGES)) or images
    times: list[list[float]] = [[] for _ in clients]
    for call in range(_NUM_WARMUP_CALLS + _NUM_TIMED_CALLS):
        for client, durations in zip(clients, times, strict=True):
            begin = time.perf_counter()
            client.answer_as_served(images[call % len(images)])
            durations.append(1e3 * (time.perf_counter() - begin))
    for found, durations in zip(measures, times, strict=True):
        found["latency_milliseconds"] = statistics.median(durations[_NUM_WARMUP_CALLS:])
    return measures


@dataclasses.dataclass(frozen=True)
class Lineage:
    """The lineage of an evaluation.

    `origins` are artifacts, each with its role, its location and its manifest. Changes are None if
    there is no older artifact, or if it cannot be traced. `last_metrics` are the metrics of the
    last run's challenger.
    """

    origins: list[tuple[str, str, Manifest]]
    evaluation_fingerprint: str
    since_champion: Changes | None = None
    since_last_run: Changes | None = None
    last_metrics: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def is_champion_preprocessed_differently(self) -> bool:
        """Returns whether the pixels themselves may differ, and not only the choice of images."""
        return any(
            line.startswith(("config stages", "config source", "code "))
            for line in (self.since_champion or {}).get("preprocess", ())
        )


def trace_lineage(request: Request, inputs: Inputs) -> Lineage:
    origins = []
    for name, key, artifact in (
        ("data set", "preprocess", inputs.dataset),
        ("challenger", "train", inputs.challenger),
        ("champion", "champion", inputs.champion),
    ):
        if artifact:
            folder = request.inputs[key].uri.rpartition("/")[0]
            below = folder.removeprefix(f"{request.root}/")
            location = below if below != folder else folder.rpartition("/")[2]
            origins.append((name, location, artifact.manifest))
    since_champion, since_last_run, last_metrics = None, None, dict[str, float]()
    if inputs.champion:
        with contextlib.suppress(DataError, KeyError, ValueError):
            since_champion = _find_changes(request, inputs, inputs.champion.manifest)
    if last := request.inputs.get(LAST_EVALUATION):
        with contextlib.suppress(DataError, KeyError, ValueError):
            evaluation = read_manifest(open_path(last.uri))
            changes = _find_changes(request, inputs, evaluation)
            changes["evaluate"] = describe_changes(request.fingerprint, evaluation.fingerprint)
            last_metrics = EvaluationFigures.model_validate(evaluation.figures).challenger.metrics
            since_last_run = changes
    return Lineage(
        origins, request.fingerprint.digest, since_champion, since_last_run, last_metrics
    )


def _find_changes(request: Request, inputs: Inputs, older: Manifest) -> Changes:
    """Returns the changes of the data set and of the training since an older artifact was made.

    Raises DataError or KeyError if the older artifact cannot be followed back to its data.
    """
    training, entry = _trace_training(older, open_root(request.root))
    dataset = read_manifest(open_path(entry.uri))
    return {
        "preprocess": describe_data_changes(inputs.dataset.manifest, dataset),
        "train": describe_changes(inputs.challenger.manifest.fingerprint, training.fingerprint),
    }


def _trace_training(artifact: Manifest, root: StorePath) -> tuple[Manifest, Input]:
    """Returns the training behind a model or an evaluation, and the data set of the training.

    Both are searched below the present storage root first.
    """
    training = read_manifest(open_path(find_input(artifact.inputs["train"], root).uri))
    return training, find_input(training.inputs["preprocess"], root)


def describe_changes(newer: Fingerprint, older: Fingerprint) -> list[str]:
    """Returns the differences as lines. A line too long for a page only names the difference."""
    return [
        line if len(line) <= _MAX_LINE else f"{line.partition(':')[0]} changed"
        for line in newer.describe_changes_since(older)
    ]


def describe_data_changes(newer: Manifest, older: Manifest) -> list[str]:
    """Returns the differences of two data sets as lines: of the images in words, then the config.

    Inputs that say only what a data set was compared with or built upon are no change of it.
    """
    ours, theirs = newer.fingerprint, older.fingerprint
    is_same = ours.inputs.get(RAW_FILES) == theirs.inputs.get(RAW_FILES)
    images = [] if is_same else [_describe_images(newer, older)]
    hidden = (RAW_FILES, BASE, *REFERENCE_DIGESTS)
    return images + describe_changes(ours.without_inputs(*hidden), theirs.without_inputs(*hidden))


def _describe_images(newer: Manifest, older: Manifest) -> str:
    """Says what came and left if one was built upon the other, or else the numbers of both."""
    ours, theirs = (DatasetFigures.model_validate(each.figures) for each in (newer, older))
    base = newer.inputs.get(BASE)
    if base and base.digest == older.digest and ours.came is not None and ours.left is not None:
        text = describe_moves(ours.came, ours.left)
    else:
        before, after = (sum(each.num_examples.values()) for each in (theirs, ours))
        text = f"other images: {before:,} examples before, {after:,} now"
    return text + _describe_classes(ours, theirs)


def _describe_classes(ours: DatasetFigures, theirs: DatasetFigures) -> str:
    """The classes whose counts changed most, by the ratio, in brackets."""
    after, before = (
        sum(map(Counter, each.labels.values()), Counter[str]()) for each in (ours, theirs)
    )
    changed = sorted(
        (min(before[name], after[name]) / max(before[name], after[name]), name)
        for name in before.keys() | after.keys()
        if before[name] != after[name]
    )
    named = [
        f"class {name}: {before[name]:,} \N{RIGHTWARDS ARROW} {after[name]:,}"
        for _, name in changed[:_MAX_NAMED_CLASSES]
    ]
    return f" ({', '.join(named)})" if named else ""


class Leaks(NamedTuple):
    """The numbers of test examples with an equal image in the training split of each model.

    Equal images are raw files with the same bytes, according to the data set's index. Preprocessing
    finds nearly equal images if `preprocess.duplicates: remove_near` is set. A number is None if it
    is unknown: there is no index or no champion, or the champion's training data is gone.
    """

    challenger: int | None
    champion: int | None


def find_leaks(inputs: Inputs, allowed: int, root: StorePath) -> Leaks:
    """Counts the test images that are also in a training split.

    Raises DataError if the challenger was trained on more of them than are allowed.
    """
    uri = inputs.dataset.uri
    index = find_index(uri)
    if index is None:
        return Leaks(None, None)
    tests = {record.content: record for record in iterate_split(index, "test")}
    leaked = _find_in_training(tests, index)
    if len(leaked) > allowed:
        pairs = ", ".join(
            f"{tests[record.content].key} equals {record.key}"
            for record in list(leaked.values())[:_MAX_NAMED_LEAKS]
        )
        raise DataError(
            f"{uri}: {len(leaked)} test image{'s are' if len(leaked) != 1 else ' is'} "
            f"also in the training split, evaluate.allowed_leaks is {allowed}: "
            f"{pairs}{', ...' if len(leaked) > _MAX_NAMED_LEAKS else ''}. "
            "Set preprocess.duplicates to remove_exact."
        )
    champion_index = None
    if inputs.champion:
        with contextlib.suppress(DataError, KeyError):
            _, dataset = _trace_training(inputs.champion.manifest, root)
            champion_index = find_index(dataset.uri)
    if champion_index is None:
        return Leaks(len(leaked), None)
    return Leaks(len(leaked), len(_find_in_training(tests, champion_index)))


def _find_in_training(tests: dict[str, IndexEntry], index: Path) -> dict[str, IndexEntry]:
    """Returns the first training record that equals a test record, by content."""
    found: dict[str, IndexEntry] = {}
    for record in iterate_split(index, "train"):
        if record.content in tests:
            found.setdefault(record.content, record)
    return found


def iterate_split(index: Path, split: str) -> Iterator[IndexEntry]:
    return (each for each in iterate_index(index) if each.split == split and each.num_examples)


def find_index(dataset_uri: str) -> Path | None:
    dataset = fetch_input(Input(uri=dataset_uri, digest=""), lambda path: path == INDEX)
    path = Path(dataset.uri).parent / INDEX
    return path if path.is_file() else None
