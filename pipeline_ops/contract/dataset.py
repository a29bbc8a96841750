"""The files of a data set, their names and formats, and the figures of its manifest.

No other module makes or parses shard names. The artifact holds `train-00000-of-00008.tfrecord` and
so on for each split, `quarantine.jsonl` with the rejected records, quarantine files with their
bytes, files with raw test records, an index of the records, the stages, statistics, a schema, and a
page that shows all of this. Shards of a later generation name it:
`train-g0002-00000-of-00003.tfrecord`. Shards of earlier generations, with their quarantine files
and raw test records, lie in the artifacts that they were made for. A record that was removed later
remains in its shard, and every reader skips it.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import ConfigDict, Field, model_validator

from pipeline_ops.config.model_catalogue import Task
from pipeline_ops.config.preprocess import Drift
from pipeline_ops.contract.manifest import Manifest, ManifestFile
from pipeline_ops.errors import DataError
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.storage.local_files import write_atomically
from pipeline_ops.storage.parsing import JsonModel
from pipeline_ops.storage.read_errors import make_read_error

SPLITS = ("train", "validation", "test")
QUARANTINE = "quarantine.jsonl"
"""One RejectedRecord per line."""
REFUSED = "rejected.jsonl"
"""The same in the folder of an attempt that has refused the data for too many bad records."""
INDEX = "index.jsonl.gz"
"""One JSON list per record of the source, an IndexEntry, sorted by key.

The next generation identifies new records by it (`beam_jobs/planning/generations.py`).
"""
_INDEX_COMPRESSION = 1  # a line is mostly digests, which do not compress at any level
RECORD_LENGTHS = "record_lengths.bin"
"""The lengths of all records. They give the offset of each, so that training can read single
records of a shard in a store.

A line of JSON counts the records of each shard, by path. The lengths follow in this order, as
little-endian uint32. Shards that were taken over from a data set without such a file are absent.
"""
_LENGTH_TYPE = "I"  # little-endian on every machine that TensorFlow supports
CLASS_WEIGHTS = "class_weights.json"
"""The class weights, if `preprocess.balance` asks for them: a float for each class name.

A loss that uses them counts all classes alike. They are a file, so that the data set's digest
covers them, and per class, so that new examples change no old shard.
"""
_GENERATION = re.compile(r"-g(\d{4,})-\d{5}-of-\d{5}\.tfrecord$")

# The features of one tf.train.Example. All:
ENCODED = "image/encoded"  # bytes: the image file, JPEG or PNG
KEY = "image/key"  # bytes, UTF-8: the record's key in the source
HEIGHT = "image/height"  # int64, pixels; detection only
WIDTH = "image/width"
# Classification:
LABEL = "image/class/label"  # int64: index into class_names
# Detection, with the names of the TensorFlow Object Detection API; one value per box:
BOX_YMIN = "image/object/bbox/ymin"  # float, fraction of the height
BOX_XMIN = "image/object/bbox/xmin"  # float, fraction of the width
BOX_YMAX = "image/object/bbox/ymax"
BOX_XMAX = "image/object/bbox/xmax"
BOX_EDGES = (BOX_YMIN, BOX_XMIN, BOX_YMAX, BOX_XMAX)
BOX_LABEL = "image/object/class/label"  # int64: index into class_names, from 0
BOX_IS_CROWD = "image/object/is_crowd"  # int64, 0 or 1
BOX_IS_DIFFICULT = "image/object/difficult"  # int64, 0 or 1


def build_shard_name(split: str, index: int, num_shards: int, generation: int = 1) -> str:
    later = f"-g{generation:04d}" if generation > 1 else ""
    return f"{split}{later}-{index:05d}-of-{num_shards:05d}.tfrecord"


def parse_generation(shard: str) -> int:
    """The generation that a shard was written for: 1 if its name has none."""
    found = _GENERATION.search(shard)
    return int(found.group(1)) if found else 1


QUARANTINE_PREFIX = "quarantine-"
"""The prefix of quarantine files. The name of the shard follows.

They hold tf.train.Examples with the features below. A file of an earlier generation may also hold
records that are no longer in QUARANTINE.
"""
QUARANTINE_KEY = "quarantine/key"  # bytes, UTF-8
QUARANTINE_STAGE = "quarantine/stage"
QUARANTINE_REASON = "quarantine/reason"
QUARANTINE_DETAIL = "quarantine/detail"
QUARANTINE_SOURCE = "quarantine/source"  # bytes, UTF-8: path of the file below the source's folder
QUARANTINE_NUM_BYTES = "quarantine/num_bytes"  # int64: of the original
QUARANTINE_CONTENT = "quarantine/content"  # bytes: the original, or its beginning
RAW_TEST_PREFIX = "raw-"
"""The prefix of files with raw test records. The name of the test shard follows.

