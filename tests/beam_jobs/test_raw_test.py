"""Raw files of test records, kept beside their shard."""

from __future__ import annotations

import io
import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest
import simplejpeg
from PIL import Image

from beam_jobs.exchange import Exchange
from beam_jobs.io.example import encode_png, pack, parse
from beam_jobs.io.tfrecord_files import write_tfrecord
from beam_jobs.output.raw_test import RawTestQuota
from beam_jobs.output.shard import ShardBuilder, ShardBuildSpec
from beam_jobs.planning.plan import Record, ShardPlan, hash_key
from pipeline_ops.config.preprocess import StageConfig
from pipeline_ops.contract import dataset
from pipeline_ops.contract.manifest import find_damage
from pipeline_ops.errors import ExitCode
from pipeline_ops.raw_data.local import list_raw_files
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.system.processes import find_group_members

SHARD = "test-00000-of-00001.tfrecord"
DECODE = {"decode": {"channels": 1}}
RESIZE = {"resize": {"height": 6, "width": 6}}


@pytest.fixture
def read_raw(read_records):
    """Reads the records of a file by key, each with lists of values by feature."""

    def read(*files: Path) -> dict[str, dict[str, list]]:
        found = [parse(record) for file in files for record in read_records(file)]
        return {features[dataset.RAW_KEY][0].decode(): features for features in found}

    return read


@pytest.fixture
def build(tmp_path, read_raw):
    """Builds a test shard of files. Returns its raw records, and the file itself."""

    def build(
        files: dict[str, bytes],
        *stages: StageConfig,
        quota: RawTestQuota | None = None,
        split: str = "test",
    ):
        quota = quota or RawTestQuota(files=500, pixels=64, of_kind=4)
        shutil.rmtree(tmp_path / "build", ignore_errors=True)
        raw, target = tmp_path / "build" / "raw", tmp_path / "build" / "target"
        target.mkdir(parents=True)
        for name, content in files.items():
            (raw / name).parent.mkdir(parents=True, exist_ok=True)
            (raw / name).write_bytes(content)
        listing = list_raw_files(raw, open_root(tmp_path) / "build" / "listings")
        by_key = {file.key: Record(file, "cat") for file in listing.files}
        plan = ShardPlan(split, SHARD, tuple(by_key[name] for name in files))
        spec = ShardBuildSpec(
            raw, open_root(target), stages or (StageConfig(name="decode"),), ("cat",), quota, raw
        )
        summary = ShardBuilder(spec, Exchange(open_root(tmp_path) / "exchange")).build(plan)
        file = target / f"raw-{SHARD}"
        assert [one.path for one in summary.files if one.path == file.name] == [
            each.name for each in (file,) if each.exists()
        ]
        return read_raw(file) if file.exists() else {}

    return build


def order(files) -> list[str]:
    return sorted(files, key=lambda key: hash_key(b"raw", 0, key))


def decode_png(data: bytes) -> np.ndarray:
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    return image[:, :, ::-1] if image.ndim == 3 else image[:, :, None]


def save(kind: str, picture: Image.Image, **options) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8))


@pytest.mark.parametrize(
    "num_files, sizes, quota",
    [
        (500, {"test": [100] * 8}, (63, 8, 1)),
        (500, {"test": [100], "train": [900] * 3}, (500, 64, 4)),
        (10, {"test": [100] * 4}, (3, 3, 1)),
        (0, {"test": [100, 90]}, (100, 32, 2)),
        (500, {"train": [100]}, (500, 64, 4)),
        (0, {}, (0, 0, 4)),
    ],
)
def test_the_quota_of_a_shard_is_its_share(num_files, sizes, quota):
    plans = [
        ShardPlan(split, f"{split}-{number}", (None,) * size)
        for split, counts in sizes.items()
        for number, size in enumerate(counts)
    ]
    assert RawTestQuota.divide(num_files, plans) == RawTestQuota(*quota)


def test_the_smallest_hashes_of_keys_are_kept_and_the_smallest_of_them_with_pixels(build, encode):
    files = {f"{number}.png": encode(channels=3, seed=number) for number in range(30)}
    quota = RawTestQuota(files=10, pixels=4, of_kind=0)
    found = build(files, StageConfig(name="decode", parameters={"channels": 1}), quota=quota)
    assert set(found) == set(order(files)[:10])
    with_pixels = {key for key, features in found.items() if features[dataset.RAW_PIXELS]}
    assert with_pixels == set(order(files)[:4])
    assert list(found) == [key for key in files if key in found]
    for key, features in found.items():
        assert features[dataset.RAW_FILE] == [files[key]]
        assert features[dataset.RAW_KIND] == [b"PNG, colour"]
        assert features[dataset.RAW_EXAMPLES] == [key.encode()]


