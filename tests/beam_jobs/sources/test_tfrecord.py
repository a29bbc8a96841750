"""TFRecords that are there already.
Those of the Object Detection API are written here with TensorFlow, as its scripts do."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Sequence

import pytest
import yaml

from beam_jobs.io import tfrecord_files
from beam_jobs.io.example import _TrainExample, parse
from beam_jobs.io.raw import read_raw
from beam_jobs.stages.boxes import FRACTIONS
from beam_jobs.stages.stage import Box
from pipeline_ops.config.sources import TfrecordSource
from pipeline_ops.contract.dataset import DatasetFigures
from pipeline_ops.errors import DataError, ExitCode
from pipeline_ops.raw_data.local import list_raw_files
from pipeline_ops.storage.open_store import open_root

GAPS = "item { id: 1 name: 'cat' } item { id: 5 name: 'dog' }"
BACKGROUND = "item { id: 0 name: 'background' }"
LABEL_MAP = "item {\n  id: 1\n  name: 'cat'\n}\nitem { id: 7 name: \"dog\" }\n"


def frame(record: bytes) -> bytes:
    return b"".join(tfrecord_files.frame_record(record))


WRITE_AS_THE_API_DOES = """
import io, sys, numpy as np, tensorflow as tf
from PIL import Image

def ints(*values): return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
def floats(*values): return tf.train.Feature(float_list=tf.train.FloatList(value=values))
def texts(*values): return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))

for split, count in (("train", 20), ("val", 6), ("test", 6)):
    with tf.io.TFRecordWriter(f"{sys.argv[1]}/{split}.record") as writer:
        for index in range(count):
            file = io.BytesIO()
            Image.fromarray(np.full((30, 40, 3), index, np.uint8)).save(file, "JPEG")
            name = f"{split}_{index}.jpg".encode()
            example = tf.train.Example(features=tf.train.Features(feature={
                "image/height": ints(30), "image/width": ints(40), "image/filename": texts(name), "image/source_id": texts(name),
                "image/key/sha256": texts(b"0" * 64), "image/encoded": texts(file.getvalue()), "image/format": texts(b"jpeg"),
                "image/object/bbox/xmin": floats(1 / 40, 0.0), "image/object/bbox/xmax": floats(30 / 40, 1.0),
                "image/object/bbox/ymin": floats(2 / 30, 0.0), "image/object/bbox/ymax": floats(20 / 30, 1.0),
                "image/object/class/text": texts(b"cat", b"dog"), "image/object/class/label": ints(1, 7),
                "image/object/difficult": ints(0, 1), "image/object/truncated": ints(0, 0), "image/object/view": texts(b"", b"")}))
            writer.write(example.SerializeToString())
