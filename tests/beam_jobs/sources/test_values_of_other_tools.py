"""Values as annotation tools write them: each means the same in every source."""

from __future__ import annotations

import itertools
import json
import unicodedata

import numpy as np
import pytest

from beam_jobs.sources.parsing import decode_text, enclose_mask, parse_flag, parse_id, parse_text
from beam_jobs.stages.boxes import FRACTIONS, convert_boxes
from beam_jobs.stages.stage import Box, BoxFrame, Reject

FALSE = [
    0,
    "0",
    False,
    "False",
    "FALSE",
    " no ",
    None,
    "",
    "null",
    "None",
    "Unspecified",
    0.0,
    "0.0",
]
TRUE = [1, "1", True, "true", "TRUE", "yes", 1.0, "T"]


@pytest.mark.parametrize("value, wanted", [(v, False) for v in FALSE] + [(v, True) for v in TRUE])
def test_a_flag_is_read_as_tools_write_it(value, wanted):
    assert parse_flag(value, "iscrowd") is wanted


@pytest.mark.parametrize("value", [2, "maybe", -1, [0], {}, "10"])
def test_another_flag_names_its_key(value):
    with pytest.raises(Reject) as caught:
        parse_flag(value, "iscrowd")
    assert caught.value.detail.startswith("iscrowd: ")


@pytest.mark.parametrize("one, other", [*itertools.pairwise([7, "7", 7.0, " 7"])])
def test_an_id_is_one_as_number_and_as_text(one, other):
    assert parse_id(one) == parse_id(other) == "7"


@pytest.mark.parametrize("value", [True, None, [], {}, ""])
def test_other_values_are_no_ids(value):
    assert parse_id(value) is None


@pytest.mark.parametrize(
    "value, wanted",
    [(0, "0"), (12.0, "12"), (" cat ", "cat"), (unicodedata.normalize("NFD", "Äpfel"), "Äpfel")],
)
def test_a_name_may_be_a_number_and_has_one_form(value, wanted):
    assert parse_text(value) == wanted


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]
)
def test_text_is_decoded_by_its_mark_or_its_zeros(encoding):
    assert decode_text("path,label\nä.jpg,猫\n".encode(encoding)) == "path,label\nä.jpg,猫\n"


# The same picture, a box of 10x20 at (5, 6), in the sources


def unpack(found):
    """The records, and the key, reason and detail of each reject."""
    records, rejected = found
    return list(records.values()), [(key, *why) for key, why in rejected.items()]


def read_voc(raw, text: bytes | str, image: str = "1.png"):
    raw.add(f"JPEGImages/{image}")
    raw.add("Annotations/1.xml", text)
    return unpack(raw.read(type="voc"))


def xml(body: str, declared: str = "", root: str = "annotation") -> str:
    return f"{declared}<{root}><size><width>64</width><height>48</height></size>{body}</annotation>"


CORNERS = "<xmin>5</xmin><ymin>6</ymin><xmax>15</xmax><ymax>26</ymax>"
WANTED = Box(6, 5, 26, 15, "cat")


@pytest.mark.parametrize(
    "body",
    [
        f"<object><name>cat</name><difficult>Unspecified</difficult><bndbox>{CORNERS}</bndbox>"
        "</object>",
        f"<object><name> cat\n</name><difficult>False</difficult><bndbox>{CORNERS}</bndbox>"
        "</object>",
        "<object><name>cat</name><polygon><x1>5</x1><y1>6</y1><x2>15</x2><y2>6</y2><x3>9</x3>"
        "<y3>26</y3></polygon></object>",
        "<object><name>cat</name><polygon><pt><x>5</x><y>26</y></pt><pt><x>15</x><y>6</y></pt>"
        "<pt><x>9</x><y>10</y></pt></polygon></object>",
        "<object><name>cat</name><robndbox><cx>10</cx><cy>16</cy><w>20</w><h>10</h>"
        f"<angle>{np.pi / 2}</angle></robndbox></object>",
        "<object><name>cat</name><attributes><attribute><name>rotation</name><value>90.0</value>"
        "</attribute></attributes><bndbox><xmin>0</xmin><ymin>11</ymin><xmax>20</xmax>"
        "<ymax>21</ymax></bndbox></object>",
    ],
)
def test_an_object_of_voc_is_its_box(raw, body):
    [record], rejected = read_voc(raw, xml(body))
    [box] = record.boxes
    assert not rejected and box.label == "cat"
    corners = box.ymin, box.xmin, box.ymax, box.xmax
    assert corners == pytest.approx((6, 5, 26, 15))