They hold records of that shard as they were before any stage, with the features below, so that the
served model can be tried with what its clients send. A record counts as long as the index still has
its key in that shard.
"""
RAW_KEY = "raw/key"  # bytes, UTF-8: the record's key in the source
RAW_FILE = "raw/file"  # bytes: the raw image file
RAW_KIND = "raw/kind"  # bytes, UTF-8: such as "JPEG, EXIF 6"
RAW_EXAMPLES = "raw/examples"  # bytes, UTF-8, one for each example that was made of it: its key
RAW_PIXELS = "raw/pixels"
"""bytes, one for each example: its pixels before the stage `encode`, as PNG.

Only some of the records have it.
"""
STAGES = "stages.json"
"""The stages of the figures, as a list. They are a file, so that the data set's digest covers them:
what a model that is trained on the data set is published with depends on them.
"""
CLASS_NUMBERS = "class_numbers.json"
"""The class numbers of the figures, if they have any. They are a file for the same reason."""
STATISTICS = "statistics.json"
SCHEMA = "schema.json"
DATA_PAGE = "data.html"


class RejectedRecord(JsonModel):
    """A rejected record: the stage, the reason for counting, and the detail for a person."""

    model_config = ConfigDict(frozen=True)

    key: str
    stage: str
    reason: str
    detail: str = ""
    file: str = ""
    """The quarantine file that holds the bytes of the record.

    Removed copies of images, boxes, and records whose file is missing have none.
    """


class Distance(JsonModel):
    """The distance of one feature, or of the classes (`labels`), from the reference."""

    model_config = ConfigDict(frozen=True)

    feature: str
    jensen_shannon: float
    l_infinity: float
    is_above: bool
    """True if one of the two distances is above its threshold."""


class StageFigures(JsonModel):
    """A stage of the data set, and how a model that is trained on it applies the stage.

    `in_graph`: by the stage's TensorFlow function, a part of the SavedModel. `unchanged`: not
    at all, because the stage changed no pixel of a validation or test example. `by_client`: the
    config leaves it to the client. `code` is a digest of the stage's source files.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    parameters: dict[str, Any] = {}
    served: Literal["in_graph", "unchanged", "by_client"] = "unchanged"
    code: str = ""


class DatasetFigures(JsonModel):
    """The `figures` of a data set's manifest.

    `image_shape` is (height, width, channels) if all images have it. `labels` counts by split and
    class name: examples for classification, boxes without crowds for detection. All counts cover
    the examples that a reader gets, while a file's `num_examples` in the manifest includes its
    removed examples. `removed` holds positions in ascending order, by shard.
    """

    model_config = ConfigDict(frozen=True)

    task: Task = "classification"
    class_names: list[str]
    class_numbers: list[Annotated[int, Field(ge=0, lt=1 << 63)]] = []
    """The number of each class in the source's label map, for clients of the Object Detection API.

    Shards and our own outputs have the index into `class_names` instead. Without a label map it is
    empty, and the clients count from 1.
    """
    image_shape: tuple[int, int, int]
    num_examples: dict[str, int]
    labels: dict[str, dict[str, int]]
    num_rejected: int
    rejected_by_reason: dict[str, int]
    skipped_by_reason: dict[str, int] = {}
    """Valid examples that a stage has skipped, by `<stage>: <reason>`."""
    stages: list[StageFigures] = []
    """The stages in their order. Empty in data sets that were made before they were listed."""
    seconds_by_stage: dict[str, float] = {}
    generation: int = 1
    """The newest generation that has shards here."""
    removed: dict[str, list[int]] = {}
    warnings: list[str] = []
    """Sentences about what the examples lack or have too much of, such as unbalanced splits."""
    came: int | None = Field(None, ge=0)
    """The images with an example here whose content has none in the previous data set.

    None if there is no previous one that was made by the same stages.
    """
    left: int | None = Field(None, ge=0)
    """The images with an example in the previous data set whose content has none here."""
    drift: list[Distance] = []
    """The distances from the reference, the largest first. Empty without a reference."""
    drift_limits: Drift | None = None
    most_boxes: int = 0
    """The largest number of boxes in an example."""
    most_raw_boxes: int = 0
    """The largest number of boxes in a raw image, of which a stage may make several examples."""

    @model_validator(mode="after")
    def _validate_class_numbers(self) -> DatasetFigures:
        numbers = self.class_numbers
        if numbers and not len(numbers) == len({*numbers}) == len(self.class_names):
            raise ValueError("class_numbers must have another number for each class")
        return self

    @property
    def most_boxes_to_answer(self) -> int:
        """The largest number of boxes for which a served model gets one request."""
        return max(self.most_boxes, self.most_raw_boxes)


