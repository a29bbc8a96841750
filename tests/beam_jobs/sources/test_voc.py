"""Pascal VOC: the records of a source, and the rejected entries with their reasons."""

from __future__ import annotations

import pytest

from beam_jobs.sources.folder_view import view_folder
from beam_jobs.sources.recognition import recognise
from beam_jobs.stages.stage import Box
from pipeline_ops.errors import DataError

SIZE = "<size><width>40</width><height>30</height></size>"


def an_object(xmin=1, ymin=2, xmax=30, ymax=20, name="cat", more="") -> str:
    corners = f"<xmin>{xmin}</xmin><ymin>{ymin}</ymin><xmax>{xmax}</xmax><ymax>{ymax}</ymax>"
    return f"<object><name>{name}</name>{more}<bndbox>{corners}</bndbox></object>"


def annotation(*objects: str, size: str = SIZE) -> str:
    return f"<annotation>{size}{''.join(objects)}</annotation>"


@pytest.fixture
def one(raw):
    """One image `1` with an annotation, next to a valid one."""
    raw.add("JPEGImages/good.jpg")
    raw.add("Annotations/good.xml", annotation(an_object()))

    def one(content: str | bytes, **source):
        raw.add("JPEGImages/1.jpg")
        raw.add("Annotations/1.xml", content)
        records, rejected = raw.read(type="voc", **source)
        assert "JPEGImages/good.jpg" in records
        return records.get("JPEGImages/1.jpg"), rejected

    return one


def test_boxes_are_taken_as_they_stand(one):
    record, rejected = one(
        annotation(
            an_object(1.5, 2, 30, 20), an_object(0, 0, 40, 30, "dog", "<difficult>1</difficult>")
        )
    )
    assert record.boxes == (Box(2, 1.5, 20, 30, "cat"), Box(0, 0, 30, 40, "dog", is_difficult=True))
    assert (record.frame.size, record.split, rejected) == ((30, 40), None, {})


def test_an_image_without_objects_is_an_example_without_boxes(one):
    assert one(annotation())[0].boxes == ()


def test_the_boxes_of_a_persons_parts_are_not_the_persons(one):
    part = (
        "<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin>"
        "<xmax>2</xmax><ymax>2</ymax></bndbox></part>"
    )
    assert one(annotation(an_object(more=part)))[0].boxes == (Box(2, 1, 20, 30, "cat"),)


@pytest.mark.parametrize("size", ["", "<size/>", "<size><width>0</width><height>0</height></size>"])
def test_a_size_that_is_not_given_is_not_checked(one, size):
    assert one(annotation(an_object(xmax=9999), size=size))[0].frame.size is None