def test_each_box_of_an_object_of_voc_is_an_object(raw):
    more = CORNERS.replace(">5<", ">7<")
    body = f"<object><name>cat</name><bndbox>{CORNERS}</bndbox><bndbox>{more}</bndbox></object>"
    [record], _ = read_voc(raw, xml(body))
    assert record.boxes == (WANTED, Box(6, 7, 26, 15, "cat"))


@pytest.mark.parametrize(
    "declared, encoding, label",
    [
        ('<?xml version="1.0" encoding="gb2312"?>', "gb2312", "行人"),
        ('<?xml version="1.0" encoding="GBK" standalone="yes"?>', "gbk", "车辆"),
        ('<?xml version="1.0" encoding="Shift_JIS"?>', "cp932", "猫"),
        ('<?xml version="1.0" encoding="euc-kr"?>', "cp949", "고양이"),
        ('<?xml version="1.0" encoding="utf-16"?>', "utf-8", "Hündchen"),
        ('<?xml version="1.0" encoding="utf-16"?>', "utf-16", "Hündchen"),
        ('<?xml version="1.0" encoding="gb2312"?>', "utf-8-sig", "行人"),
        ('<?xml version="1.0" encoding="windows-1252"?>', "cp1252", "Hündchen"),
    ],
)
def test_xml_is_read_in_the_encoding_that_it_really_has(raw, declared, encoding, label):
    body = f"<object><name>{label}</name><bndbox>{CORNERS}</bndbox></object>"
    [record], rejected = read_voc(raw, xml(body, declared).encode(encoding))
    assert (record.boxes[0].label, rejected) == (label, [])


def test_xml_in_another_encoding_than_it_declares_names_the_cure(raw):
    body = f"<object><name>ÿ</name><bndbox>{CORNERS}</bndbox></object>"
    text = xml(body, '<?xml version="1.0" encoding="gb2312"?>').encode("cp1252")
    _, [(_, _, detail)] = read_voc(raw, text)
    assert "gb2312" in detail and "Save the file as UTF-8" in detail


def test_lists_of_voc_may_name_files_with_their_suffix(raw):
    raw.add("ImageSets/Main/train.txt", "1.png\r\n")
    [record], rejected = read_voc(raw, xml(""))
    assert (record.split, rejected) == ("train", [])


def read_coco(raw, annotation, image=(), name="cat", path="im 1.jpg"):
    raw.add("images/im 1.jpg")
    content = {
        "images": [{"id": 1, "file_name": path, "width": 64, "height": 48, **dict(image)}],
        "categories": [{"id": 3, "name": name}],
        "annotations": [{"image_id": 1, "category_id": 3, "bbox": [5, 6, 10, 20], **annotation}],
    }
    raw.add("a.json", json.dumps(content))
    part = {"annotations": "a.json", "images": "images"}
    return unpack(raw.read(type="coco", parts=[part]))


def mask() -> list[int]:
    """The runs of WANTED in an image of 64x48."""
    pixels = np.zeros((48, 64), int)
    pixels[6:26, 5:15] = 1
    flat = np.concatenate([[0], pixels.flatten("F")])
    starts = np.flatnonzero(np.diff(flat))
    return [int(n) for n in np.diff([0, *starts, 48 * 64])]