def to_grey(color: Sequence[int]) -> int:
    """The luma of ITU-R BT.601, as OpenCV computes it."""
    red, green, blue = color
    return round(0.299 * red + 0.587 * green + 0.114 * blue)


def list_shards(manifest: Manifest, split: str) -> list[ManifestFile]:
    """The shards of a split, in order."""
    return [file for file in manifest.files if is_shard(file.path, split)]


def is_shard(path: str, split: str) -> bool:
    return path.startswith(f"{split}-") and path.endswith(".tfrecord")


def compute_split_digest(manifest: Manifest, split: str) -> str:
    """32 hex digits over the shards of a split and the positions that are removed from them."""
    identities = [file.identity for file in list_shards(manifest, split)]
    return compute_digest([identities, list_removed_positions(manifest, split)])


def list_shard_paths(manifest_uri: str, manifest: Manifest, split: str) -> list[str]:
    folder = Path(manifest_uri).parent
    return [str(file.locate(folder)) for file in list_shards(manifest, split)]


def list_raw_test_paths(manifest_uri: str, manifest: Manifest) -> list[str]:
    """The files with raw test records, in order."""
    folder = Path(manifest_uri).parent
    return [str(file.locate(folder)) for file in manifest.files if is_raw_test_file(file.path)]


def is_raw_test_file(path: str) -> bool:
    return path.startswith(RAW_TEST_PREFIX)


def list_removed_positions(manifest: Manifest, split: str) -> tuple[tuple[int, ...], ...]:
    """The positions of the records that a reader has to skip, for each shard of a split."""
    removed = manifest.figures.get("removed", {})
    return tuple(tuple(removed.get(file.path, ())) for file in list_shards(manifest, split))


# The index


class IndexEntry(NamedTuple):
    """One record and the location of its examples: `num_examples` in `shard`, from `position` on.

    A rejected record has no examples, and the shard "". `split` is "" if the collection kept it
    out, so that it equals no split. `labels` counts examples by class name, or boxes for detection.
    `perceptual_hash` has 16 hex digits, or none. `skipped` counts the examples that stages skipped.
    `measurements` are those of the examples as `encode_measurements` writes them.
    """

    key: str
    content: str
    annotation: str
    split: str
    shard: str = ""
    position: int = 0
    num_examples: int = 0
    labels: Mapping[str, int] = {}
    perceptual_hash: str = ""
    skipped: Mapping[str, int] = {}
    measurements: str = ""

    @property
    def positions(self) -> range:
        return range(self.position, self.position + self.num_examples)


def write_index(file: Path, entries: Iterable[IndexEntry]) -> None:
    """Writes the index. Equal entries give equal bytes in any order."""
    ordered = sorted(entries, key=lambda entry: entry.key)
    lines = "".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in ordered)
    write_atomically(file, gzip.compress(lines.encode(), _INDEX_COMPRESSION, mtime=0))


def iterate_index(file: Path) -> Iterator[IndexEntry]:
    """Yields the entries of an index. Raises DataError if the file is not an index."""
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                entry = IndexEntry(*json.loads(line))
                # Equal texts are shared, which saves the memory of a million entries.
                yield entry._replace(
                    split=sys.intern(entry.split),
                    shard=sys.intern(entry.shard),
                    annotation=sys.intern(entry.annotation),
                )
    except (OSError, EOFError, ValueError, TypeError, zlib.error) as error:
        raise make_read_error(
            f"{file}: the index cannot be read",
            error,
            ". Remove its data set, and start a new run.",
        ) from error


# The lengths of records


def format_record_lengths(lengths: Mapping[str, Sequence[int]]) -> bytes:
    """The content of the file. `lengths` has the data bytes of each record, by shard."""
    paths = sorted(lengths)
    values = array(_LENGTH_TYPE)
    for path in paths:
        values.extend(lengths[path])
    head = json.dumps({path: len(lengths[path]) for path in paths})
    return f"{head}\n".encode() + values.tobytes()


def parse_record_lengths(content: bytes, source: str) -> dict[str, Sequence[int]]:
    """The lengths by shard. Raises DataError, which names the `source`, if they are not valid."""
    head, _, rest = content.partition(b"\n")
    found: dict[str, Sequence[int]] = {}
    values = array(_LENGTH_TYPE)
    try:
        values.frombytes(rest)
        start = 0
        for path, count in json.loads(head).items():
            found[path] = values[start : start + count]
            start += count
            if len(found[path]) != count:
                raise ValueError(f"{path} has {len(found[path])} lengths instead of {count}")
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{source}: not a list of record lengths: {error}") from None
    return found
