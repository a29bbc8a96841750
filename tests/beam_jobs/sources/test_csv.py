"""CSV manifests."""

from __future__ import annotations

import pytest

from beam_jobs.stages.boxes import FRACTIONS
from beam_jobs.stages.stage import Box
from pipeline_ops.errors import DataError

BOXES = "path,xmin,ymin,xmax,ymax,label"


@pytest.fixture
def read(raw):
    """Reads the lines of a manifest; the images 1.jpg to 3.jpg are there."""

    def read(*lines: str | bytes, task: str = "classification", **source):
        for number in (1, 2, 3):
            raw.add(f"images/{number}.jpg")
        raw.add(
            "m.csv",
            b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines),
        )
        return raw.read(type="csv", manifest="m.csv", images="images", task=task, **source)

    return read


def test_a_row_is_an_image_with_its_class(read):
    records, rejected = read(
        "split,path,label,group,camera",
        "train,1.jpg,cat,a,x",
        "val,2.jpg,dog,,y",
        ",3.jpg, cat ,b,z",
        "",
    )
    assert rejected == {}
    assert [
        (key, r.label, r.split, r.group, r.boxes, r.frame and r.frame.size)
        for key, r in records.items()
    ] == [
        ("images/1.jpg", "cat", "train", "a", None, None),
        ("images/2.jpg", "dog", "validation", None, None, None),
        ("images/3.jpg", "cat", None, "b", None, None),
    ]


def test_rows_of_one_image_are_its_boxes(read):
    records, rejected = read(
        f"{BOXES},width,height,is_crowd",
        "1.jpg,1,2,30,20,cat,40,30,1",
        "2.jpg,0,0,9,9,dog,,,",
        "1.jpg,3,4,5.5,6,dog,40,30,",
        "3.jpg,,,,,,40,30,",
        task="detection",
    )
    assert rejected == {}
    assert records["images/1.jpg"].boxes == (
        Box(2, 1, 20, 30, "cat", is_crowd=True),
        Box(4, 3, 6, 5.5, "dog"),
    )
    assert [records[f"images/{n}.jpg"].frame.size for n in (1, 2, 3)] == [(30, 40), None, (30, 40)]
    assert records["images/3.jpg"].boxes == ()


def test_boxes_may_be_fractions(read):
    assert (
        read(BOXES, "1.jpg,0.1,0.2,0.3,0.4,cat", task="detection", units="fractions")[0][
            "images/1.jpg"
        ].frame.size
        == FRACTIONS
    )


def test_what_excel_writes_is_read(read):
    assert (
        list(read("\ufeffpath,label\r", '"1.jpg","a ""big"", grey cat"\r')[0].values())[0].label
        == 'a "big", grey cat'
    )


def test_a_file_name_that_is_no_text_or_has_a_percent_sign_is_found(raw):
    raw.add("50% off.jpg")
    (raw.folder / "caf\udce9.jpg").write_bytes(b"image")
    raw.add("m.csv", b"path,label\n50% off.jpg,cat\ncaf\xe9.jpg,dog\n")
    records, rejected = raw.read(type="csv", manifest="m.csv", task="classification")
    assert (list(records), rejected) == (["50%25 off.jpg", "caf%E9.jpg"], {})


@pytest.mark.parametrize(
    "line, key, reason, detail",
    [
        ("9.jpg,cat", "images/9.jpg", "missing_image", "there is no file images/9.jpg"),
        ("/etc/passwd,cat", "/etc/passwd", "missing_image", "there is no file /etc/passwd"),
        ("../m.csv/../../x,cat", "../x", "missing_image", "there is no file ../x"),
        (",cat", "m.csv:3", "malformed", "line 3 has no path"),
        ("1.jpg,", "images/1.jpg", "no_label", "'' is not the name of a class"),
        ("1.jpg", "images/1.jpg", "malformed", "line 3 has 1 fields, and the header 2"),
        ("1.jpg,cat,cat", "images/1.jpg", "malformed", "line 3 has 3 fields, and the header 2"),
        ('1.jpg,"cat', "m.csv:3", "malformed", "line 3: unexpected end of data"),
        ('1.jpg,"cat"s', "m.csv:3", "malformed", "line 3: ',' expected after '\"'"),
        (b"1.jpg,\xff", "images/1.jpg", "no_label", "is not the name of a class"),
        ("2.jpg,dog", "images/2.jpg", "duplicate", "named more than once: m.csv:2, m.csv:3"),
        ("1.jpg,cow", "images/1.jpg", "unknown_class", "'cow' is not among"),
    ],
)
def test_a_bad_row_is_kept_out_and_named_with_its_line(read, line, key, reason, detail):
    records, rejected = read(
        "path,label",
        "2.jpg,cat",
        line,
        class_names=["cat", "dog"] if b"cow" in bytes(str(line), "utf-8") else None,
    )
    assert list(records) == ([] if reason == "duplicate" else ["images/2.jpg"])
    assert [(k, r) for k, (r, _) in rejected.items()] == [(key, reason)]
    assert detail in rejected[key][1]


