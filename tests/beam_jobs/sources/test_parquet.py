"""Parquet files, written by pyarrow as Hugging Face and pandas do."""

from __future__ import annotations

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs.io.raw import RawReader, read_raw
from beam_jobs.stages.boxes import FRACTIONS
from beam_jobs.stages.stage import Box
from pipeline_ops.errors import DataError, MachineError


def make_file(columns: dict | pa.Table, **options) -> bytes:
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


def hugging_face(features: dict, **columns) -> pa.Table:
    """A table with the metadata that `datasets` writes."""
    info = json.dumps({"info": {"features": features}})
    return pa.table(columns).replace_schema_metadata({"huggingface": info})


@pytest.fixture
def read(raw):
    def read(columns, task: str = "classification", options: dict | None = None, **source):
        raw.add("a.parquet", make_file(columns, **(options or {})))
        return raw.read(**{"type": "parquet", "task": task, **source})

    return read


def place(row: int) -> str:
    return f"a.parquet#{row:06d}"


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("wrap", [lambda b: b, lambda b: {"bytes": b, "path": None}])
@pytest.mark.parametrize("group_rows", [1, 7, 100])
def test_an_image_is_read_from_its_row(raw, read, compression, wrap, group_rows):
    images = [f"image {index}".encode() * 50 for index in range(40)]
    columns = {"image": [wrap(image) for image in images], "label": ["cat", "dog"] * 20}
    options = {"compression": compression, "row_group_size": group_rows}
    records, rejected = read(columns, options=options)
    assert not rejected
    assert [record.label for record in records.values()] == ["cat", "dog"] * 20
    assert list(records) == [place(row) for row in range(40)]
    assert [read_raw(r.file, raw.folder) for r in records.values()] == images
    backwards = list(records.values())[::-1]
    reader = RawReader((record.file for record in backwards), raw.folder)
    assert [reader.read(record.file) for record in backwards[::2]] == images[::-2]


def test_the_rows_of_a_row_group_are_read_together(raw, read):
    records, _ = read({"image": [b"%d" % row for row in range(40)], "label": ["cat"] * 40})
    files = [record.file for record in records.values()][::-1]
    reader = RawReader(files, raw.folder)
    assert reader.read(files[0]) == b"39"
    (raw.folder / "a.parquet").unlink()  # all others have been read by now
    assert [reader.read(file) for file in files[1:]] == [b"%d" % row for row in range(39)][::-1]


def test_a_file_that_has_changed_is_a_reason_to_retry(raw, read):
    records, _ = read({"image": [b"one", b"two"], "label": ["cat", "dog"]})
    file = records[place(1)].file
    for content in (
        make_file({"image": [b"one", b"new"], "label": ["cat", "dog"]}),
        make_file({"image": [b"one"], "label": ["cat"]}),
        make_file({"other": [b"one", b"two"]}),
        b"no file",
    ):
        raw.add("a.parquet", content)
        with pytest.raises(MachineError, match=f"{place(1)} has changed since the run started"):
            read_raw(file, raw.folder)
        with pytest.raises(MachineError, match=f"{place(1)} has changed since the run started"):
            RawReader([file], raw.folder).read(file)


def test_paths_lead_to_files_below_the_folder(raw, read):
    raw.add("photos/1.jpg", b"one")
    raw.add("photos/2.jpg", b"two")
    columns = {"file": ["1.jpg", "2.jpg", "3.jpg", "../1.jpg", None], "label": list("abcde")}
    records, rejected = read(columns, image="file", images="photos")
    assert {key: record.label for key, record in records.items()} == {
        "photos/1.jpg": "a",
        "photos/2.jpg": "b",
    }
    assert [reason for reason, _ in rejected.values()] == [
        "missing_image",
        "missing_image",
        "no_image",
    ]
    mixed = [{"bytes": b"x", "path": "1.jpg"}, {"bytes": None, "path": "2.jpg"}]
    records, _ = read({"image": mixed, "label": ["a", "b"]}, images="photos")
    assert sorted(records) == [place(0), "photos/2.jpg"]
    assert [read_raw(records[key].file, raw.folder) for key in sorted(records)] == [b"x", b"two"]


CLASS_LABEL = {"names": ["cat", "dog"], "_type": "ClassLabel"}


def test_numbers_are_named_by_hugging_faces_metadata_or_by_the_config(read):
    images = {"image": [b"1", b"2", b"3"], "label": [1, 0, -1]}
    table = hugging_face({"label": CLASS_LABEL}, **images)
    for columns, source in ((table, {}), (images, {"class_names": ["cat", "dog"]})):
        records, rejected = read(columns, **source)
        assert [record.label for record in records.values()] == ["dog", "cat"]
        assert rejected == {place(2): ("no_label", "the label is -1")}
    assert [record.label for record in read(images)[0].values()] == ["1", "0"]


OBJECTS = {"bbox": [[1.0, 2.0, 30.0, 40.0]], "category": [1]}
LIST_OF_OBJECTS = [{"bbox": [1.0, 2.0, 30.0, 40.0], "category": 1}]


