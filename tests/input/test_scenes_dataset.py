"""Examples with boxes: neither the number of workers nor a restart changes order or contents."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from pipeline_ops.config.train import AugmentOptions, InputOptions
from pipeline_ops.contract.dataset import DatasetFigures, list_shard_paths, list_shards
from pipeline_ops.contract.manifest import locate_file, read_manifest
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.system.disk_cache import HostCache

BATCH = 24
UNUSED = HostCache(Path("unused"), 0)
PLAIN = AugmentOptions()
FULL = AugmentOptions(
    flip_left_right=True,
    shift=0.1,
    scale={"min": 0.7, "max": 1.4},
    brightness=0.1,
    contrast=0.1,
    mosaic=0.5,
)


@pytest.fixture(scope="module")
def split(scenes):
    from pipeline_ops.input.reading import SplitShards

    manifest = read_manifest(scenes)
    figures = DatasetFigures.model_validate(manifest.figures)
    num_bytes = sum(file.num_bytes for file in list_shards(manifest, "train"))
    return SplitShards(
        tuple(list_shard_paths(scenes, manifest, "train")), figures.num_examples["train"], num_bytes
    )


def parse():
    from pipeline_ops.models import center_detector
    from pipeline_ops.models.detection import Detection

    return Detection((128, 128, 1), center_detector.make_head((128, 128, 1), 10)).parse


def examples(split, count, changes=FULL, worker=0, workers=1, start_step=0, source=None):
    """Returns a list of (bytes of the image, boxes as bytes) for each step."""
    from pipeline_ops.input.augment import build_augmentation
    from pipeline_ops.input.batches import build_training_dataset, find_worker_slice
    from pipeline_ops.input.sources import EncodedSource

    batches = build_training_dataset(
        split,
        source or EncodedSource(split, parse(), UNUSED),
        BATCH,
        find_worker_slice(worker, workers, BATCH),
        3,
        start_step,
        build_augmentation(changes, "detection", split.num_examples),
    )
    return [
        [_seen(images[i], labels, i) for i in range(len(images))]
        for images, labels in batches.take(count).as_numpy_iterator()
    ]


def _seen(image, labels, number) -> tuple[bytes, bytes]:
    is_box = labels.classes[number] >= 0
    return image.tobytes(), np.c_[
        labels.corners[number], labels.classes[number], labels.is_crowd[number]
    ][is_box].astype(np.float32).tobytes()


@pytest.mark.training
@pytest.mark.parametrize("changes", [PLAIN, FULL], ids=["plain", "augmented"])
def test_the_workers_slices_make_up_the_global_batches(split, changes):
    whole = examples(split, 8, changes)
    assert len({image for step in whole for image, _ in step}) > (149 if changes is PLAIN else 190)
    for workers in (2, 4):
        parts = [examples(split, 8, changes, worker, workers) for worker in range(workers)]
        assert whole == [[example for part in parts for example in part[step]] for step in range(8)]


@pytest.mark.parametrize("step", [1, 6, 7])
def test_resuming_at_a_step_gives_what_would_have_come(split, step):
    assert split.compute_epoch_end_step(0, BATCH) == 7
    assert examples(split, 9)[step:] == examples(split, 9 - step, start_step=step)


def test_what_a_step_is_made_of_can_be_told(split):
    """The step has its own examples in order. The three others of a mosaic follow its example."""
    from pipeline_ops.input.augment import build_augmentation
    from pipeline_ops.input.batches import read_step_examples
    from pipeline_ops.input.sources import EncodedSource

    source = EncodedSource(split, parse(), UNUSED)
    plain, mixed = (
        read_step_examples(
            split, BATCH, 3, 4, source, build_augmentation(changes, "detection", split.num_examples)
        )
        for changes in (PLAIN, FULL)
    )
    assert (
        len(plain) == BATCH
        and (len(mixed) - BATCH) % 3 == 0
        and BATCH + 9 <= len(mixed) <= BATCH + 60
    )
    place = 0
    for example, following in zip(plain, [*plain[1:], None], strict=True):
        assert mixed[place] == example
        place += 1 if mixed[place + 1 : place + 2] == [following] else 4
    assert place in (
        len(mixed),
        len(mixed) + 3,
    )  # no later example shows whether the last one is a mosaic


@pytest.mark.parametrize("changes", [PLAIN, FULL], ids=["plain", "augmented"])
def test_decoded_images_with_any_number_of_boxes_are_held_in_memory_and_are_the_same(
    split, changes, tmp_path
):
    from pipeline_ops.input.order import GlobalOrder
    from pipeline_ops.input.sources import MemorySource, open_example_source

    said = []
    source = open_example_source(
        split,
        parse(),
        InputOptions(),
        HostCache(tmp_path, 1 << 30),
        "1",
        said.append,
        GlobalOrder(1, 1),
    )
    assert isinstance(source, MemorySource) and not said
    assert examples(split, 8, changes, source=source) == examples(split, 8, changes)


def test_on_disk_they_are_not_kept_and_that_is_said(split, tmp_path):
    from pipeline_ops.input.order import GlobalOrder
    from pipeline_ops.input.sources import EncodedSource, open_example_source

    said = []
    assert isinstance(
        open_example_source(
            split,
            parse(),
            InputOptions(cache="disk"),
            HostCache(tmp_path, 1 << 30),
            "1",
            said.append,
            GlobalOrder(1, 1),
        ),
        EncodedSource,
    )
    assert "not all of them have the same shape. Use train.input.cache: memory" in said[0]


@pytest.mark.training
@pytest.mark.parametrize("changes", [PLAIN, FULL], ids=["plain", "augmented"])
def test_streamed_scenes_and_mosaics_are_the_same(split, scenes, changes, tmp_path):
    """The fixture does not count the examples of its shards, as preprocess does."""
    from pipeline_ops.input.batches import make_order
    from pipeline_ops.input.sources import StreamedSource
    from pipeline_ops.input.streaming import RemoteShard, RemoteSplit, read_record_offsets

    shards = []
    for file in list_shards(read_manifest(scenes), "train"):
        place = locate_file(open_path(scenes), file)
        count = len(read_record_offsets(place.local))
        shards.append(RemoteShard(place, file.model_copy(update={"num_examples": count})))
    remote = RemoteSplit(tuple(shards), HostCache(tmp_path, 1 << 30), shards[0].file.num_bytes)
    streamed = dataclasses.replace(split, remote=remote)
    source = StreamedSource(streamed, remote, parse(), make_order(streamed, 3, None))
    assert examples(streamed, 8, changes, source=source) == examples(split, 8, changes)
    source.close()
