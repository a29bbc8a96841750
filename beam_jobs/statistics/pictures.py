"""Pictures of some examples of each class and split, for the page of a data set.

They are chosen by the content of their raw files, so the same data set has the same pictures, and a
new image replaces few of them. They are read from the finished shards by the lengths of the
records, and no other record is read.
"""

from __future__ import annotations

import base64
import dataclasses
import heapq
import io
import itertools
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from PIL import Image, ImageDraw, ImageFile

from beam_jobs.io.example import parse
from pipeline_ops.contract import dataset
from pipeline_ops.contract.dataset import SPLITS, IndexEntry
from pipeline_ops.storage.request_cache import map_requests
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.storage.tfrecord import FRAME_BYTES, unframe_record

PER_CLASS_AND_SPLIT = 3
MAX_SPRITE_BYTES = 200_000
_MAX_CLASSES = 24
_MAX_SIDE = 96
SMALL_SIDE = 64
"""Pictures up to so many pixels are drawn as they are, each pixel as a square."""
_SMALL_QUALITIES, _QUALITIES = (None, 85, 60), (80, 50)
"""None is without loss, which takes long for large pictures, and needs too many bytes."""
_LOSSLESS_EFFORT = 20
"""Of 100. The highest one makes files 5 % smaller, in 50 times the time."""
_MAX_PIXELS = 40_000_000
"""A larger image is not decoded, because it may be a decompression bomb."""
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")
_BOX, _OTHER_BOX = (255, 180, 0), (150, 150, 150)


def read_small(content: bytes, side: int) -> Image.Image | None:
    """Decodes a picture, at most `side` pixels high and wide. Returns None if it cannot be shown.

    Of a truncated file it is the beginning, if that has more than one colour.
    """
    Image.MAX_IMAGE_PIXELS = None  # its limit only warns at first, and ours is below
    # Pillow has this setting for the whole process only, so it is reset at once.
    before, is_truncated = ImageFile.LOAD_TRUNCATED_IMAGES, False
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as picture:
            if picture.width * picture.height > _MAX_PIXELS:
                return None
            picture.draft("RGB", (side, side))  # decodes a JPEG at a reduced size
            try:
                picture.load()
            except OSError:
                is_truncated = ImageFile.LOAD_TRUNCATED_IMAGES = True
            small = picture.convert("RGB")
        small.thumbnail((side, side))
    except (OSError, ValueError, SyntaxError, TypeError, struct.error, MemoryError):
        return None  # the errors of Pillow for broken files
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before
    return None if is_truncated and len(small.getcolors(_MAX_PIXELS) or ()) == 1 else small


@dataclasses.dataclass(frozen=True)
class ExamplePicture:
    """The place of a picture in the sprite, counted in tiles. `key` is that of its record.

    An example that cannot be shown has an empty tile.
    """

    key: str
    column: int
    row: int
    is_shown: bool


@dataclasses.dataclass(frozen=True)
class ExamplePictures:
    """All pictures in one image, as a data URI. `tiles` has them by class and split.

    `side` is the height and width of a tile in pixels, `rows` the number of rows of tiles.
    """

    sprite: str
    side: int
    rows: int
    tiles: Mapping[str, Mapping[str, Sequence[ExamplePicture]]]


@dataclasses.dataclass(frozen=True)
class ShardReader:
    """Reads single records. `places` has the shards, `lengths` the bytes of all their records."""

    places: Mapping[str, StorePath]
    lengths: Mapping[str, Sequence[int]]

    def read(self, shard: str, position: int) -> dict[str, list[Any]] | None:
        """The features of a record, or None if its shard is damaged or gone.

        The shard may be one of an older data set. The manifest names one that is gone, and whoever
        reads the data set one that is damaged.
        """
        lengths = self.lengths[shard]
        start = sum(lengths[:position]) + position * FRAME_BYTES
        try:
            framed = self.places[shard].read_range(start, lengths[position] + FRAME_BYTES)
        except FileNotFoundError:
            return None
        record = unframe_record(framed)
        return None if record is None else parse(record)


