"""Whatever stands in a file, the parsers raise nothing but DataError and Reject,
and what they return is sound."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from beam_jobs.sources import read_records
from beam_jobs.sources.tfrecord import parse_label_map
from beam_jobs.sources.voc import parse_annotation
from beam_jobs.stages.stage import Reject
from pipeline_ops.config.sources import AnySource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.local import list_raw_files
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.tfrecord import frame_record

_CASES = int(os.environ.get("TRAINYARD_FUZZ_CASES", "150"))
FEW = settings(
    max_examples=_CASES,
    deadline=None,
    derandomize=_CASES < 1000,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from(["", "1", "1_0", "nan", "-inf", "1e999", "0x1", "٣", "true"]),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    NUMBERS,
    st.text(st.characters()),
    st.sampled_from(["1.jpg", "cat", "train"]),
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


def xml_text(words: list) -> bytes:
    return "".join(map(str, words)).encode("utf-8", "surrogatepass")


XML = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "<annotation>",
                "</annotation>",
                "<object>",
                "</object>",
                "<name>cat</name>",
                "<name/>",
                "<bndbox>",
                "</bndbox>",
                "<xmin>1</xmin>",
                "<ymin>2</ymin>",
                "<xmax>3</xmax>",
                "<ymax>nan</ymax>",
                "<size><width>4</width><height>x</height></size>",
                "<difficult>1</difficult>",
                "<!--",
                "-->",
                "<![CDATA[",
                "]]>",
                "<!DOCTYPE a>",
                "<!DOCTYPE a [<!ENTITY x 'y'>]>",
                "<?xml version='1.1' encoding='utf-16'?>",
                "&lt;",
                "&#0;",
                "&x;",
            ]
        ),
        st.text(max_size=4),
    ),
    max_size=25,
).map(xml_text)
PBTXT = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "item",
                "{",
                "}",
                "<",
                ">",
                "id",
                ":",
                "1",
                "-7",
                "name",
                "'cat'",
                '"dog"',
                "'",
                "\\377",
                "#",
                "\n",
                "display_name",
                "[",
                "]",
                "keypoints",
                ",",
                ";",
            ]
        ),
        st.text(max_size=4),
    ),
    max_size=25,
).map(lambda words: " ".join(words).encode("utf-8", "surrogatepass"))


def xml_in_some_encoding(parts: tuple[bytes, str]) -> bytes:
    """The same XML in an encoding that no search for bytes sees through."""
    content, encoding = parts
    return content.decode("utf-8", "replace").encode(encoding, "replace")


ENCODED_XML = st.tuples(XML, st.sampled_from(["utf-16", "utf-16-be", "utf-32", "cp037"])).map(
    xml_in_some_encoding
)


def check_source(files: dict[str, bytes], **source) -> None:
    """Reads the source, and checks that each record can be used,
    and that nothing is there twice."""
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw"
        raw.mkdir()
        for name, content in files.items():
            (raw / name).write_bytes(content)
        config = TypeAdapter(AnySource).validate_python({"path": str(raw), **source})
        with contextlib.suppress(DataError):
            records, rejected, *_ = read_records(
                config, list_raw_files(raw, open_root(folder) / "listings")
            )
            for record in records:
                assert all(label.encode() for label in record.labels)
                assert all(
                    box.xmin < box.xmax < float("inf") and box.ymin < box.ymax < float("inf")
                    for box in record.boxes or ()
                )
                assert record.split in (None, "train", "validation", "test")
            for one in rejected:
                assert one.reason
                one.model_dump_json()
            assert not {record.key for record in records} & {one.key for one in rejected}


@FEW
@given(st.one_of(st.binary(), XML, ENCODED_XML))
def test_voc_annotations(content):
    with contextlib.suppress(Reject):
        parse_annotation(content)


@FEW
@given(st.one_of(st.binary(), PBTXT))
def test_label_maps(content):
    with contextlib.suppress(DataError):
        assert all(
            isinstance(number, int) and name
            for number, name in parse_label_map(content, "map.pbtxt").names.items()
        )


ROWS = st.lists(SCALARS.map(str), min_size=4, max_size=7).map(
    lambda row: ",".join(row).encode("utf-8", "surrogatepass")
)


@FEW
@given(st.lists(st.binary() | ROWS))
def test_csv_of_boxes(lines):
    content = b"\n".join([b"path,xmin,ymin,xmax,ymax,label", b"1.jpg,1,2,3,4,cat", *lines])
    check_source({"1.jpg": b"", "m.csv": content}, type="csv", manifest="m.csv", task="detection")


@FEW
@given(st.binary())
def test_csv_of_anything(content):
    check_source(
        {"1.jpg": b"", "m.csv": content}, type="csv", manifest="m.csv", task="classification"
    )
    check_source(
        {"1.jpg": b"", "m.csv": b"path,label,split,group\n" + content},
        type="csv",
        manifest="m.csv",
        task="classification",
    )


BOXES = st.dictionaries(
    st.sampled_from(["xmin", "ymin", "xmax", "ymax", "label", "is_crowd"]), SCALARS
)
OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "path": st.just("1.jpg") | JSON,
        "boxes": st.lists(BOXES, max_size=3) | JSON,
        "label": JSON,
        "split": JSON,
        "group": JSON,
        "width": JSON,
        "height": JSON,
    },
)
LINES = st.binary() | (OBJECTS | JSON).map(lambda value: json.dumps(value).encode())


@FEW
@given(st.lists(LINES, max_size=5), st.sampled_from(["classification", "detection"]))
def test_json_lines(lines, task):
    check_source(
        {"1.jpg": b"", "m.jsonl": b"\n".join(lines)}, type="jsonl", manifest="m.jsonl", task=task
    )


IDS = st.integers(0, 2)
IMAGES = st.fixed_dictionaries(
    {"id": IDS | JSON, "file_name": st.just("1.jpg") | JSON}, optional={"width": JSON}
)
CATEGORIES = st.fixed_dictionaries({"id": IDS | JSON, "name": st.just("cat") | JSON})
ANNOTATIONS = st.fixed_dictionaries(
    {"image_id": IDS, "category_id": IDS, "bbox": st.lists(NUMBERS, min_size=4, max_size=4) | JSON},
    optional={"iscrowd": JSON},
)


@FEW
@given(
    st.fixed_dictionaries(
        {
            "images": st.lists(IMAGES | JSON, max_size=3),
            "categories": st.lists(CATEGORIES | JSON, max_size=3),
            "annotations": st.lists(ANNOTATIONS | JSON, max_size=3),
        }
    )
)
def test_coco(value):
    check_source(
        {"1.jpg": b"", "a.json": json.dumps(value).encode()},
        type="coco",
        parts=[{"annotations": "a.json"}],
    )


LABELS = st.lists(
    st.lists(SCALARS | st.floats(0, 1) | st.integers(0, 2), max_size=9).map(
        lambda row: " ".join(map(str, row)).encode("utf-8", "surrogatepass")
    ),
    max_size=4,
).map(b"\n".join)
DATA = st.fixed_dictionaries(
    {"train": st.sampled_from([".", "train.txt"]) | JSON, "names": st.just(["cat"]) | JSON},
    optional={"path": JSON, "val": JSON, "nc": JSON},
)


@FEW
@given(st.binary() | LABELS, st.binary() | st.just(b"1.jpg"), DATA)
def test_yolo(labels, image_list, data):
    files = {
        "1.jpg": b"",
        "1.txt": labels,
        "train.txt": image_list,
        "data.yaml": json.dumps(data).encode(),
    }
    check_source(files, type="yolo")
    check_source(files | {"data.yaml": b"train: .\nnames: [cat, dog]"}, type="yolo")


CVAT = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "<image>",
                "<image name='1.jpg'>",
                "<image name='1.jpg' width='9' height='nan' subset='x'>",
                "</image>",
                "<box label='cat' xtl='1' ytl='2' xbr='3' ybr='4' rotation='7'/>",
                "<box label='cat' xtl='inf' ytl='2' xbr='3' ybr='x'/>",
                "<polygon label='cat' points='1,2;3,4;5,6'/>",
                "<polygon label='' points='1,2;nan,4;'/>",
                "<mask left='1' top='2' width='3' height='-4'/>",
                "<tag label='dog'/>",
                "<skeleton/>",
                "<track/>",
            ]
        ),
        st.text(max_size=4),
    ),
    max_size=12,
)


@FEW
@given(st.binary() | CVAT.map(lambda words: xml_text(["<annotations>", *words, "</annotations>"])))
def test_cvat(content):
    for task in ("classification", "detection"):
        check_source(
            {"1.jpg": b"", "a.xml": content},
            type="cvat",
            annotations="a.xml",
            images=".",
            task=task,
        )


VALUES = st.fixed_dictionaries(
    {},
    optional={
        "x": NUMBERS,
        "y": NUMBERS,
        "width": NUMBERS,
        "height": NUMBERS,
        "rotation": NUMBERS,
        "rectanglelabels": st.just(["cat"]) | JSON,
        "choices": st.just(["cat"]) | JSON,
        "points": JSON,
    },
)
RESULTS = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["rectanglelabels", "polygonlabels", "choices"]) | JSON,
        "value": VALUES | JSON,
    },
    optional={"original_width": st.just(9) | JSON, "original_height": st.just(9) | JSON},
)
TASKS = st.fixed_dictionaries(
    {},
    optional={
        "data": st.just({"image": "/data/upload/1.jpg"}) | JSON,
        "annotations": st.lists(
            st.fixed_dictionaries(
                {"result": st.lists(RESULTS, max_size=2) | JSON}, optional={"created_at": JSON}
            )
            | JSON,
            max_size=2,
        )
        | JSON,
        "image": st.just("1.jpg") | JSON,
        "label": st.lists(VALUES, max_size=2) | JSON,
        "choice": JSON,
        "id": JSON,
        "annotation_id": JSON,
    },
)


@FEW
@given(st.lists(TASKS | JSON, max_size=3), st.sampled_from(["classification", "detection"]))
def test_label_studio(tasks, task):
    check_source(
        {"1.jpg": b"", "a.json": json.dumps(tasks).encode()},
        type="label_studio",
        export="a.json",
        task=task,
        annotation="last",
    )


@FEW
@given(
    st.lists(
        st.one_of(st.binary().map(lambda record: b"".join(frame_record(record))), st.binary()),
        max_size=4,
    )
)
def test_tfrecords(chunks):
    check_source(
        {"a.record": b"".join(chunks)},
        type="tfrecord",
        task="detection",
        parts=[{"files": "a.record"}],
    )


SHAPES = st.fixed_dictionaries(
    {},
    optional={
        "label": st.just("cat") | JSON,
        "shape_type": st.sampled_from(["rectangle", "circle", "polygon"]) | JSON,
        "points": st.lists(st.lists(NUMBERS, min_size=2, max_size=2), max_size=3) | JSON,
        "group_id": JSON,
    },
)


@FEW
@given(st.lists(SHAPES, max_size=3) | JSON, st.just("1.jpg") | JSON, JSON)
def test_labelme(shapes, path, height):
    content = {"shapes": shapes, "imagePath": path, "imageHeight": height, "imageWidth": 9}
    check_source({"1.jpg": b"", "1.json": json.dumps(content).encode()}, type="labelme")


REGIONS = st.fixed_dictionaries(
    {},
    optional={
        "shape_attributes": st.fixed_dictionaries(
            {"name": st.sampled_from(["rect", "circle", "ellipse", "polygon"]) | JSON},
            optional=dict.fromkeys(("x", "y", "width", "height", "cx", "cy", "r", "rx"), NUMBERS)
            | dict.fromkeys(("all_points_x", "all_points_y"), st.lists(NUMBERS, max_size=3) | JSON),
        )
        | JSON,
        "region_attributes": st.just({"class": "cat"}) | JSON,
    },
)


@FEW
@given(st.lists(REGIONS, max_size=3) | JSON, st.just("1.jpg") | JSON, JSON)
def test_via(regions, name, other):
    content = {"1": {"filename": name, "regions": regions}, "2": other}
    files = {"1.jpg": b"", "a.json": json.dumps(content).encode()}
    check_source(files, type="via", parts=[{"manifest": "a.json"}])


@FEW
@given(LABELS, st.binary() | st.just(b"1.jpg 1,2,3,4,0"))
def test_yolo_with_a_file_of_classes(labels, image_list):
    files = {"1.jpg": b"", "1.txt": labels, "train.txt": image_list, "classes.txt": b"cat"}
    check_source(files, type="yolo", data="classes.txt")
