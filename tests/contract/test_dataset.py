"""Names of shards, and what is removed from them."""

from __future__ import annotations

import pytest
from manifests import make_manifest

from pipeline_ops.contract.dataset import (
    build_shard_name,
    list_removed_positions,
    list_shards,
    parse_generation,
)
from pipeline_ops.contract.manifest import ManifestFile

NAMES = {
    ("train", 0, 8, 1): "train-00000-of-00008.tfrecord",
    ("test", 7, 8, 1): "test-00007-of-00008.tfrecord",
    ("train", 0, 3, 2): "train-g0002-00000-of-00003.tfrecord",
    ("validation", 12, 300, 12345): "validation-g12345-00012-of-00300.tfrecord",
}


@pytest.mark.parametrize("parts", NAMES)
def test_a_name_says_split_place_and_generation(parts):
    assert build_shard_name(*parts) == NAMES[parts]
    assert parse_generation(NAMES[parts]) == parts[3]


def test_shards_of_a_split_are_those_of_all_its_generations_and_know_what_is_removed():
    names = [
        "quarantine.jsonl",
        "test-00000-of-00001.tfrecord",
        "train-00000-of-00001.tfrecord",
        "train-g0002-00000-of-00001.tfrecord",
    ]
    manifest = make_manifest(
        figures={"removed": {names[3]: [0, 4]}},
        files=[ManifestFile(path=name, num_bytes=1, crc32c="00000000") for name in names],
    )
    assert [file.path for file in list_shards(manifest, "train")] == names[2:]
    assert list_removed_positions(manifest, "train") == ((), (0, 4))
    assert list_removed_positions(manifest, "test") == ((),)
    assert list_removed_positions(manifest.model_copy(update={"figures": {}}), "train") == ((), ())