"""  # noqa: E501


def example(**features) -> bytes:
    """A serialised tf.train.Example; `__` in a name stands for a slash."""
    message = _TrainExample()
    for name, value in features.items():
        values = value if isinstance(value, list) else [value]
        feature = message.features.feature[name.replace("__", "/")]
        kind = (
            {bytes: "bytes_list", float: "float_list", int: "int64_list"}[type(values[0])]
            if values
            else "float_list"
        )
        getattr(feature, kind).value.extend(values)
    return message.SerializeToString(deterministic=True)


def detection(**features) -> bytes:
    """One image with one box of the class 1; None takes a feature away."""
    boxes = {
        f"image__object__bbox__{edge}": [value]
        for edge, value in (("ymin", 0.0), ("xmin", 0.25), ("ymax", 0.5), ("xmax", 0.75))
    }
    whole = {
        "image__encoded": b"image",
        "image__filename": b"1.jpg",
        **boxes,
        "image__object__class__label": [1],
        **features,
    }
    return example(**{name: value for name, value in whole.items() if value is not None})


@pytest.fixture
def read(raw):
    """Reads records as one file."""
    raw.add("map.pbtxt", LABEL_MAP)

    def read(*records: bytes, task: str = "detection", **source):
        raw.add("a.record", b"".join(map(frame, records)))
        return raw.read(
            **{
                "type": "tfrecord",
                "task": task,
                "parts": [{"files": "a.record"}],
                "label_map": "map.pbtxt",
                **source,
            }
        )

    return read


@pytest.mark.training
def test_what_the_object_detection_api_writes_goes_through_the_whole_job(pipeline, read_records):
    subprocess.run(
        [sys.executable, "-c", WRITE_AS_THE_API_DOES, str(pipeline.raw)],
        check=True,
        capture_output=True,
    )
    pipeline.add("map.pbtxt", LABEL_MAP.encode())
    config = yaml.safe_load(pipeline.config_file.read_text())
    splits = {"train": "train", "val": "validation", "test": "test"}
    config["preprocess"]["source"] = {
        "type": "tfrecord",
        "path": "../raw",
        "task": "detection",
        "label_map": "map.pbtxt",
        "parts": [{"files": f"{name}.record", "split": split} for name, split in splits.items()],
    }
    config["preprocess"]["stages"] = ["decode"]
    pipeline.config_file.write_text(yaml.safe_dump(config))
    outcome = pipeline.run(runner={"workers": 2})
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    assert outcome.manifest.figures["num_examples"] == {"train": 20, "validation": 6, "test": 6}
    originals = {
        parse(r)["image/filename"][0]: parse(r)
        for file in pipeline.raw.glob("*.record")
        for r in read_records(file)
    }
    written = [
        parse(record)
        for shard in outcome.shards
        for record in read_records(outcome.artifact / shard)
    ]
    assert len(written) == 32
    for one in written:
        original = originals[one["image/key"][0]]
        assert all(
            one[name] == pytest.approx(original[name])
            for name in one
            if name.startswith("image/object/bbox/")
        )
        assert one["image/encoded"] == original["image/encoded"]
        assert (one["image/object/class/label"], one["image/object/difficult"]) == ([0, 1], [0, 1])


@pytest.fixture
def numbered(pipeline, encode):
    """Makes a data set of 40 pictures with a box of each class, named by text or by number."""

    def make(label_map: str, kind: str = "text", classes: Sequence = (b"cat", b"dog"), **config):
        low, high = [0.0, 0.1], [0.5, 0.9]
        edges = {"ymin": low, "xmin": low, "ymax": high, "xmax": high}
        named = {"label": None, kind: list(classes)}
        features = {f"bbox__{edge}": values for edge, values in edges.items()}
        features |= {f"class__{name}": values for name, values in named.items()}
        records = (
            detection(
                image__encoded=encode(seed=number),
                image__filename=f"{number}.png".encode(),
                **{f"image__object__{name}": values for name, values in features.items()},
            )
            for number in range(40)
        )
        pipeline.add("a.record", b"".join(map(frame, records)))
        pipeline.add("map.pbtxt", label_map.encode())
        source = {"type": "tfrecord", "path": "../raw", "task": "detection"}
        source |= {"label_map": "map.pbtxt", "parts": [{"files": "a.record"}]}
        given = config.pop("source", {})
        source = given if given.get("type") == "beam" else source | given
        return pipeline.make(source=source, **{"stages": ["decode"]} | config)

    return make


def read_numbers(outcome) -> dict[str, int]:
    figures = DatasetFigures.model_validate(outcome.manifest.figures)
    assert json.loads(outcome.contents["class_numbers.json"]) == figures.class_numbers
    return dict(zip(figures.class_names, figures.class_numbers, strict=True))


def test_classes_have_the_numbers_of_the_label_map_by_name(numbered):
    """In any order of the classes. A class that is not in the label map comes after its highest."""
    assert read_numbers(numbered(GAPS)) == {"cat": 1, "dog": 5}
    outcome = numbered(f"{BACKGROUND} {GAPS}", source={"class_names": ["dog", "cat"]})
    assert list(read_numbers(outcome).items()) == [("dog", 5), ("cat", 1)]
    rename = {"map_classes": {"rename": {"cat": "dog", "dog": "wolf"}}}
    outcome = numbered(
        f"{GAPS} item {{ id: 90 name: 'cow' }}",
        stages=["decode", rename],
        allowed_changes=["new_classes", "missing_classes"],
    )
    assert read_numbers(outcome) == {"dog": 5, "wolf": 91}


def test_a_label_map_with_other_numbers_makes_another_data_set_of_the_same_shards(numbered):
    """Unless the records have only numbers, which then mean other classes."""
    first, second = numbered(GAPS), numbered(GAPS.replace("5", "7"))
    assert (read_numbers(second), second.shards) == ({"cat": 1, "dog": 7}, first.shards)
    assert not [*second.artifact.glob("train-*")]
    assert second.manifest.digest != first.manifest.digest
    by_number = numbered(GAPS, "label", (1, 5))
    assert by_number.shards == first.shards
    swapped = GAPS.replace("1", "9").replace("5", "1").replace("9", "5")
    other = numbered(swapped, "label", (1, 5))
    assert read_numbers(other) == {"cat": 5, "dog": 1}
    assert not other.shards.items() & first.shards.items()


SAME = """
import apache_beam as beam