@pytest.mark.parametrize(
    "line, reason, detail",
    [
        ("1.jpg,1,2,30,twenty,cat", "malformed", "line 3: 'twenty' is not a number"),
        ("1.jpg,1,2,30,,cat", "malformed", "line 3: '' is not a number"),
        ("1.jpg,nan,2,30,20,cat", "box_not_finite", "x nan to 30"),
        ("1.jpg,30,2,1,20,cat", "box_inverted", "x 30 to 1"),
        ("1.jpg,1,2,30,20", "malformed", "line 3 has 5 fields"),
        ("1.jpg,1,2,30,20,", "no_label", "is not the name"),
    ],
)
def test_a_bad_box_keeps_all_of_its_image_out(read, line, reason, detail):
    records, rejected = read(
        BOXES, "1.jpg,1,2,30,20,cat", line, "2.jpg,1,2,30,20,cat", task="detection"
    )
    assert list(records) == ["images/2.jpg"]
    assert rejected["images/1.jpg"][0] == reason
    assert detail in rejected["images/1.jpg"][1]


def test_rows_that_contradict_each_other_are_named(read):
    _, rejected = read(
        f"{BOXES},split", "1.jpg,1,2,30,20,cat,train", "1.jpg,1,2,30,20,cat,test", task="detection"
    )
    assert rejected == {"images/1.jpg": ("contradictory", "lines 2 and 3 differ in split")}


@pytest.mark.parametrize(
    "value, split",
    [("TRAIN", "train"), ("training_set", "train"), ("Dev", "validation"), ("holdout", "test")],
)
def test_a_split_is_a_word_of_the_value(read, value, split):
    records, rejected = read("path,label,split", f"1.jpg,cat,{value}")
    assert (records["images/1.jpg"].split, rejected) == (split, {})


def test_a_split_that_is_none_is_named(read):
    assert read("path,label,split", "1.jpg,cat,trian")[1] == {
        "images/1.jpg": (
            "unknown_split",
            "'trian'; splits are train, training, validation, valid, val, dev, eval, evaluation, "
            "test, testing, holdout",
        )
    }


@pytest.mark.parametrize(
    "header, task, message",
    [
        ("", "classification", "m.csv:1: the header lacks path, label"),
        (
            "file,label",
            "classification",
            (
                "m.csv:1: the header lacks path. "
                "For classification it needs path,label, got file,label"
            ),
        ),
        ("path,label", "detection", "m.csv:1: the header lacks xmin, ymin, xmax, ymax"),
        ("path,label,path", "classification", "m.csv:1: the header has path more than once"),
        ('path,"label', "classification", "m.csv:1: not the header of a CSV file"),
    ],
)
def test_a_header_that_lacks_a_column_is_told(read, header, task, message):
    with pytest.raises(DataError, match=message):
        read(header, task=task)


@pytest.mark.timeout(60)
def test_a_header_of_many_columns_is_read_in_linear_time(read):
    """N3: in quadratic time it takes three minutes."""
    names = ",".join(f"c{number}" for number in range(100_000))
    with pytest.raises(DataError, match="the header has c99999 more than once"):
        read(f"path,label,{names},c99999", task="classification")


def test_a_manifest_that_is_not_there_is_told(raw):
    with pytest.raises(
        DataError, match="n.csv: no such file. preprocess.source.manifest names this file"
    ):
        raw.read(type="csv", manifest="n.csv", task="classification")


def test_columns_may_have_other_names_and_separators(read):
    records, rejected = read(
        "filename;width;height;class;xmin;ymin;xmax;ymax;label",
        "1.jpg;40;30;cat;1;2;30;20;other",
        task="detection",
        columns={"path": "filename", "label": "class"},
    )
    assert rejected == {}
    assert records["images/1.jpg"].boxes == (Box(2, 1, 20, 30, "cat"),)
    assert records["images/1.jpg"].frame.size == (30, 40)


def test_a_column_that_the_config_names_and_the_file_lacks_is_told(read):
    with pytest.raises(DataError, match="m.csv:1: the header lacks kind.*name its columns in"):
        read("path,label", "1.jpg,cat", columns={"label": "kind"})


def test_several_tables_have_their_own_images_and_splits(raw):
    for split in ("train", "test"):
        raw.add(f"{split}/1.jpg")
        raw.add(f"{split}.csv", "path,label,split\n1.jpg,cat,\n")
    parts = [
        {"manifest": "train.csv", "images": "train", "split": "train"},
        {"manifest": "test.csv", "images": "test", "split": "test"},
    ]
    records, rejected = raw.read(type="csv", parts=parts, task="classification")
    found = {key: record.split for key, record in records.items()}
    assert (found, rejected) == ({"train/1.jpg": "train", "test/1.jpg": "test"}, {})


@pytest.mark.parametrize("path", ["2.jpg", "2", "C:\\cards\\train\\2.jpg", "/home/me/x/2.jpg"])
def test_an_image_is_found_by_its_name_alone(read, path):
    records, rejected = read("path,label", f"{path},cat", find_by="name")
    assert ([*records], rejected) == (["images/2.jpg"], {})


def test_a_name_that_no_image_has_or_several_have_is_kept_out(raw):
    for folder in ("a", "b"):
        raw.add(f"{folder}/1.jpg")
    raw.add("m.csv", "path,label\n1.jpg,cat\n2.jpg,cat\n")
    source = {"manifest": "m.csv", "task": "classification", "find_by": "name"}
    records, rejected = raw.read(type="csv", **source)
    assert records == {}
    assert rejected == {
        "m.csv:2": ("ambiguous_image", "2 images have the name 1.jpg: a/1.jpg, b/1.jpg"),
        "m.csv:3": ("missing_image", "there is no image of the name 2.jpg below ."),
    }