@pytest.mark.parametrize("place", ["first", "last"])
def test_another_record_is_kept_for_one_that_is_rejected_or_skipped(build, encode, place):
    files = {f"{number}.png": encode(seed=number) for number in range(20)}
    rejected, skipped = order(files)[:2]
    files |= {rejected: b"no image", skipped: encode(40, 4)}
    bad = {key: files.pop(key) for key in (rejected, skipped)}
    files = bad | files if place == "first" else files | bad
    stages = [
        StageConfig(name="decode", parameters={"channels": 1}),
        StageConfig(name="filter", parameters={"max_aspect": 1.0, "min_aspect": 0.5}),
    ]
    found = build(files, *stages, quota=RawTestQuota(files=5, pixels=3, of_kind=0))
    num_kept = 5 if place == "first" else 3  # no record comes after the last one
    assert set(found) == set(order(files.keys() - bad)[:num_kept])
    assert sum(bool(one[dataset.RAW_PIXELS]) for one in found.values()) == num_kept - 2


def test_only_the_test_split_has_raw_records(build, encode):
    assert build({"1.png": encode()}, split="validation") == {}
    assert build({"1.png": b"no image"}) == {}


SHRINK = {"resize": {"height": 2, "width": 2}}
TO_JPEG = {"encode": {"format": "jpeg"}}


@pytest.mark.parametrize(
    "kind, stages",
    [
        ("PNG", ["decode"]),
        ("PNG", ["decode", SHRINK, TO_JPEG]),
        ("JPEG", ["decode"]),
        ("BMP", ["decode"]),
        ("BMP", ["decode", TO_JPEG]),
    ],
)
def test_pixels_are_those_that_the_stages_made_before_they_were_encoded(build, kind, stages):
    data = save(kind, NOISE)
    [features] = build({"1": data}, *map(StageConfig.model_validate, stages)).values()
    assert features[dataset.RAW_FILE] == [data]
    expected = simplejpeg.decode_jpeg(data) if kind == "JPEG" else np.array(NOISE)
    if SHRINK in stages:
        expected = cv2.resize(expected, (2, 2), interpolation=cv2.INTER_AREA)
    [png] = features[dataset.RAW_PIXELS]
    assert (decode_png(png) == expected).all()


def test_a_record_of_several_examples_has_the_pixels_of_each(build, encode):
    tile = {"tile": {"height": 8, "width": 8}, "served": "by_client"}
    image = encode(8, 24)
    [features] = build({"1.png": image}, *map(StageConfig.model_validate, [DECODE, tile])).values()
    assert features[dataset.RAW_EXAMPLES] == [b"1.png#0,0", b"1.png#8,0", b"1.png#16,0"]
    parts = np.split(decode_png(image), 3, axis=1)
    assert features[dataset.RAW_PIXELS] == [encode_png(np.ascontiguousarray(p)) for p in parts]


def test_up_to_a_number_of_each_kind_are_kept_whatever_their_hashes(build):
    turned = Image.Exif()
    turned[0x0112] = 6
    files = {f"plain{number}.png": save("PNG", NOISE) for number in range(9)}
    files |= {f"turned{number}.jpg": save("JPEG", NOISE, exif=turned) for number in range(9)}
    files |= {"cmyk.jpg": save("JPEG", NOISE.convert("CMYK")), "1.gif": save("GIF", NOISE)}
    found = build(files, quota=RawTestQuota(files=0, pixels=0, of_kind=2))
    assert Counter(features[dataset.RAW_KIND][0] for features in found.values()) == {
        b"PNG": 2,
        b"JPEG, EXIF 6": 2,
        b"JPEG, CMYK": 1,
        b"GIF, palette": 1,
    }
    assert all(features[dataset.RAW_PIXELS] for features in found.values())


# The whole job


def find_raw_files(outcome) -> list[Path]:
    return [
        file.locate(outcome.artifact)
        for file in outcome.manifest.files
        if file.path.startswith(dataset.RAW_TEST_PREFIX)
    ]


def find_test_keys(outcome) -> set[str]:
    entries = dataset.iterate_index(outcome.artifact / dataset.INDEX)
    return {entry.key for entry in entries if entry.split == "test" and entry.num_examples}


