"""The pictures of examples on the page of a data set, from the shards of real jobs."""

from __future__ import annotations

import base64
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from beam_jobs.statistics.pictures import (
    MAX_SPRITE_BYTES,
    PER_CLASS_AND_SPLIT,
    ShardReader,
    draw_examples,
)
from pipeline_ops.contract.dataset import (
    INDEX,
    RECORD_LENGTHS,
    SPLITS,
    iterate_index,
    parse_record_lengths,
)
from pipeline_ops.storage.open_store import open_root

TILE = re.compile(
    r'aria-label="([^":]*), (\w+): ([^"]*)" title="[^"]*" style="--column:(\d+);--row:(\d+)"'
)


def read_tiles(outcome) -> dict[tuple[str, str, str], np.ndarray]:
    """The pictures of a page by class, split and key, each as RGBA."""
    text = (outcome.artifact / "data.html").read_text()
    uri = re.search(r"--sprite:url\(data:image/webp;base64,([^)]*)\)", text)[1]
    sprite = np.asarray(Image.open(io.BytesIO(base64.b64decode(uri))).convert("RGBA"))
    side = sprite.shape[1] // (PER_CLASS_AND_SPLIT * len(SPLITS))
    return {
        (name, split, key): sprite[
            int(row) * side : (int(row) + 1) * side, int(column) * side : (int(column) + 1) * side
        ]
        for name, split, key, column, row in TILE.findall(text)
    }


def pixels_of(pipeline, key: str) -> np.ndarray:
    return np.asarray(Image.open(pipeline.raw / key).convert("RGBA"))


def test_three_pictures_of_each_class_and_split_are_those_of_the_shards(animals):
    outcome = animals.make()
    tiles = read_tiles(outcome)
    labels = outcome.manifest.figures["labels"]
    counts = {
        (name, split): min(3, labels[split][name]) for split in SPLITS for name in labels[split]
    }
    found = [(name, split) for name, split, _ in tiles]
    assert {each: found.count(each) for each in counts} == counts
    splits = {entry.key: entry.split for entry in iterate_index(outcome.artifact / INDEX)}
    for (name, split, key), tile in tiles.items():
        assert key.startswith(f"{name}/") and splits[key] == split
        np.testing.assert_array_equal(tile, pixels_of(animals, key))


def test_they_are_the_same_for_other_shards_and_for_a_later_generation(animals, encode):
    first = read_tiles(animals.make(shards=3))
    assert [*read_tiles(animals.make(shards=5))] == [*first]
    animals.add("cat/new.png", encode(seed=999))
    second = animals.make(shards=3)
    assert second.manifest.figures["generation"] == 2
    tiles = read_tiles(second)
    assert len(set(tiles) - set(first)) <= 1
    for (_, _, key), tile in tiles.items():  # those of older shards, too
        np.testing.assert_array_equal(tile, pixels_of(animals, key))


def test_the_page_of_a_data_set_has_the_same_bytes_each_time(animals):
    first = animals.make()
    content = (first.artifact / "data.html").read_bytes()
    (first.artifact / "manifest.json").unlink()
    assert (animals.make().artifact / "data.html").read_bytes() == content


def test_boxes_are_drawn_those_of_the_class_of_the_row_in_orange(pipeline):
    lines = []
    for number in range(30):
        image = Image.new("RGB", (40, 30), (0, 0, number))
        content = io.BytesIO()
        image.save(content, "PNG")
        pipeline.add(f"{number}.png", content.getvalue())
        boxes = [
            {"xmin": 4, "ymin": 3, "xmax": 20, "ymax": 24, "label": "cat"},
            {"xmin": 24, "ymin": 6, "xmax": 36, "ymax": 27, "label": "dog"},
        ]
        lines.append(json.dumps({"path": f"{number}.png", "boxes": boxes}))
    pipeline.add("boxes.jsonl", "\n".join(lines).encode())
    source = {"type": "jsonl", "path": "../raw", "manifest": "boxes.jsonl", "task": "detection"}
    tiles = read_tiles(pipeline.make(source=source, stages=[{"decode": {"channels": 3}}]))
    assert {name for name, _, _ in tiles} == {"cat", "dog"}
    for (name, _, _), tile in tiles.items():
        picture = tile[5:35]  # the margins above and below are transparent
        assert not tile[:5, :, 3].any() and picture[..., 3].all()
        cat, dog = picture[3, 10, :3].tolist(), picture[6, 30, :3].tolist()
        assert (cat == [255, 180, 0], dog == [255, 180, 0]) == (name == "cat", name == "dog")


@pytest.mark.parametrize(("classes", "shown"), [(24, 24), (40, 24)])
def test_of_many_classes_the_largest_are_shown(pipeline, encode, classes, shown):
    for number in range(classes):
        for index in range(12 + (number == classes - 1)):
            pipeline.add(f"{number:02d}/{index}.png", encode(seed=100 * number + index))
    outcome = pipeline.make(split__stratify=True)
    names = {name for name, _, _ in read_tiles(outcome)}
    assert len(names) == shown and f"{classes - 1:02d}" in names
    text = (outcome.artifact / "data.html").read_text()
    assert (f"Shown are {shown} of {classes} classes, the largest." in text) == (shown < classes)


def test_the_sprite_of_large_and_noisy_pictures_stays_below_its_limit(animals, encode):
    for number in range(24):
        for index in range(12):
            seed = 1000 * number + index
            noise = np.random.default_rng(seed).integers(0, 256, (96, 96, 3), dtype=np.uint8)
            content = io.BytesIO()
            Image.fromarray(noise).save(content, "PNG")
            animals.add(f"class{number:02d}/{index}.png", content.getvalue())
    outcome = animals.make(
        stages=[{"decode": {"channels": 3}}, {"resize": {"height": 96, "width": 96}}]
    )
    text = (outcome.artifact / "data.html").read_text()
    assert 0 < len(re.search(r"--sprite:url\(([^)]*)\)", text)[1]) <= MAX_SPRITE_BYTES
    assert re.search(r"Shown are \d+ of 26 classes", text)


def test_without_the_lengths_of_the_records_there_are_no_pictures(animals):
    outcome = animals.make()
    entries = [*iterate_index(outcome.artifact / INDEX)]
    lengths = parse_record_lengths((outcome.artifact / RECORD_LENGTHS).read_bytes(), "lengths")
    artifact = open_root(outcome.artifact)
    places = {name: artifact / name for name in lengths}
    assert draw_examples(entries, ShardReader(places, lengths), ["cat", "dog"])
    assert draw_examples(entries, ShardReader(places, {}), ["cat", "dog"]) is None


def test_an_example_of_a_damaged_older_shard_is_told_and_fails_nothing(animals, encode):
    first = animals.make()
    for shard in first.shards:
        content = bytearray((first.artifact / shard).read_bytes())
        content[20] ^= 1  # in the first record
        (first.artifact / shard).write_bytes(content)
    animals.add("cat/new.png", encode(seed=999))
    second = animals.make()
    assert second.manifest.figures["generation"] == 2
    broken = {
        entry.key
        for entry in iterate_index(second.artifact / INDEX)
        if entry.shard in first.shards and entry.position == 0
    }
    tiles = read_tiles(second)
    shown = {key for _, _, key in tiles if not key.endswith("cannot be shown")}
    told = {key.removesuffix(" cannot be shown") for _, _, key in tiles} - shown
    assert told and told <= broken
    assert not shown & broken