def draw_examples(
    entries: Iterable[IndexEntry], reader: ShardReader, class_names: Sequence[str]
) -> ExamplePictures | None:
    """Draws pictures of the largest classes, as many as the sprite may hold.

    Returns None if there is no example whose place is known: an old data set has no lengths.
    """
    chosen = _choose(entry for entry in entries if entry.shard in reader.lengths)
    names = sorted(chosen, key=lambda name: (-chosen[name].count, name))[:_MAX_CLASSES]
    wanted = [
        (name, split, entry)
        for name in names
        for split in SPLITS
        for _, _, entry in sorted(chosen[name].by_split[split], reverse=True)
    ]
    labels = {name: index for index, name in enumerate(class_names)}
    records = map_requests(lambda each: _read_example(reader, each[2], labels[each[0]]), wanted)
    pictures: dict[str, _Pictures] = defaultdict(lambda: {split: [] for split in SPLITS})
    for (name, split, entry), features in zip(wanted, records, strict=True):
        picture = _draw_example(features, labels[name]) if features else None
        pictures[name][split].append((entry.key, picture))
    for count in itertools.takewhile(bool, (len(names) >> halvings for halvings in range(8))):
        grid = _lay_out({name: pictures[name] for name in names[:count]})
        for quality in _SMALL_QUALITIES if grid.side <= SMALL_SIDE else _QUALITIES:
            if len(sprite := _encode(grid.image, quality)) <= MAX_SPRITE_BYTES:
                return ExamplePictures(sprite, grid.side, count, grid.tiles)
    return None


@dataclasses.dataclass
class _Choice:
    """The examples, or boxes, of a class, and by split a heap of the entries to show."""

    count: int = 0
    by_split: dict[str, list[tuple[int, str, IndexEntry]]] = dataclasses.field(
        default_factory=lambda: {split: [] for split in SPLITS}
    )


def _choose(entries: Iterable[IndexEntry]) -> dict[str, _Choice]:
    """Chooses the entries with the lowest digests of their content, by class and split."""
    found: dict[str, _Choice] = defaultdict(_Choice)
    for entry in entries:
        candidate = (-int(entry.content, 16), entry.key, entry)
        for name, count in entry.labels.items():
            choice = found[name]
            choice.count += count
            heap = choice.by_split[entry.split]
            if len(heap) < PER_CLASS_AND_SPLIT:
                heapq.heappush(heap, candidate)
            elif candidate > heap[0]:
                heapq.heapreplace(heap, candidate)
    return dict(found)


def _read_example(
    reader: ShardReader, entry: IndexEntry, label: int
) -> dict[str, list[Any]] | None:
    """Reads the first example of a record that shows a class."""
    for position in entry.positions:
        features = reader.read(entry.shard, position)
        if features is None:
            return None
        if label in features.get(dataset.BOX_LABEL, features.get(dataset.LABEL, [])):
            return features
    return None


def _draw_example(features: Mapping[str, list[Any]], label: int) -> Image.Image | None:
    """Draws an example with its boxes, those of the class in another colour."""
    picture = read_small(features[dataset.ENCODED][0], _MAX_SIDE)
    if picture is None or dataset.BOX_LABEL not in features:
        return picture
    draw = ImageDraw.Draw(picture)
    columns = (features[name] for name in (*dataset.BOX_EDGES, dataset.BOX_LABEL))
    for ymin, xmin, ymax, xmax, other in sorted(
        zip(*columns, strict=True), key=lambda box: bool(box[-1] == label)
    ):
        left, top = xmin * picture.width, ymin * picture.height
        right, bottom = xmax * picture.width - 1, ymax * picture.height - 1
        outline = _BOX if other == label else _OTHER_BOX
        draw.rectangle((left, top, max(left, right), max(top, bottom)), outline=outline)
    return picture


_Pictures = dict[str, list[tuple[str, Image.Image | None]]]
"""The pictures of a class by split, each with its key. None cannot be shown."""


class _Grid(NamedTuple):
    """The pictures in one image, a row for each class."""

    image: Image.Image
    side: int
    tiles: dict[str, dict[str, list[ExamplePicture]]]


def _lay_out(pictures: Mapping[str, _Pictures]) -> _Grid:
    drawn = [
        picture for splits in pictures.values() for each in splits.values() for _, picture in each
    ]
    side = max((max(picture.size) for picture in drawn if picture), default=1)
    columns = PER_CLASS_AND_SPLIT * len(SPLITS)
    sprite = Image.new("RGBA", (columns * side, max(1, len(pictures)) * side))
    tiles: dict[str, dict[str, list[ExamplePicture]]] = {}
    for row, (name, splits) in enumerate(pictures.items()):
        tiles[name] = {split: [] for split in SPLITS}
        for group, split in enumerate(SPLITS):
            for column, (key, picture) in enumerate(splits[split], group * PER_CLASS_AND_SPLIT):
                tiles[name][split].append(ExamplePicture(key, column, row, picture is not None))
                if picture:
                    left = column * side + (side - picture.width) // 2
                    sprite.paste(picture, (left, row * side + (side - picture.height) // 2))
    return _Grid(sprite, side, tiles)


def _encode(image: Image.Image, quality: int | None) -> str:
    """The image as a data URI."""
    output = io.BytesIO()
    effort = _LOSSLESS_EFFORT if quality is None else quality
    image.save(output, "WEBP", lossless=quality is None, quality=effort, method=2)
    return f"data:image/webp;base64,{base64.b64encode(output.getvalue()).decode()}"
