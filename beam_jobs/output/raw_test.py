"""The raw test records: some files of a test shard as they were before any stage.

Evaluation and export send them to a model as clients do, and compare its answers with those on the
preprocessed examples of the shard. The records with the smallest hashes of their keys are kept, and
besides them the first of each kind of file. Some also have the pixels that the stages made of them,
which shows whether the model preprocesses a raw file as the stages do.

A later data set references the file together with its shard. It may then hold records that are no
longer in the data set: the index decides.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence

from beam_jobs.io.example import encode_png, pack
from beam_jobs.io.kinds import Shape, list_kinds
from beam_jobs.io.tfrecord_files import OptionalTFRecordWriter
from beam_jobs.planning.plan import ShardPlan, hash_key
from beam_jobs.stages.stage import Example
from pipeline_ops.contract import dataset as shards
from pipeline_ops.storage.store_path import StorePath

_NUM_WITH_PIXELS, _NUM_OF_KIND = 64, 4


@dataclasses.dataclass(frozen=True)
class RawTestQuota:
    """The number of raw records that each test shard keeps.

    `files` chosen by hash, of which `pixels` have their pixels, and up to `of_kind` of each kind of
    file with pixels.
    """

    files: int
    pixels: int
    of_kind: int

    @classmethod
    def divide(cls, num_files: int, plans: Sequence[ShardPlan]) -> RawTestQuota:
        """Each shard's share of `num_files` for a data set, of which 0 stands for all."""
        sizes = [len(plan.records) for plan in plans if plan.split == "test"]
        count = max(1, len(sizes))
        files = math.ceil(num_files / count) or max(sizes, default=0)
        pixels = min(files, math.ceil(_NUM_WITH_PIXELS / count))
        return cls(files, pixels, math.ceil(_NUM_OF_KIND / count))


class RawTestWriter(OptionalTFRecordWriter):
    """Writes raw records of one test shard, or nothing for another split.

    It makes a file only if there is such a record. Call `add` or `pass_over` for every record of
    the plan, in order.
    """

    def __init__(self, folder: StorePath, plan: ShardPlan, quota: RawTestQuota):
        super().__init__(folder / f"{shards.RAW_TEST_PREFIX}{plan.name}")
        self._is_test, self._quota = plan.split == "test", quota
        keys = [record.key for record in plan.records] if self._is_test else []
        self._files = _Choice(keys, quota.files)
        self._pixels = _Choice(keys, quota.pixels)
        self._kinds: Counter[str] = Counter()

    def pass_over(self, position: int) -> None:
        """Leaves out a record of which no example was made, and chooses another one for it."""
        self._files.replace(position)
        self._pixels.replace(position)

    def add(
        self,
        position: int,
        raw: Example,
        decoded: Shape,
        examples: Sequence[Example],
        encoded: Sequence[bytes],
    ) -> None:
        """Adds a record if it is one to keep.

        `decoded` is its shape after the stage `decode`. `examples` were made of it, and `encoded`
        are their image files in the shard.
        """
        if not self._is_test:
            return
        kinds = list_kinds(raw.encoded, decoded, examples[0].shape)
        is_rare = any(self._kinds[kind] < self._quota.of_kind for kind in kinds)
        has_pixels = is_rare or position in self._pixels.chosen
        if not has_pixels and position not in self._files.chosen:
            return
        pixels: list[bytes] = []
        if has_pixels:  # the shard may have a PNG of them already
            made = zip(examples, encoded, strict=True)
            pixels = [encode_png(one.image) if one.is_original else image for one, image in made]
            self._kinds.update(kinds)
        features: dict[str, bytes | int | Sequence[bytes]] = {
            shards.RAW_KEY: raw.key.encode(),
            shards.RAW_FILE: raw.encoded,
            shards.RAW_KIND: ", ".join(kinds).encode(),
            shards.RAW_EXAMPLES: [example.key.encode() for example in examples],
            shards.RAW_PIXELS: pixels,
        }
        self.write(pack(features))


class _Choice:
    """The records of a plan whose keys have the smallest hashes."""

    def __init__(self, keys: Sequence[str], count: int):
        order = sorted(range(len(keys)), key=lambda position: hash_key(b"raw", 0, keys[position]))
        self.chosen, self._others = set(order[:count]), iter(order[count:])

    def replace(self, position: int) -> None:
        """Chooses another record, that comes later in the plan, for one that cannot be used."""
        if position in self.chosen:
            self.chosen.add(next((one for one in self._others if one > position), position))