def test_raw_records_are_part_of_the_artifact(animals, read_raw):
    outcome = animals.make(stages=[DECODE, RESIZE])
    found = read_raw(*find_raw_files(outcome))
    assert set(found) == find_test_keys(outcome)
    for key, features in found.items():
        assert features[dataset.RAW_FILE] == [(animals.raw / key).read_bytes()]
    assert find_damage(outcome.artifact / "manifest.json", outcome.manifest) == []


def test_their_number_is_a_key_of_the_config(animals, read_raw):
    found = read_raw(*find_raw_files(animals.make(raw_test_files=1)))
    num_shards = 3
    # One by its hash, and up to two of each kind.
    assert num_shards <= len(found) <= 3 * num_shards
    assert set(found) < find_test_keys(animals.make(raw_test_files=0))


@pytest.mark.parametrize("workers", [1, 2])
def test_their_bytes_do_not_depend_on_the_workers(animals, workers):
    stages = [{"decode": {"channels": 3}}, RESIZE, {"encode": {"format": "jpeg"}}]
    first = animals.make(stages=stages)
    contents = {file.name: file.read_bytes() for file in find_raw_files(first)}
    shutil.rmtree(first.artifact)
    again = animals.make(stages=stages, runner={"workers": workers})
    assert {file.name: file.read_bytes() for file in find_raw_files(again)} == contents != {}


def test_a_later_generation_takes_over_the_file_of_a_shard_and_has_its_own(
    animals, encode, read_raw
):
    first = animals.make()
    key, gone = sorted(find_test_keys(first))[:2]
    animals.add(key, encode(seed=100))
    (animals.raw / gone).unlink()
    second = animals.make()
    old, new = (
        [file for file in find_raw_files(second) if (file.parent == second.artifact) is is_new]
        for is_new in (False, True)
    )
    assert {file.name for file in old} == {file.name for file in find_raw_files(first)}
    assert [file.name for file in new] == ["raw-test-g0002-00000-of-00001.tfrecord"]
    assert set(read_raw(*new)) == {key}
    # The index decides which of the older records count.
    entries = dataset.iterate_index(second.artifact / dataset.INDEX)
    shards = {entry.key: entry.shard for entry in entries}
    assert shards[key] == new[0].name.removeprefix("raw-")
    assert gone not in shards
    counting = {
        one for file in old for one in read_raw(file) if shards.get(one) == file.name[len("raw-") :]
    }
    assert counting == find_test_keys(first) - {key, gone}


@pytest.mark.faults
def test_a_try_after_a_killed_one_keeps_its_files(large_animals, wait_for):
    overrides = {"stages": [DECODE, RESIZE], "shards": 20}
    plan = large_animals.plan(**overrides, runner={"workers": 1})
    process, attempt = large_animals.start(plan)
    work = attempt.folder.local.parent.parent / "root"

    def find_written() -> dict[str, os.stat_result]:
        return {file.name: file.stat() for file in work.rglob("raw-test-*.tfrecord")}

    wait_for(lambda: len(find_written()) > 2 or process.poll() is not None)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: not find_group_members(process.pid), 30)
    written = find_written()
    outcome = large_animals.run(plan)
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    made = {file.name: file.stat() for file in find_raw_files(outcome)}
    kept = [name for name, stat in written.items() if made[name].st_ino == stat.st_ino]
    assert len(kept) >= len(written) - 1 > 0
    contents = outcome.contents
    shutil.rmtree(outcome.artifact)
    assert large_animals.run(plan).contents == contents


def test_records_of_a_tfrecord_file_are_kept_as_they_are(pipeline, encode, read_raw):
    images = set()
    with write_tfrecord(open_root(pipeline.raw) / "a.tfrecord") as writer:
        for number in range(60):
            image = encode(seed=number)
            label = (b"cat", b"dog")[number % 2]
            writer.write(pack({"image/encoded": image, "image/class/text": label}))
            images.add(image)
    source = {
        "type": "tfrecord",
        "path": str(pipeline.raw),
        "parts": [{"files": "a.tfrecord"}],
        "task": "classification",
        "class_names": ["cat", "dog"],
    }
    outcome = pipeline.make(source=source, stages=[DECODE, RESIZE])
    found = read_raw(*find_raw_files(outcome))
    assert set(found) == find_test_keys(outcome) != set()
    assert all(features[dataset.RAW_FILE][0] in images for features in found.values())