class Same(beam.PTransform):
    def __init__(self, folder):
        super().__init__()

    def expand(self, entries):
        return entries | beam.Map(lambda entry: entry)
"""


def test_the_numbers_go_through_a_transform_and_stay_with_our_own_shards(numbered, raw, pipeline):
    (pipeline.config_file.parent / "own.py").write_text(SAME)
    given = {"type": "tfrecord", "task": "detection", "label_map": "map.pbtxt"}
    given["parts"] = [{"files": "a.record"}]
    same = {"type": "beam", "path": "../raw", "transform": "own:Same", "input": given}
    outcome = numbered(GAPS, source=same)
    assert read_numbers(outcome) == {"cat": 1, "dog": 5}
    for file in outcome.artifact.iterdir():
        raw.add(file.name, file.read_bytes())
    parts = [{"files": f"{split}-*", "split": split} for split in ("train", "validation", "test")]
    own = {"path": str(raw.folder), "label_map": None, "parts": parts}
    assert read_numbers(numbered(GAPS, source=own)) == {"cat": 1, "dog": 5}


@pytest.mark.parametrize("numbers", [[1], [1, 1], [1, -5], [1, 2, 3], [1, "x"], [1, 10**400]])
def test_a_manifest_with_wrong_numbers_is_refused(numbers):
    figures = {"class_names": ["cat", "dog"], "image_shape": (8, 8, 1), "num_examples": {}}
    figures |= {"labels": {}, "num_rejected": 0, "rejected_by_reason": {}}
    DatasetFigures.model_validate(figures | {"class_numbers": [0, 5]})
    with pytest.raises(ValueError, match="class_numbers"):
        DatasetFigures.model_validate(figures | {"class_numbers": numbers})


def test_our_own_shards_can_be_read_again(animals, raw, read_records):
    outcome = animals.run()
    for file in outcome.artifact.iterdir():
        raw.add(file.name, file.read_bytes())
    parts = [{"files": f"{split}-*", "split": split} for split in ("train", "validation", "test")]
    records, rejected = raw.read(type="tfrecord", task="classification", parts=parts)
    assert rejected == {}
    assert {key: (record.label, record.split) for key, record in records.items()} == {
        parse(content)["image/key"][0].decode(): (
            ["cat", "dog"][parse(content)["image/class/label"][0]],
            name.partition("-")[0],
        )
        for name in outcome.shards
        for content in read_records(outcome.artifact / name)
    }
    for key, record in records.items():
        assert read_raw(record.file, raw.folder) == (animals.raw / key).read_bytes()


def test_boxes_are_pixels_where_the_size_is_there_and_fractions_elsewhere(read):
    records, _ = read(
        detection(), detection(image__filename=b"2.jpg", image__height=30, image__width=40)
    )
    assert (records["1.jpg"].boxes, records["1.jpg"].frame.size) == (
        (Box(0, 0.25, 0.5, 0.75, "cat"),),
        FRACTIONS,
    )
    assert (records["2.jpg"].boxes, records["2.jpg"].frame.size) == (
        (Box(0, 10, 15, 30, "cat"),),
        (30, 40),
    )


def test_an_image_without_boxes_has_none(read):
    assert read(example(image__encoded=b"image", image__source_id=b"5"))[0]["5"].boxes == ()


def test_a_record_without_a_name_is_known_by_its_place(read):
    assert list(read(detection(image__filename=None), detection(image__filename=b""))[0]) == [
        "a.record#000000",
        "a.record#000001",
    ]


def test_records_of_two_files_may_have_the_same_name(raw, read):
    """Frames of two videos, say. Within one file, the name is ambiguous."""
    raw.add("b.record", frame(detection()))
    parts = [{"files": "a.record"}, {"files": "b.record", "split": "test"}]
    records, rejected = read(detection(), detection(image__filename=b"2.jpg"), parts=parts)
    assert sorted(records) == ["2.jpg", "a.record#1.jpg", "b.record#1.jpg"] and not rejected
    assert records["b.record#1.jpg"].split == "test"
    records, rejected = read(detection(), detection(), parts=parts)
    assert list(records) == ["b.record#1.jpg"]
    assert rejected["a.record#1.jpg"][1].startswith("named more than once: a.record#000000, a.")


def test_a_class_has_the_two_names_of_cocos_label_map(raw, read):
    raw.add("coco.pbtxt", b"item { id: 1 name: '/m/01' display_name: 'person' }")
    texts = ([b"person"], [b"/m/01"], None)
    records, _ = read(
        *(
            detection(image__filename=str(number).encode(), image__object__class__text=text)
            for number, text in enumerate(texts)
        ),
        label_map="coco.pbtxt",
    )
    assert [record.boxes[0].label for record in records.values()] == ["person"] * 3


def test_only_the_files_that_the_config_names_are_in_the_fingerprint(raw, read):
    source = TfrecordSource(
        type="tfrecord",
        path=str(raw.folder),
        task="detection",
        parts=[{"files": "a.rec*"}],
        label_map="map.pbtxt",
    )
    read(detection())
    for name in ("pipeline.yaml", "models/model.ckpt", "b.record"):
        raw.add(name, b"something else")
    listing = list_raw_files(raw.folder, open_root(raw.folder.parent), source.file_patterns)
    assert [file.key for file in listing.files] == ["a.record", "map.pbtxt"]


def test_a_class_is_named_by_its_text_or_by_the_label_map(read):
    records, _ = read(
        example(image__encoded=b"i", image__filename=b"1", image__class__label=7),
        example(
            image__encoded=b"i",
            image__filename=b"2",
            image__class__label=7,
            image__class__text=b"wolf",
        ),
        task="classification",
    )
    assert [record.label for record in records.values()] == ["dog", "wolf"]


@pytest.mark.parametrize(
    "record, key, reason, detail",
    [
        (b"", "a.record#000001", "no_image", "must hold one image, got 0 values"),
        (b"no message", "a.record#000001", "malformed", "not a tf.train.Example"),
        (
            detection(image__encoded=None),
            "a.record#000001",
            "no_image",
            "the feature image/encoded must hold one image",
        ),
        (detection(image__encoded=[b"1", b"2"]), "a.record#000001", "no_image", "got 2 values"),
        (detection(image__encoded=5), "a.record#000001", "no_image", "got 1 values"),
        (
            detection(image__filename=b"\xff"),
            "a.record#000001",
            "malformed",
            "image/filename is not UTF-8",
        ),
        (
            detection(image__object__bbox__xmax=None),
            "a.record#000001",
            "malformed",
            "image/object/bbox/xmax must hold 1 numbers, got 0",
        ),
        (
            detection(image__object__bbox__xmax=b"1"),
            "a.record#000001",
            "malformed",
            "must hold 1 numbers",
        ),
        (
            detection(image__object__class__label=None),
            "a.record#000001",
            "malformed",
            "image/object/class/label must hold 1 numbers",
        ),
        (
            detection(image__object__class__label=3),
            "a.record#000001",
            "unknown_class",
            "the class 3 has no name",
        ),
        (
            detection(image__object__class__text=[b"cat", b"cat"]),
            "a.record#000001",
            "malformed",
            "must hold 1 texts, got 2",
        ),
        (
            detection(image__object__difficult=[1, 1]),
            "a.record#000001",
            "malformed",
            "difficult must hold 1 numbers",
        ),
        (detection(image__object__difficult=2), "a.record#000001", "malformed", "2 must be 0 or 1"),
        (
            detection(image__object__bbox__xmax=float("nan")),
            "a.record#000001",
            "box_not_finite",
            "x 0.25 to nan",
        ),
        (
            detection(image__object__bbox__xmax=0.0),
            "a.record#000001",
            "box_inverted",
            "x 0.25 to 0",
        ),
        (
            detection(image__object__bbox__xmax=30.0, image__height=30, image__width=40),
            "a.record#000001",
            "box_outside",
            "40x30 pixels",
        ),
        (
            detection(image__filename=b"good"),
            "good",
            "duplicate",
            "a.record#000000, a.record#000001",
        ),
    ],
)
def test_a_bad_record_is_kept_out_and_named(read, record, key, reason, detail):
    records, rejected = read(detection(image__filename=b"good"), record)
    assert list(records) == ([] if reason == "duplicate" else ["good"])
    assert [(k, r) for k, (r, _) in rejected.items()] == [(key, reason)]
    assert detail in rejected[key][1]


def test_a_damaged_record_does_not_hide_the_next(raw, read):
    first, second, third = (frame(detection(image__filename=name)) for name in (b"1", b"2", b"3"))
    raw.add("b.record", first + second[:20] + bytes([second[20] ^ 1]) + second[21:] + third)
    records, rejected = read(parts=[{"files": "b.record"}])
    assert list(records) == ["1", "3"]
    assert rejected == {
        "b.record#000001": (
            "corrupt",
            f"the record at byte {len(first)} has another checksum than its data",
        )
    }


@pytest.mark.parametrize(
    "tail, reason",
    [
        (frame(b"x" * 50)[:-1], "truncated"),
        (frame(b"x" * 50)[:30], "truncated"),
        (b"1234", "truncated"),
        (b"no length and no checksum", "corrupt"),
        (struct.pack("<Q", 2**60) + frame(b"")[8:12], "corrupt"),
    ],
)
def test_a_broken_end_is_named_and_what_was_before_it_is_kept(raw, read, tail, reason):
    raw.add("b.record", frame(detection()) + tail)
    records, rejected = read(parts=[{"files": "b.record"}])
    assert list(records) == ["1.jpg"]
    assert {key: r for key, (r, _) in rejected.items()} == {"b.record#000001": reason}


def test_a_compressed_file_is_named(raw, read):
    import gzip

    raw.add("b.record", gzip.compress(frame(detection())))
    assert (
        "Write it again without compression"
        in read(parts=[{"files": "b.record"}])[1]["b.record#000000"][1]
    )


def test_without_a_label_map_a_number_has_no_name(read):
    assert read(detection(), label_map=None)[1]["a.record#000000"][0] == "unknown_class"


@pytest.mark.parametrize(
    "content", ["", "{}", "[1]", '{"figures": {"class_names": 7}}', json.dumps({"figures": None})]
)
def test_somebody_elses_manifest_means_nothing(raw, read, content):
    raw.add("manifest.json", content)
    assert read(detection(), label_map=None)[1]["a.record#000000"][0] == "unknown_class"


@pytest.mark.parametrize(
    "source, message",
    [
        (
            {"parts": [{"files": "b*"}]},
            "no file matches b\\*",
        ),
        (
            {"parts": [{"files": "a*"}, {"files": "*.record"}]},
            "a.record belongs to two parts. Correct preprocess.source.parts.1.files",
        ),
        (
            {"label_map": "no.pbtxt"},
            "no.pbtxt: no such file. preprocess.source.label_map names this file",
        ),
        ({"label_map": "a.record"}, "a.record: not a label map"),
    ],
)
def test_what_the_config_names_wrongly_is_told(read, source, message):
    with pytest.raises(DataError, match=message):
        read(detection(), **source)
