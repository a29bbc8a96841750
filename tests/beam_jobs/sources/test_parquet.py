"""Parquet files, written by pyarrow as Hugging Face and pandas do."""

from __future__ import annotations

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import beam_jobs.io.raw as raw_io
from beam_jobs.io.raw import RawReader, read_raw
from beam_jobs.stages.boxes import FRACTIONS
from beam_jobs.stages.stage import Box
from pipeline_ops.errors import DataError, MachineError
from pipeline_ops.raw_data.limits import TooLarge


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


def test_the_unread_rows_of_a_damaged_row_group_are_one_reject(raw):
    columns = {"image": [b"%d" % row * 900 for row in range(20)], "label": ["cat"] * 20}
    content = bytearray(
        make_file(columns, row_group_size=10, use_dictionary=False, write_page_checksum=True)
    )
    chunk = pq.read_metadata(io.BytesIO(content)).row_group(1).column(0)
    content[chunk.data_page_offset + chunk.total_compressed_size - 9] ^= 1
    raw.add("a.parquet", bytes(content))
    records, rejected = raw.read(type="parquet", task="classification")
    assert list(records) == [place(row) for row in range(10)]
    [(key, (reason, detail))] = rejected.items()
    assert (key, reason) == (place(10), "corrupt")
    assert detail.startswith("the rows 10 to 19 of row group 1 cannot be read: ")


def test_a_row_group_that_is_too_large_is_refused_with_a_cure(raw):
    images = pa.chunked_array([pa.array([bytes(64 << 20)])] * 17)  # of the same memory
    table = pa.table({"image": images, "label": ["cat"] * 17})
    raw.add("a.parquet", make_file(table, use_dictionary=False))
    with pytest.raises(TooLarge, match=r"row group 0 has 1\d+ bytes.*row_group_size=100"):
        raw.read(type="parquet", task="classification")


def replace_rows(content: bytes, old: int, new: int) -> bytes:
    """The file with another number of rows in its footer: in Thrift, a field `0x16 <varint>`."""
    footer_bytes = int.from_bytes(content[-8:-4], "little")
    body, footer = content[: -8 - footer_bytes], content[-8 - footer_bytes : -8]
    found, replaced = (b"\x16" + encode_varint(2 * number) for number in (old, new))
    assert found in footer
    footer = footer.replace(found, replaced)
    return body + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def encode_varint(number: int) -> bytes:
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + encode_varint(high) if high else bytes([low])


def test_a_footer_with_more_rows_than_the_file_has_costs_nothing(raw):
    """M2: 3 million rejects took 2.3 GB, and 2**40 rows never ended."""
    columns = {"image": [b"%d" % row * 900 for row in range(50)], "label": ["cat"] * 50}
    content = make_file(columns)
    raw.add("a.parquet", replace_rows(content, 50, 1 << 40))
    with pytest.raises(TooLarge, match=f"a.parquet: has {1 << 40} rows, allowed are 8"):
        raw.read(type="parquet", task="classification")
    raw.add("a.parquet", replace_rows(content, 50, 2000))  # which the file could hold
    records, rejected = raw.read(type="parquet", task="classification")
    assert len(records) == 50
    assert [*rejected] == [place(50)]
    assert "the rows 50 to 1999 of row group 0 cannot be read" in rejected[place(50)][1]


def test_two_million_rows_without_an_image_are_refused_before_they_are_read(raw):
    """M2: 9 kB did not end within four minutes."""
    nulls = pa.nulls(2_000_000)
    table = pa.table({"image": nulls.cast(pa.binary()), "label": nulls.cast(pa.string())})
    raw.add("a.parquet", make_file(table, compression="zstd"))
    with pytest.raises(TooLarge, match="has 2000000 rows, .* most rows have none"):
        raw.read(type="parquet", task="classification")


def test_the_text_of_a_class_counts_for_the_size_of_a_row_group(raw):
    """M2: 36 kB took 7.3 GB."""
    labels = pa.chunked_array([pa.array(["a" * (64 << 20)])] * 17)  # of the same memory
    table = pa.table({"image": [b"x"] * 17, "label": labels})
    raw.add("a.parquet", make_file(table, use_dictionary=False, compression="zstd"))
    with pytest.raises(TooLarge, match=r"row group 0 has 11\d+ bytes"):
        raw.read(type="parquet", task="classification")


@pytest.mark.parametrize("is_category", [False, True])
def test_rows_that_share_one_long_text_are_read_up_to_a_limit(read, is_category):
    """M2: 48 kB did not end within two minutes, because each row got a copy of the text."""
    labels = pa.DictionaryArray.from_arrays(pa.array([0] * 4000), ["a" * 1_000_000])
    table = pa.table({"image": [b"%d" % row for row in range(4000)], "label": labels})
    options = {"dictionary_pagesize_limit": 8 << 20, "store_schema": is_category}
    records, rejected = read(table, options=options)
    assert not records
    *long, (reason, detail) = [rejected[key] for key in sorted(rejected)]
    assert {reason for reason, _ in long} == {"too_large"}
    assert 1000 < len(long) < 1100
    assert reason == "corrupt" and "its rows have more than 1073741824 bytes" in detail


@pytest.mark.parametrize("boxes", ["lists", "objects"])
def test_equal_boxes_without_end_are_not_made(read, boxes):
    """24 kB were 4 GB of Python's objects, because equal boxes take next to no bytes."""
    number = 2_000_000
    starts = pa.array([0, number, number + 1], pa.int32())
    zeros = pa.FixedSizeListArray.from_arrays(np.zeros((number + 1) * 4), 4)
    labels = pa.ListArray.from_arrays(starts, np.zeros(number + 1, np.int64))
    columns = {"image": [b"a", b"b"], "objects": pa.ListArray.from_arrays(starts, zeros)}
    columns["label"] = labels
    if boxes == "objects":
        fields = pa.StructArray.from_arrays([zeros, labels.flatten()], ["bbox", "category"])
        columns["objects"] = pa.ListArray.from_arrays(starts, fields)
    records, rejected = read(pa.table(columns), "detection", boxes={"field": "objects"})
    assert not records
    [(reason, detail)] = rejected.values()
    assert reason == "corrupt" and "the rows 0 to 1 of row group 0 cannot be read" in detail
    assert "values, allowed are 4000000. Write the file again" in detail


def test_the_values_in_lists_are_limited_by_the_size_of_the_file(read, monkeypatch):
    monkeypatch.setattr(raw_io, "MIN_VALUES", 100)
    monkeypatch.setattr(raw_io, "MAX_VALUES_PER_BYTE", 0)
    columns = {"image": [b"%d" % row for row in range(40)], "label": ["a", "b"] * 20}
    columns["objects"] = [[{"bbox": [0, 0, 1, 1], "category": 0}]] * 40
    records, rejected = read(columns, "detection", boxes={"field": "objects"})
    assert len(records) == 0 and "allowed are 100" in "".join(map(str, rejected.values()))