@pytest.mark.parametrize(
    "content, reason, detail",
    [
        ("", "malformed", "not well-formed XML: no element found"),
        ("<annotation><object>", "malformed", "not well-formed XML"),
        ("I am a text", "malformed", "not well-formed XML: syntax error: line 1"),
        (b"\xff\xfe\x00\x01", "malformed", "not well-formed XML"),
        (
            "<?xml version='1.0' encoding='klingon'?><annotation/>",
            "malformed",
            "not well-formed XML",
        ),
        ("<html/>", "malformed", "the XML is a <html> and not an <annotation>"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><annotation/>', "malformed", "declares a document type"),
        (
            '<!DOCTYPE a [<!ENTITY b "c">]><annotation>&b;</annotation>'.encode("utf-16"),
            "malformed",
            "declares a document type",
        ),
        (annotation(" " * (16 << 20)), "too_large", "allowed are 16777216"),
        (annotation("<object/>"), "malformed", "an <object> without <name>"),
        (
            annotation("<object><name>cat</name><bndbox><xmin>1</xmin></bndbox></object>"),
            "malformed",
            "a <bndbox> without <ymin>, <ymax>",
        ),
        (annotation(an_object(xmin="one")), "malformed", "'one' is not a number"),
        (annotation(an_object(xmin="1_0")), "malformed", "'1_0' is not a number"),
        (annotation(an_object(xmin="")), "malformed", "'' is not a number"),
        (
            annotation(an_object(more="<difficult>maybe</difficult>")),
            "malformed",
            "'maybe' must be 0 or 1",
        ),
        (
            annotation(an_object(), size="<size><width>x</width><height>1</height></size>"),
            "malformed",
            "'x' is not a number",
        ),
        (annotation(an_object(xmin="nan")), "box_not_finite", "cat: x nan to 30"),
        (annotation(an_object(xmax="1e999")), "box_not_finite", "x 1 to inf"),
        (annotation(an_object(xmin=30, xmax=1)), "box_inverted", "cat: x 30 to 1, y 2 to 20"),
        (annotation(an_object(ymin=21)), "box_inverted", "y 21 to 20"),
        (
            annotation(an_object(xmax=45)),
            "box_outside",
            "x 1 to 45, y 2 to 20 in an image of 40x30 pixels",
        ),
        (annotation(an_object(ymin=-3.5)), "box_outside", "y -3.5 to 20"),
        (annotation(an_object(name="")), "no_label", "'' is not the name of a class"),
    ],
)
def test_a_bad_annotation_keeps_its_image_out_with_the_reason(one, content, reason, detail):
    record, rejected = one(content)
    assert record is None
    assert list(rejected) == ["JPEGImages/1.jpg"]
    assert rejected["JPEGImages/1.jpg"][0] == reason
    assert detail in rejected["JPEGImages/1.jpg"][1]


def test_a_box_without_extent_is_kept_out_alone_and_named(one):
    record, rejected = one(annotation(an_object(), an_object(5, 6, 5, 6), an_object(7, 7, 9, 9)))
    assert len(record.boxes) == 2
    assert rejected == {"JPEGImages/1.jpg#box-1": ("box_empty", "cat: x 5 to 5, y 6 to 6")}


def test_a_class_that_is_not_in_the_config_is_kept_out(one):
    record, rejected = one(
        annotation(an_object(), an_object(name="cow")), class_names=["cat", "dog"]
    )
    assert record is None
    assert rejected == {
        "JPEGImages/1.jpg": ("unknown_class", "'cow' is not among preprocess.source.class_names")
    }


def test_an_image_without_annotation_and_an_annotation_without_image_are_named(raw):
    raw.add("JPEGImages/1.jpg")
    raw.add("JPEGImages/2.jpg")
    raw.add("Annotations/2.xml", annotation())
    raw.add("Annotations/3.xml", annotation())
    records, rejected = raw.read(type="voc")
    assert list(records) == ["JPEGImages/2.jpg"]
    assert {key: reason for key, (reason, _) in rejected.items()} == {
        "JPEGImages/1.jpg": "no_annotation",
        "Annotations/3.xml": "missing_image",
    }


def test_two_images_of_one_name_are_ambiguous(one, raw):
    raw.add("JPEGImages/1.png")
    assert one(annotation())[1]["JPEGImages/1.jpg"] == (
        "ambiguous_image",
        "the annotation may be for each of JPEGImages/1.jpg, JPEGImages/1.png",
    )


@pytest.fixture
def listed(raw):
    for name in "abcd":
        raw.add(f"JPEGImages/{name}.jpg")
        raw.add(f"Annotations/{name}.xml", annotation())
    raw.add("ImageSets/Main/train.txt", "a\n\n")
    raw.add("ImageSets/Main/val.txt", "b\r\n")
    raw.add("ImageSets/Main/trainval.txt", "a\nb\n")
    raw.add("ImageSets/Main/test.txt", "c")
    return raw


def splits(records) -> dict[str, str | None]:
    return {key.removeprefix("JPEGImages/"): record.split for key, record in records.items()}


def test_the_lists_are_the_splits_and_what_is_in_none_is_named(listed):
    records, rejected = listed.read(type="voc")
    assert splits(records) == {"a.jpg": "train", "b.jpg": "validation", "c.jpg": "test"}
    assert rejected["JPEGImages/d.jpg"][0] == "unlisted"


def test_what_is_in_no_list_can_be_ignored(listed):
    records, rejected = listed.read(type="voc", unlisted="ignore")
    assert (len(records), rejected) == (3, {})


def test_lists_of_other_names(listed):
    assert splits(
        listed.read(type="voc", image_sets={"train": "trainval", "validation": "none"})[0]
    ) == {"a.jpg": "train", "b.jpg": "train", "c.jpg": "test"}


def test_without_lists_the_config_splits(listed):
    assert set(splits(listed.read(type="voc", image_sets=None)[0]).values()) == {None}


def test_an_image_in_two_lists_would_leak_and_is_kept_out(listed):
    listed.add("ImageSets/Main/test.txt", "c\na")
    assert listed.read(type="voc")[1]["JPEGImages/a.jpg"] == (
        "contradictory_split",
        "listed more than once: for train, test",
    )


def test_a_listed_name_without_files_is_named(listed):
    listed.add("ImageSets/Main/test.txt", "c\nzebra")
    assert listed.read(type="voc")[1]["JPEGImages/zebra"][0] == "missing_image"


def test_a_folder_that_is_not_voc_is_told(raw):
    raw.add("cat/1.jpg")
    with pytest.raises(DataError, match="a VOC source needs images in the folder JPEGImages and"):
        raw.read(type="voc")


@pytest.mark.parametrize(
    "image, xml, source",
    [
        ("images/1.jpg", "annotations/1.xml", {"images": "images", "annotations": "annotations"}),
        ("images/1.jpg", "xml/voc/1.xml", {"images": "images", "annotations": "xml/voc"}),
        ("1.jpg", "1.xml", {"images": ".", "annotations": "."}),
        ("a/1.JPG", "a/1.XML", {"images": "a", "annotations": "a"}),
        ("1.jpg", "labels/1.xml", {"images": ".", "annotations": "labels"}),
    ],
)
def test_images_and_annotations_are_in_any_folders(raw, image, xml, source):
    raw.add(image)
    raw.add(xml, annotation(an_object()))
    raw.add("table.csv", "no image")
    records, rejected = raw.read(type="voc", **source)
    assert ([*records], rejected) == ([image], {})
    assert records[image].split is None


@pytest.mark.parametrize(
    "image, xml, source",
    [
        ("images/{}/1.jpg", "images/{}/1.xml", {"images": "images", "annotations": "images"}),
        ("{}/1.jpg", "{}/1.xml", {"images": ".", "annotations": "."}),
        ("{}/images/1.jpg", "{}/xml/1.xml", {"images": "images", "annotations": "xml"}),
        ("images/{}/1.jpg", "xml/{}/1.xml", {"images": "images", "annotations": "xml"}),
    ],
)
def test_folders_of_splits_are_the_splits_and_may_have_the_same_names(raw, image, xml, source):
    for folder in ("train", "valid"):
        raw.add(image.format(folder))
        raw.add(xml.format(folder), annotation(an_object(name=folder)))
    records, rejected = raw.read(type="voc", **source)
    found = {key: (record.split, record.labels) for key, record in records.items()}
    assert rejected == {}
    assert found == {
        image.format("train"): ("train", ["train"]),
        image.format("valid"): ("validation", ["valid"]),
    }


def test_a_single_folder_of_a_split_is_only_a_folder(raw):
    raw.add("train/1.jpg")
    raw.add("train/1.xml", annotation(an_object()))
    records, _ = raw.read(type="voc", images=".", annotations=".")
    assert records["train/1.jpg"].split is None


@pytest.mark.parametrize(
    ("image", "xml"),
    [("IMG_1.JPG", "img_1.xml"), ("sub/a.png", "Sub/A.XML"), ("Straße.jpg", "STRASSE.xml")],
)
def test_names_of_image_and_annotation_may_differ_in_case(one, raw, image, xml):
    raw.add(f"JPEGImages/{image}")
    raw.add(f"Annotations/{xml}", annotation(an_object(name="dog")))
    assert one(annotation())[1] == {}
    assert raw.read(type="voc")[0][f"JPEGImages/{image}"].labels == ["dog"]


def test_lists_may_name_the_annotation_where_the_image_differs_in_case(raw):
    raw.add("JPEGImages/IMG_1.JPG")
    raw.add("Annotations/img_1.xml", annotation(an_object()))
    raw.add("ImageSets/Main/train.txt", "img_1\n")
    records, rejected = raw.read(type="voc", image_sets={"train": "train"})
    assert rejected == {} and records["JPEGImages/IMG_1.JPG"].split == "train"


def test_of_two_names_that_differ_in_case_none_is_taken(one, raw):
    raw.add("JPEGImages/A.jpg")
    raw.add("Annotations/a.xml", annotation(an_object()))
    raw.add("JPEGImages/a.png")
    raw.add("Annotations/B.xml", annotation(an_object()))
    raw.add("JPEGImages/b.png")
    raw.add("JPEGImages/b.jpg")
    _, rejected = one(annotation())
    reasons = {key: reason for key, (reason, _) in rejected.items()}
    assert reasons == {"JPEGImages/A.jpg": "no_annotation", "JPEGImages/b.jpg": "ambiguous_image"}


def named(name: str) -> str:
    return f"<annotation><filename>{name}</filename>{SIZE}{an_object()}</annotation>"


@pytest.mark.parametrize(
    "name",
    ["IMG_1.jpg", "img_1.JPG", "IMG_1.png", "C:\\shots\\IMG_1.jpg", " a/IMG_1.jpg ", "IMG_1"],
)
def test_an_annotation_belongs_to_the_image_of_its_file_name(raw, name):
    raw.add("JPEGImages/IMG_1.jpg")
    raw.add("JPEGImages/2.jpg")
    raw.add("Annotations/0001.xml", named(name))
    raw.add("Annotations/2.xml", named("IMG_1.jpg"))  # its own image comes first
    records, rejected = raw.read(type="voc")
    assert (sorted(records), rejected) == (["JPEGImages/2.jpg", "JPEGImages/IMG_1.jpg"], {})


@pytest.mark.parametrize("text", ["", "<", named(""), named("9.jpg"), named("2.jpg")])
def test_without_an_image_of_its_file_name_an_annotation_is_rejected(raw, text):
    for name in ("1.jpg", "2.jpg", "2.xml"):
        raw.add(f"data/{name}", annotation(an_object()))
    raw.add("data/7.xml", text)
    records, rejected = raw.read(type="voc", images="data", annotations="data")
    assert list(records) == ["data/2.jpg"]
    assert {key: reason for key, (reason, _) in rejected.items()} == {
        "data/1.jpg": "no_annotation",
        "data/7.xml": "missing_image",
    }


def test_two_images_of_the_file_name_are_not_guessed(raw):
    for split in ("train", "test"):
        raw.add(f"{split}/images/1.jpg")
        raw.add(f"{split}/xml/a.xml", named("1.jpg"))
    assert not raw.read(type="voc", images="images", annotations="xml")[0]


def test_annotations_with_other_names_and_lists_with_suffixes_are_recognised(raw):
    raw.add("images/IMG_1.jpg")
    raw.add("xml/1.xml", named("IMG_1.png"))
    match = recognise(view_folder(raw.folder))
    assert (match.type, match.keys) == ("voc", {"images": ".", "annotations": "."})
    raw.add("xml/IMG_1.xml", named("IMG_1.jpg"))
    raw.add("ImageSets/Main/train.txt", "IMG_1.jpg\r\n1\r\n")
    assert recognise(view_folder(raw.folder)).reason.endswith("the lists train name all of them")