def compress(runs: list[int]) -> str:
    """As `rleToString` of COCO's `maskApi.c`: five bits at a time, and a sixth for more."""
    text = ""
    for index, run in enumerate(runs):
        value, has_more = run - (runs[index - 2] if index > 2 else 0), True
        while has_more:
            group, value = value & 0x1F, value >> 5
            has_more = value != (-1 if group & 0x10 else 0)
            text += chr((group | (0x20 if has_more else 0)) + 48)
    return text


@pytest.mark.parametrize(
    "annotation",
    [
        {"iscrowd": None},
        {"iscrowd": "0", "image_id": "1", "category_id": "3"},
        {"image_id": 1.0},
        {"bbox": [], "segmentation": [[5, 6, 15, 6, 15, 26, 5, 26]]},
        {"bbox": None, "segmentation": [[5, 6, 9, 6, 9, 20], [10, 8, 15, 20, 10, 26]]},
        {"bbox": [], "segmentation": [5, 6, 15, 6, 15, 26]},
        {"bbox": [], "segmentation": {"size": [48, 64], "counts": mask()}},
        {"bbox": [], "segmentation": {"size": [48, 64], "counts": compress(mask())}},
        {"bbox": [0, 11, 20, 10], "attributes": {"occluded": False, "rotation": 90.0}},
        {"bbox": ["5", "6.0", "10", "20"]},
    ],
)
def test_an_annotation_of_coco_is_its_box(raw, annotation):
    [record], rejected = read_coco(raw, annotation)
    [box] = record.boxes
    assert not rejected and (box.label, box.is_crowd) == ("cat", False)
    assert (box.ymin, box.xmin, box.ymax, box.xmax) == pytest.approx((6, 5, 26, 15))


@pytest.mark.parametrize(
    "counts, fault",
    [
        ([1, 2], "3 pixels, for an image of 64x48"),
        ([48 * 64], "without pixels"),
        ([-1, 1], "must be numbers"),
        ("\x7f", "in the counts"),
        ("o" * 200, "in the counts"),
    ],
)
def test_a_mask_that_is_none_is_told(counts, fault):
    with pytest.raises(Reject, match=fault):
        enclose_mask([48, 64], counts)


@pytest.mark.parametrize("name, wanted", [(0, "0"), (7.0, "7"), (" cat", "cat")])
def test_a_category_may_be_a_number(raw, name, wanted):
    [record], _ = read_coco(raw, {}, name=name)
    assert record.boxes[0].label == wanted


@pytest.mark.parametrize(
    "path",
    [
        "im 1.jpg",
        ".\\im 1.jpg",
        " im 1.jpg ",
        "IM 1.JPG",
        "C:\\Users\\me\\data\\im 1.jpg",
        "/content/data/im 1.jpg",
        "../images/im 1.jpg",
        "..\\images\\im 1.jpg",
    ],
)
def test_the_path_of_an_image_is_found_as_tools_write_it(raw, path):
    [record], rejected = read_coco(raw, {}, path=path)
    assert (record.key, rejected) == ("images/im 1.jpg", [])


def test_a_path_that_may_be_each_of_two_files_is_refused(raw):
    raw.add("images/IM 1.jpg")
    [_], rejected = read_coco(raw, {})
    assert not rejected
    _, [rejected] = read_coco(raw, {}, path="Im 1.jpg")
    assert rejected[1] == "ambiguous_image"


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("written", ["NFC", "NFD"])
def test_names_of_macos_are_found(raw, form, written):
    raw.add(unicodedata.normalize(form, "fotos/Äpfel.jpg"))
    line = {"path": unicodedata.normalize(written, "fotos/Äpfel.jpg"), "label": "apple"}
    raw.add("a.jsonl", json.dumps(line))
    [record], rejected = unpack(raw.read(type="jsonl", manifest="a.jsonl", task="classification"))
    assert (record.label, rejected) == ("apple", [])


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le"])
@pytest.mark.parametrize("separator", [",", "\t", ";"])
def test_a_table_of_excel_is_read(raw, encoding, separator):
    raw.add("1.jpg")
    rows = ["path,label", " 1.jpg, Hündchen"]
    text = "\r\n".join(row.replace(",", separator) for row in rows)
    raw.add("a.csv", text.encode(encoding))
    [record], _ = unpack(raw.read(type="csv", manifest="a.csv", task="classification"))
    assert (record.key, record.label) == ("1.jpg", "Hündchen")


