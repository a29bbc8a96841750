"""Data sets of labelled images, written with TensorFlow's own writer, without preprocessing."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from manifests import list_again, list_counted, make_manifest

from pipeline_ops.contract.dataset import (
    ENCODED,
    KEY,
    LABEL,
    DatasetFigures,
    StageFigures,
    build_shard_name,
)
from pipeline_ops.contract.manifest import read_manifest, write_manifest

NUM_SHARDS = 4


def write_dataset(
    folder: Path,
    image_shape: tuple[int, int, int],
    class_names: Sequence[str],
    splits: Mapping[str, Sequence[tuple[bytes, int]]],
) -> str:
    """Writes encoded images with their classes. Returns the URI of the manifest.

    The key of an example is its number, counted over all splits.
    """
    counts, start = {}, 0
    for split, examples in splits.items():
        numbered = list(enumerate(examples, start))
        for shard in range(NUM_SHARDS):
            name = build_shard_name(split, shard, NUM_SHARDS)
            counts[name] = _write_shard(folder / name, numbered[shard::NUM_SHARDS])
        start += len(examples)
    labels = {split: [label for _, label in examples] for split, examples in splits.items()}
    figures = DatasetFigures(
        class_names=list(class_names),
        image_shape=image_shape,
        num_examples={split: len(examples) for split, examples in splits.items()},
        labels={
            split: {name: found.count(label) for label, name in enumerate(class_names)}
            for split, found in labels.items()
        },
        num_rejected=0,
        rejected_by_reason={},
        stages=[decode_only(image_shape[2])],
    )
    write_manifest(folder, make_manifest(figures=figures, files=list_counted(folder, counts)))
    return str(folder / "manifest.json")


def blacken(
    dataset: str, folder: Path, split: str, positions: Sequence[int]
) -> tuple[str, list[str]]:
    """Copies a data set into a folder, with black images at some positions of a split, counted over
    its shards. Returns the URI of the copy, and the keys of these images."""
    from pipeline_ops.input.tensorflow_start import tf

    shutil.copytree(Path(dataset).parent, folder)
    black, keys, number = tf.io.encode_png(tf.zeros((16, 16, 1), tf.uint8)).numpy(), [], 0
    for shard in sorted(folder.glob(f"{split}-*")):
        records = list(tf.data.TFRecordDataset([str(shard)]).as_numpy_iterator())
        with tf.io.TFRecordWriter(str(shard)) as writer:
            for record in records:
                example = tf.train.Example.FromString(record)
                if number in positions:
                    example.features.feature[ENCODED].bytes_list.value[0] = black
                    keys.append(example.features.feature[KEY].bytes_list.value[0].decode())
                writer.write(example.SerializeToString(deterministic=True))
                number += 1
    manifest = read_manifest(dataset)
    write_manifest(folder, manifest.model_copy(update={"files": list_again(folder, manifest)}))
    return str(folder / "manifest.json"), keys


def decode_only(channels: int) -> StageFigures:
    return StageFigures(name="decode", parameters={"channels": channels}, served="in_graph")


def _write_shard(path: Path, numbered: Sequence[tuple[int, tuple[bytes, int]]]) -> int:
    from pipeline_ops.input.tensorflow_start import tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for number, (encoded, label) in numbered:
            features = {
                ENCODED: _bytes(encoded),
                KEY: _bytes(str(number).encode()),
                LABEL: tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            writer.write(
                tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(
                    deterministic=True
                )
            )
    return len(numbered)


def _bytes(value: bytes):
    from pipeline_ops.input.tensorflow_start import tf

    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