@pytest.mark.parametrize(
    ("objects", "feature"),
    [
        (OBJECTS, {"feature": {"category": CLASS_LABEL}, "_type": "Sequence"}),
        (OBJECTS, {"category": {"feature": CLASS_LABEL, "_type": "List"}}),
        (LIST_OF_OBJECTS, [{"category": CLASS_LABEL}]),
    ],
)
def test_boxes_of_objects_have_names_and_formats(read, objects, feature):
    table = hugging_face({"objects": feature}, image=[b"1"], objects=[objects])
    source = {"boxes": "objects.bbox", "label": "objects.category", "box_format": "xywh"}
    records, rejected = read(table, "detection", **source)
    assert not rejected
    assert records[place(0)].boxes == (Box(2, 1, 42, 31, "dog"),)


def test_four_columns_are_the_boxes(read):
    columns = {
        "image": [b"1", b"2", b"3"],
        "xmin": [[0.25], [], [0.5, 0.5]],
        "ymin": [[0.5], [], [0.5]],
        "xmax": [[0.75], [], [0.75]],
        "ymax": [[1.0], [], [1.0]],
        "label": [["cat"], [], ["dog"]],
    }
    corners = ["xmin", "ymin", "xmax", "ymax"]
    records, rejected = read(columns, "detection", corners=corners, units="fractions")
    assert [record.boxes for record in records.values()] == [(Box(0.5, 0.25, 1, 0.75, "cat"),), ()]
    assert records[place(0)].frame.size == FRACTIONS
    assert rejected[place(2)] == ("malformed", "xmin, ymin, xmax, ymax have different lengths")


def test_split_and_group_are_columns(read):
    columns = {"image": [b"1", b"2"], "label": ["a", "b"], "s": ["val", "x"], "g": [7, None]}
    records, rejected = read(columns, split="s", group="g")
    assert (records[place(0)].split, records[place(0)].group) == ("validation", "7")
    assert rejected[place(1)][0] == "unknown_split"


@pytest.mark.parametrize(
    ("image", "label", "reason", "detail"),
    [
        (None, "cat", "no_image", "the column image holds no bytes"),
        (b"x", None, "no_label", "the label is None"),
        (b"x", "", "no_label", "the label is ''"),
        (b"x", "owl", "unknown_class", "'owl' is not among"),
    ],
)
def test_a_bad_row_is_kept_out_and_named(read, image, label, reason, detail):
    columns = {"image": [b"good", image], "label": ["cat", label]}
    records, rejected = read(columns, class_names=["cat"])
    assert list(records) == [place(0)]
    assert rejected[place(1)][0] == reason
    assert detail in rejected[place(1)][1]


@pytest.mark.parametrize(
    ("columns", "source", "message"),
    [
        ({"img": [b"1"], "label": ["a"]}, {}, "a.parquet: there is no column image.*img"),
        ({"image": [b"1"], "labels": ["a"]}, {}, "no column label.*labels.*source.label"),
        ({"image": [b"1"]}, {"task": "detection"}, "no column boxes.*preprocess.source.boxes"),
        ({"image": ["1.jpg"], "label": ["a"]}, {}, "holds text.*set preprocess.source.images"),
        ({"image": [1], "label": ["a"]}, {}, "is of the type int64, and must hold bytes"),
        ({"image": [[b"1"]], "label": ["a"]}, {}, "is of the type list"),
        ({"image": [b"1"], "label": ["a"]}, {"split": "s"}, "no column s.*source.split"),
        ({"image": [b"1"], "label": ["a"]}, {"parts": [{"files": "b*"}]}, "no file matches b"),
    ],
)
def test_what_the_config_names_wrongly_is_told(read, columns, source, message):
    with pytest.raises(DataError, match=message):
        read(columns, **source)


GOOD = make_file({"image": [b"%d" % row * 900 for row in range(20)], "label": ["cat"] * 20})


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no file", GOOD[:-1], GOOD[:500]])
def test_a_damaged_file_is_told_with_a_cure(raw, content):
    raw.add("a.parquet", content)
    with pytest.raises(DataError, match="a.parquet: not a Parquet file, or a damaged one.* again"):
        raw.read(type="parquet", task="classification")


def test_the_rows_of_a_damaged_row_group_are_rejected_one_by_one(raw):
    columns = {"image": [b"%d" % row * 900 for row in range(20)], "label": ["cat"] * 20}
    content = bytearray(
        make_file(columns, row_group_size=10, use_dictionary=False, write_page_checksum=True)
    )
    chunk = pq.read_metadata(io.BytesIO(content)).row_group(1).column(0)
    content[chunk.data_page_offset + chunk.total_compressed_size - 9] ^= 1
    raw.add("a.parquet", bytes(content))
    records, rejected = raw.read(type="parquet", task="classification")
    assert list(records) == [place(row) for row in range(10)]
    assert list(rejected) == [place(row) for row in range(10, 20)]
    assert {reason for reason, _ in rejected.values()} == {"corrupt"}


def test_a_row_group_that_is_too_large_is_refused_with_a_cure(raw):
    images = pa.chunked_array([pa.array([bytes(64 << 20)])] * 17)  # of the same memory
    table = pa.table({"image": images, "label": ["cat"] * 17})
    raw.add("a.parquet", make_file(table, use_dictionary=False))
    with pytest.raises(DataError, match=r"row group 0 have 1\d+ bytes.*row_group_size=100"):
        raw.read(type="parquet", task="classification")