# Boxes


def test_equal_boxes_count_once_and_are_told_in_one_line(raw):
    each = f"<object><name>cat</name><bndbox>{CORNERS}</bndbox></object>"
    other = each.replace("cat", "dog")
    [record], [rejected] = read_voc(raw, xml(each * 3 + other * 2))
    assert record.boxes == (WANTED, Box(6, 5, 26, 15, "dog"))
    detail = "3 of 5 boxes equal another one, such as cat: x 5 to 15, y 6 to 26"
    assert rejected == ("JPEGImages/1.png#boxes", "box_duplicate", detail)


SIZE = (48, 64)


@pytest.mark.parametrize(
    "box, options, wanted",
    [
        (Box(-4, 5, 26, 15, "a"), {}, Box(0, 5, 26, 15, "a")),
        (Box(6, 60, 52.8, 70.4, "a"), {}, Box(6, 60, 48, 64, "a")),
        (Box(6, 60, 26, 71, "a"), {}, "box_outside"),
        (Box(6, 60, 26, 71, "a"), {"max_outside": 0.2}, Box(6, 60, 26, 64, "a")),
        (Box(6, 60, 26, 65, "a"), {"max_outside": 0.0}, Box(6, 60, 26, 64, "a")),
        (Box(6, 60, 26, 66, "a"), {"outside": "reject"}, "box_outside"),
        (Box(6, 60, 26, 66, "a"), {"outside": "drop"}, None),
        (Box(6, 60, 26, 65, "a"), {"outside": "drop"}, Box(6, 60, 26, 64, "a")),
        (Box(6, 90, 26, 96, "a"), {"outside": "drop"}, None),
        (Box(6, 64, 26, 70, "a"), {}, "box_outside"),
    ],
)
def test_a_box_that_leaves_its_image_is_clipped_rejected_or_dropped(box, options, wanted):
    frame = BoxFrame(SIZE, **options)
    if isinstance(wanted, str):
        with pytest.raises(Reject) as caught:
            convert_boxes([box], frame, SIZE, 1)
        assert caught.value.reason == wanted
    else:
        assert convert_boxes([box], frame, SIZE, 1) == (() if wanted is None else (wanted,))


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("size", [None, FRACTIONS, (32, 32)])
def test_boxes_of_a_turned_image_are_no_guess(orientation, size):
    stored = (32, 32)
    with pytest.raises(Reject) as caught:
        convert_boxes([Box(0.1, 0.1, 0.5, 0.4, "a")], BoxFrame(size), stored, orientation)
    assert caught.value.reason == "unclear_orientation"
    assert "preprocess.source.boxes.drawn_on" in caught.value.detail
    assert convert_boxes([], BoxFrame(size), stored, orientation) == ()


@pytest.mark.parametrize("size", [None, (48, 64)])
def test_boxes_drawn_in_a_browser_stay_where_they_are(size):
    box = Box(6, 5, 26, 15, "a")
    assert convert_boxes([box], BoxFrame(size, "upright"), (48, 64), 3) == (box,)
    assert convert_boxes([box], BoxFrame(size, "stored"), (48, 64), 3) == (
        Box(22, 49, 42, 59, "a"),
    )


def test_the_size_tells_the_picture_of_an_image_on_its_side():
    box = Box(6, 5, 26, 15, "a")
    for drawn_on in (None, "stored", "upright"):
        assert convert_boxes([box], BoxFrame((64, 48), drawn_on), (48, 64), 6) == (box,)
        turned = convert_boxes([box], BoxFrame((48, 64), drawn_on), (48, 64), 6)
        assert turned == (Box(5, 22, 15, 42, "a"),)
