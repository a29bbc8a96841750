"""The layouts of YOLO."""

from __future__ import annotations

import pytest

from beam_jobs.sources.folder_view import view_folder
from beam_jobs.sources.recognition import recognise
from beam_jobs.stages.stage import Box
from pipeline_ops.errors import DataError

COCO8 = """\
# Ultralytics YOLO: the form of coco8.yaml, whose `path` is below Ultralytics' own folder
path: coco8 # dataset root dir
train: images/train # train images (relative to 'path') 4 images
val: images/val # val images (relative to 'path') 4 images
test: # test images (optional)

# Classes
names:
  0: cat
  1: dog

download: https://example.invalid/coco8.zip
"""
ROBOFLOW = """\
train: ../train/images
val: ../valid/images
test: ../test/images

nc: 2
names: ['cat', 'dog']

roboflow:
  workspace: w
  license: CC BY 4.0
"""


def splits(records) -> dict[str, str]:
    return {key: record.split for key, record in records.items()}


@pytest.fixture
def one(raw):
    """Reads a data set whose image 1 has this label file, and 2 a good one."""

    def read(label: str | bytes, data: str = COCO8):
        raw.add("data.yaml", data)
        raw.add("images/train/1.jpg")
        raw.add("images/train/2.jpg")
        raw.add("images/val/3.jpg")
        raw.add("labels/train/1.txt", label)
        raw.add("labels/train/2.txt", "1 0.5 0.5 0.5 0.25\n")
        return raw.read(type="yolo")

    return read


def test_a_line_is_a_class_and_the_centre_and_size_of_a_box(one):
    records, rejected = one("0 0.25 0.5 0.5 0.75\r\n1 0.500000 0.5 1 1\n\n")
    assert rejected == {}
    assert records["images/train/1.jpg"].boxes == (
        Box(0.125, 0.0, 0.875, 0.5, "cat"),
        Box(0.0, 0.0, 1.0, 1.0, "dog"),
    )
    assert splits(records) == {
        "images/train/1.jpg": "train",
        "images/train/2.jpg": "train",
        "images/val/3.jpg": "validation",
    }


def test_an_image_without_a_label_file_or_with_an_empty_one_has_no_boxes(one):
    records, _ = one("")
    assert records["images/train/1.jpg"].boxes == records["images/val/3.jpg"].boxes == ()


@pytest.mark.parametrize(
    "line",
    [
        "1 0.25 0.5 0.75 0.5 0.5 0.875",  # a segment of three points
        "1 0.25 0.5 0.75 0.5 0.75 0.875 0.25 0.875",  # a rotated box (OBB) has four
        "1 0.5 0.6 0.25 0.5 0.75 0.5 0.75 0.875 0.3 0.7",
    ],
)
def test_a_polygon_becomes_the_box_around_it(one, line):
    assert one(line)[0]["images/train/1.jpg"].boxes == (Box(0.5, 0.25, 0.875, 0.75, "dog"),)


@pytest.mark.parametrize(
    "label, reason, detail",
    [
        ("0 .5 .5 .1 .1 0.87", "malformed", "line 1: six columns. The sixth is the confidence"),
        ("0 .5 .5 .1", "malformed", "line 1: 4 columns. A box has five"),
        ("0 .1 .1 .2 .2 .3 .3 .4", "malformed", "8 columns"),
        ("0", "malformed", "1 columns"),
        ("1 .5 .5 .1 .1\ncat .5 .5 .1 .1", "malformed", "line 2: 'cat' is not a number"),
        ("0 .5 .5 .1 0_1", "malformed", "'0_1' is not a number"),
        ("0,.5,.5,.1,.1", "malformed", "is not a number"),
        ("2 .5 .5 .1 .1", "unknown_class", "line 1: 2 is not the number of a class, 0 to 1"),
        ("-1 .5 .5 .1 .1", "unknown_class", "-1 is not the number of a class"),
        ("0.5 .5 .5 .1 .1", "unknown_class", "0.5 is not"),
        ("nan .5 .5 .1 .1", "unknown_class", "nan is not"),
        ("1e999 .5 .5 .1 .1", "unknown_class", "1e999 is not"),
        ("0 .5 nan .1 .1", "box_not_finite", "nan is not finite"),
        ("0 .1 .1 .2 inf .3 .3", "box_not_finite", "inf is not finite"),
        ("0 320 240 64 48", "box_outside", "320 is not between 0 and 1. Divide x by the width"),
        ("0 .5 .5 -.1 .1", "box_outside", "-.1 is not between 0 and 1"),
        ("0 .5 .5 -.001 .1", "box_inverted", "cat: x 0.5005 to 0.4995"),
        (b"\xff\xfe0 .5 .5 .1 .1", "malformed", "the label file is not UTF-8"),
        (b"0 .5 .5 .1 .1\n" * (2 << 20), "too_large", "allowed are 16777216"),
    ],
)
def test_a_fault_in_a_label_file_keeps_that_image_out(one, label, reason, detail):
    records, rejected = one(label)
    assert sorted(records) == ["images/train/2.jpg", "images/val/3.jpg"]
    assert rejected["images/train/1.jpg"][0] == reason
    assert detail in rejected["images/train/1.jpg"][1]


def test_a_box_without_extent_is_kept_out_alone(one):
    records, rejected = one("0 .5 .5 0 .1\n0 .5 .5 .5 .5")
    assert list(rejected) == ["images/train/1.jpg#box-0"]
    assert records["images/train/1.jpg"].boxes == (Box(0.25, 0.25, 0.75, 0.75, "cat"),)


def test_a_class_may_be_written_as_a_float(one):
    assert one("1.0 .5 .5 .5 .5")[0]["images/train/1.jpg"].labels == ["dog"]


def test_roboflow_names_folders_next_to_the_folder_of_the_file(raw):
    raw.add("data.yaml", ROBOFLOW)
    for folder in ("train", "valid", "test"):
        raw.add(f"{folder}/images/{folder}.jpg")
        raw.add(f"{folder}/labels/{folder}.txt", "1 .5 .5 1 1")
    records, rejected = raw.read(type="yolo")
    assert rejected == {}
    assert splits(records) == {
        "test/images/test.jpg": "test",
        "train/images/train.jpg": "train",
        "valid/images/valid.jpg": "validation",
    }
    assert {label for record in records.values() for label in record.labels} == {"dog"}


FROM_ELSEWHERE = [
    "path: coco8",
    "path: ../datasets/coco8",
    "path: /home/me/datasets/coco8",
    'path: "C:\\\\data\\\\coco8"',
]


@pytest.mark.parametrize(
    "path, folder",
    [(path, folder) for path in FROM_ELSEWHERE for folder in ("", "coco8/")]
    + [(path, "") for path in ("path: .", "path: ''", "")],
)
def test_the_path_of_another_machine_is_found_below_the_source(raw, path, folder):
    raw.add(f"{folder}images/a/1.jpg")
    raw.add(f"{folder}labels/a/1.txt", "0 .5 .5 1 1")
    raw.add("data.yaml", f"{path}\ntrain: images/a\nnames: [cat]")
    records, _ = raw.read(type="yolo")
    assert list(records) == [f"{folder}images/a/1.jpg"]
    assert records[f"{folder}images/a/1.jpg"].labels == ["cat"]


def test_an_entry_may_be_an_absolute_path_or_one_of_windows(raw):
    raw.add("images/a/1.jpg")
    raw.add("images/b/2.jpg")
    raw.add("labels/a/1.txt", "0 .5 .5 1 1")
    raw.add("data.yaml", "train: [/content/set/images/a, 'images\\b']\nnames: [cat]")
    assert sorted(raw.read(type="yolo")[0]) == ["images/a/1.jpg", "images/b/2.jpg"]


def test_lists_of_images_have_paths_from_their_own_folder_or_of_another_machine(raw):
    for number in range(5):
        raw.add(f"set/images/{number}.jpg")
        raw.add(f"set/labels/{number}.txt", "0 .5 .5 1 1")
    raw.add("set/train.txt", "./images/0.jpg\nimages/1.jpg\n\n/home/me/set/images/2.jpg\r\n")
    raw.add("set/val.txt", "D:\\set\\images\\3.jpg\nimages/9.jpg\n../../etc/passwd\n./\n")
    raw.add("data.yaml", "path: set\ntrain: train.txt\nval: val.txt\nnames: [cat]")
    records, rejected = raw.read(type="yolo")
    assert splits(records) == {
        "set/images/0.jpg": "train",
        "set/images/1.jpg": "train",
        "set/images/2.jpg": "train",
        "set/images/3.jpg": "validation",
    }
    assert {key: reason for key, (reason, _) in rejected.items()} == {
        "set/val.txt:2": "missing_image",
        "set/val.txt:3": "missing_image",
        "set/val.txt:4": "missing_image",
    }
    assert "images/9.jpg" in rejected["set/val.txt:2"][1]


def test_hostile_lines_of_a_list_are_kept_out(raw):
    raw.add("images/1.jpg")
    raw.add("labels/1.txt", "0 .5 .5 1 1")
    lines = ["images/1.jpg", "a/" * 70 + "1.jpg", "x" * 5000, "\0.jpg"]
    raw.add("train.txt", "\n".join(lines))
    raw.add("data.yaml", "train: train.txt\nnames: [cat]")
    records, rejected = raw.read(type="yolo")
    assert list(records) == ["images/1.jpg"]
    assert {key: reason for key, (reason, _) in rejected.items()} == {
        "train.txt:2": "malformed",
        "train.txt:3": "malformed",
        "train.txt:4": "missing_image",
    }


def test_an_image_in_two_splits_would_leak_and_is_kept_out(raw):
    raw.add("images/1.jpg")
    raw.add("images/2.jpg")
    raw.add("labels/1.txt", "0 .5 .5 1 1")
    raw.add("train.txt", "images/1.jpg\nimages/2.jpg")
    raw.add("val.txt", "images/1.jpg")
    raw.add("data.yaml", "train: train.txt\nval: val.txt\nnames: [cat]")
    records, rejected = raw.read(type="yolo")
    assert list(records) == ["images/2.jpg"]
    assert rejected == {
        "images/1.jpg": ("duplicate", "named more than once: train.txt:1, val.txt:1")
    }


def test_two_images_of_one_label_file_are_ambiguous(one, raw):
    raw.add("images/train/2.png")
    records, rejected = one("0 .5 .5 1 1")
    assert sorted(records) == ["images/train/1.jpg", "images/val/3.jpg"]
    assert {key: reason for key, (reason, _) in rejected.items()} == {
        "images/train/2.jpg": "ambiguous_image",
        "images/train/2.png": "ambiguous_image",
    }


def test_a_label_file_without_an_image_is_named(one, raw):
    raw.add("labels/train/9.txt", "0 .5 .5 1 1")
    raw.add("labels/train/classes.txt", "cat\ndog")
    raw.add("labels/train.cache")
    raw.add("labels/other/8.txt", "0 .5 .5 1 1")
    records, rejected = one("0 .5 .5 1 1")
    assert len(records) == 3
    assert rejected == {"labels/train/9.txt": ("missing_image", "there is no image of this name")}


def test_a_label_file_that_is_a_link_outside_is_no_background(one, raw, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("0 .5 .5 1 1")
    raw.add("labels/val/x")
    (raw.folder / "labels/val/3.txt").symlink_to(secret)
    records, rejected = one("0 .5 .5 1 1")
    assert "images/val/3.jpg" not in records
    assert rejected["images/val/3.jpg"][0] == "link_outside"


def test_an_image_that_is_a_link_outside_is_named(one, raw, tmp_path):
    (tmp_path / "secret.jpg").write_text("secret")
    raw.add("images/val/4.jpg")
    (raw.folder / "images/val/5.jpg").symlink_to(tmp_path / "secret.jpg")
    _, rejected = one("0 .5 .5 1 1")
    assert rejected == {"images/val/5.jpg": rejected["images/val/5.jpg"]}
    assert rejected["images/val/5.jpg"][0] == "link_outside"


def test_images_and_labels_may_lie_in_one_folder(raw):
    raw.add("data.yaml", "train: photos\nnames: [cat]")
    raw.add("photos/1.jpg")
    raw.add("photos/1.txt", "0 .5 .5 1 1")
    raw.add("photos/readme.txt", "not a label file")
    records, rejected = raw.read(type="yolo")
    assert (list(records), rejected) == (["photos/1.jpg"], {})
    assert records["photos/1.jpg"].labels == ["cat"]


def test_only_the_last_folder_named_images_becomes_labels(raw):
    raw.add("data.yaml", "train: images/a/images\nnames: [cat]")
    raw.add("images/a/images/1.v2.jpg")
    raw.add("images/a/labels/1.v2.txt", "0 .5 .5 1 1")
    assert raw.read(type="yolo")[0]["images/a/images/1.v2.jpg"].labels == ["cat"]


def test_classes_without_names_are_numbered(one):
    data = "train: images/train\nnc: 2\n"
    assert one("1 .5 .5 1 1", data)[0]["images/train/1.jpg"].labels == ["class_1"]


@pytest.mark.parametrize("names", ["[3, '7']", "{0: 3, '1': 7}"])
def test_names_may_be_numbers(one, names):
    data = f"train: images/train\nnames: {names}\n"
    assert one("1 .5 .5 1 1", data)[0]["images/train/1.jpg"].labels == ["7"]


def test_a_class_that_the_config_does_not_name_keeps_the_image_out(raw, one):
    one("0 .5 .5 1 1")
    records, rejected = raw.read(type="yolo", class_names=["dog"])
    assert "images/train/1.jpg" not in records
    assert rejected["images/train/1.jpg"][0] == "unknown_class"


NAMES = "names: [cat]\n"


@pytest.mark.parametrize(
    "data, message",
    [
        ("", r"data.yaml:1: must be a mapping with the keys train, val and names"),
        ("- train", r"data.yaml:1: must be a mapping"),
        (NAMES, r"data.yaml:1: the key train is missing"),
        ("train:\n" + NAMES, r"the key train is missing"),
        (f"{NAMES}train: images/tarin", r"data.yaml:2: train: there are no files in .*/source "),
        (
            f"{NAMES}path: /home/me/set\ntrain: tarin",
            r"data.yaml:3: .* under home/me/set/tarin, me/set/tarin, set/tarin or 1 shorter paths. "
            r"Correct the entry or path, or remove train",
        ),
        (f"{NAMES}train: ../../../etc", r"data.yaml:2: train: there are no files"),
        (f"{NAMES}train: 3", r"data.yaml:2: train: must be text, or a list"),
        (f"{NAMES}train: [images/train, 3]", r"data.yaml:2: train: must be text, or a list"),
        (f"{NAMES}path: [a]\ntrain: images/train", r"data.yaml:2: path: must be text"),
        (f"{NAMES}path: {'a/' * 70}\ntrain: images/train", r"data.yaml:2: a path of 70 parts"),
        (
            f"{NAMES}train: images/train\nval: images/train",
            r"data.yaml:3: val: images/train is named in data.yaml:2 already",
        ),
        (f"{NAMES}train: images/train\nnames: [dog]", r"data.yaml:3: names stands twice"),
        (f"{NAMES}train: images/train\nnc: 2", r"data.yaml:3: nc: is 2, but there are 1 names"),
        ("train: images/train", r"data.yaml:1: names: must be a list"),
        ("train: images/train\nnc: true", r"data.yaml:2: nc: must be the number of classes"),
        ("train: images/train\nnc: -1", r"data.yaml:2: nc: must be the number"),
        ("train: images/train\nnc: 9999999999", r"data.yaml:2: nc: must be the number"),
        ("train: images/train\nnames: []", r"data.yaml:2: names: must be a list"),
        ("train: images/train\nnames: cat", r"data.yaml:2: names: must be a list"),
        ("train: images/train\nnames:\n- cat\n- [dog]", r"data.yaml:4: names: 1: .* in quotes"),
        ("train: images/train\nnames:\n  0: cat\n  -1: dog", r"data.yaml:4: names: -1: dog"),
        ("train: images/train\nnames:\n  0: cat\n  1: cat", r"data.yaml:4: names: two classes"),
        (f"{NAMES}train: images/train\nkpt_shape: [17, 3]", r"data.yaml:3: kpt_shape: key points"),
        (f"{NAMES}train: !!python/name:os.system", r"data.yaml:2: .* a constructor for the tag"),
        (f"{NAMES}train: {'[' * 99}", r"data.yaml:2: nested more than 40 levels"),
        (f"{NAMES}train: &a images\nval: *a", r"data.yaml:3: .* an alias"),
        (f"{NAMES}train: [", r"data.yaml:\d: "),
        (b"names: [\xff]", r"data.yaml:1: not UTF-8"),
        (b"\n" * (5 << 20), r"data.yaml: has 5242880 bytes, allowed are 4194304"),
    ],
)
def test_a_data_file_that_cannot_be_used_is_told_with_its_line(one, data, message):
    with pytest.raises(DataError, match=message):
        one("0 .5 .5 .5 .5", data)


def test_a_data_file_that_is_missing_is_told(raw):
    raw.add("images/1.jpg")
    with pytest.raises(DataError, match=r"set.yaml: no such file. preprocess.source.data names"):
        raw.read(type="yolo", data="set.yaml")


def test_a_list_that_is_no_text_is_told(raw):
    raw.add("data.yaml", "train: train.txt\nnames: [cat]")
    raw.add("train.txt", b"a\n\xff")
    with pytest.raises(DataError, match=r"train.txt:2: not UTF-8"):
        raw.read(type="yolo")


def test_labels_in_another_folder_are_not_taken_for_background(raw):
    raw.add("data.yaml", "train: images/train\nnames: [cat]")
    raw.add("images/train/1.jpg")
    raw.add("annotations/1.txt", "0 .5 .5 1 1")
    with pytest.raises(
        DataError,
        match=r"none of the 1 images has a label file. That of images/train/1.jpg would be "
        r"labels/train/1.txt",
    ):
        raw.read(type="yolo")


BOX = "0 .5 .5 .5 .5\n"


def add_pair(raw, image: str, label: str, content: str = BOX, folder="images", labels="labels"):
    raw.add(f"{folder}/train/{image}")
    raw.add(f"{labels}/train/{label}", content)


@pytest.mark.parametrize(
    ("image", "label"),
    [("IMG_01.JPG", "img_01.txt"), ("a.png", "A.TXT"), ("Ä b.jpg", "ä B.txt"), ("1.jpg", "1.TXT")],
)
@pytest.mark.parametrize("folders", [("images", "labels"), ("photos", "photos")])
def test_names_of_image_and_label_may_differ_in_case(raw, image, label, folders):
    folder, labels = folders
    raw.add("data.yaml", f"train: {folder}/train\nnames: [cat, dog]\n")
    add_pair(raw, "2.jpg", "2.txt", "1 .5 .5 .5 .5\n", folder, labels)
    add_pair(raw, image, label, BOX, folder, labels)
    records, rejected = raw.read(type="yolo")
    assert rejected == {}
    assert sorted(record.labels for record in records.values()) == [["cat"], ["dog"]]


def test_of_two_names_that_differ_in_case_none_is_taken(raw):
    raw.add("data.yaml", COCO8.replace("val: images/val", "# "))
    add_pair(raw, "1.jpg", "1.txt")
    add_pair(raw, "A.jpg", "a.txt")
    raw.add("labels/train/A.TXT", BOX)
    records, rejected = raw.read(type="yolo")
    assert list(records) == ["images/train/1.jpg"]
    assert {key: reason for key, (reason, _) in rejected.items()} == {
        "images/train/A.jpg": "no_annotation",
        "labels/train/a.txt": "missing_image",
        "labels/train/A.TXT": "missing_image",
    }


def test_where_label_files_have_no_image_an_image_without_one_is_no_background(raw):
    raw.add("data.yaml", "train: images/train\nval: images/val\nnames: [cat, dog]\n")
    add_pair(raw, "1.jpg", "1.txt")
    add_pair(raw, "2.jpg", "frame_2.txt")
    raw.add("images/val/3.jpg")
    raw.add("labels/val/classes.txt", "cat\ndog\n")
    records, rejected = raw.read(type="yolo")
    assert {key: len(record.boxes) for key, record in records.items()} == {
        "images/train/1.jpg": 1,
        "images/val/3.jpg": 0,  # there is no label file that it could have lost
    }
    assert rejected["images/train/2.jpg"] == (
        "no_annotation",
        "there is no label file labels/train/2.txt, and labels/train/frame_2.txt has no image. "
        "Give both the same name",
    )
    assert rejected["labels/train/frame_2.txt"][0] == "missing_image"


def test_beside_images_only_texts_with_boxes_are_lost_labels(raw):
    raw.add("data.yaml", "train: photos/a\nval: photos/b\nnames: [cat, dog]\n")
    for folder in "ab":
        raw.add(f"photos/{folder}/1.jpg")
        raw.add(f"photos/{folder}/1.txt", BOX)
        raw.add(f"photos/{folder}/2.jpg")
        raw.add(f"photos/{folder}/readme.txt", "These are photographs.")
    raw.add("photos/b/second.txt", BOX)
    records, rejected = raw.read(type="yolo")
    assert list(rejected) == ["photos/b/2.jpg"] and records["photos/a/2.jpg"].boxes == ()


def test_labels_of_images_that_no_list_names_are_not_lost(raw):
    raw.add("data.yaml", "train: train.txt\nnames: [cat, dog]\n")
    raw.add("train.txt", "images/1.jpg\nimages/2.jpg\n")
    for name in "134":
        raw.add(f"labels/{name}.txt", BOX)
    for name in "1234":
        raw.add(f"images/{name}.jpg")
    records, rejected = raw.read(type="yolo")
    assert rejected == {} and {key: len(each.boxes) for key, each in records.items()} == {
        "images/1.jpg": 1,
        "images/2.jpg": 0,
    }


@pytest.mark.parametrize("content", ["", "\n", "\ufeff \r\n"])
def test_label_files_that_are_there_and_empty_are_counted(raw, content):
    raw.add("data.yaml", COCO8)
    for name in ("train/1", "train/2", "val/3"):
        raw.add(f"images/{name}.jpg")
        raw.add(f"labels/{name}.txt", content)
    with pytest.raises(DataError, match="found none: 3 label files are there, and all of them are"):
        raw.read(type="yolo")


def add_scene(raw, image: str, label: str = "") -> None:
    """An image, and its label file beside it or at another place."""
    raw.add(image)
    raw.add(label or f"{image.rpartition('.')[0]}.txt", "1 .5 .5 .2 .2\n")


def read_and_recognise(raw, **source):
    """The records, with the keys that `recognise` finds unless some are given."""
    match = recognise(view_folder(raw.folder))
    assert (match.type, match.is_certain, match.below) == ("yolo", True, "")
    assert match.keys == source
    records, rejected = raw.read(type="yolo", **source)
    labels = {label for record in records.values() for label in record.labels}
    assert (labels, rejected) == ({"dog"}, {})
    return splits(records)


def test_labels_of_labelimg_lie_beside_the_images(raw):
    for name in ("1.jpg", "b/2.jpg", "images/3.jpg"):
        add_scene(raw, name)
    raw.add("classes.txt", "\ufeffcat\r\ndog\r\n\r\n")
    assert read_and_recognise(raw, data="classes.txt") == dict.fromkeys(
        ("1.jpg", "b/2.jpg", "images/3.jpg")
    )


def test_folders_at_one_depth_are_the_splits_of_a_data_set_with_a_file_of_classes(raw):
    for split in ("train", "valid"):
        add_scene(raw, f"images/{split}/{split}.jpg", f"labels/{split}/{split}.txt")
    raw.add("labels/classes.txt", "cat\ndog")
    assert read_and_recognise(raw, data="labels/classes.txt") == {
        "images/train/train.jpg": "train",
        "images/valid/valid.jpg": "validation",
    }


def test_roboflow_has_a_file_of_darknet_in_each_split(raw):
    for split in ("train", "test"):
        add_scene(raw, f"{split}/{split}.jpg")
        raw.add(f"{split}/_darknet.labels", "cat\ndog")
    assert set(read_and_recognise(raw, data="test/_darknet.labels").values()) == {"train", "test"}


def test_a_data_file_of_darknet_names_the_lists_from_its_own_folder(raw):
    for number in range(2):
        add_scene(raw, f"data/obj/{number}.jpg")
    raw.add(
        "cfg/obj.data",
        "classes = 7\ntrain = data/train.txt\nvalid=data/valid.txt\nnames = data/obj.names\n",
    )
    raw.add("data/obj.names", "cat\ndog\n")
    raw.add("data/train.txt", "data/obj/0.jpg\n")
    raw.add("data/valid.txt", "/content/darknet/data/obj/1.jpg\n")
    assert read_and_recognise(raw, data="cfg/obj.data") == {
        "data/obj/0.jpg": "train",
        "data/obj/1.jpg": "validation",
    }


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("obj.data", "names = obj.names\n", r"obj.data:1: the key train is missing"),
        (
            "obj.data",
            "\ntrain = no.txt\nnames = obj.names",
            r"obj.data:2: train: there are no files",
        ),
        ("obj.data", "train = .\nnames = no.names", r"obj.data:2: names: must be a list"),
        ("obj.data", "", r"obj.data:1: names: must be a list"),
        ("classes.txt", "cat\ndog\ncat", r"classes.txt:3: names: two classes have the name cat"),
        ("classes.txt", "\n", r"classes.txt:1: names: must be a list"),
    ],
)
def test_a_file_of_darknet_that_cannot_be_used_is_told_with_its_line(raw, name, content, message):
    add_scene(raw, "1.jpg")
    raw.add("obj.names", "cat\ndog")
    raw.add(name, content)
    with pytest.raises(DataError, match=message):
        raw.read(type="yolo", data=name)


def test_lists_of_keras_have_the_boxes_behind_a_path_with_blanks(raw):
    for name in ("my shots/a 1.jpg", "my shots/2.jpg", "3.jpg"):
        raw.add(name)
    raw.add("model_data/my_classes.txt", "cat\ndog")
    first = "my shots/a 1.jpg 1,2,30,40,1 5,6,7.5,8,1"
    raw.add("train.txt", f"{first}\n/home/anna/x/2.jpg\t3,4,5,6,1\n\n")
    raw.add("val.txt", "3.jpg\n")
    raw.add("all.txt", f"{first}\n")
    assert recognise(view_folder(raw.folder)).keys == {"data": "model_data/my_classes.txt"}
    raw.add("val.txt", "3.jpg 1,2,3,4,1\n")
    assert read_and_recognise(raw, data="model_data/my_classes.txt") == {
        "my shots/a 1.jpg": "train",
        "my shots/2.jpg": "train",
        "3.jpg": "validation",
    }
    records, _ = raw.read(type="yolo", data="model_data/my_classes.txt")
    assert records["my shots/a 1.jpg"].boxes == (
        Box(2.0, 1.0, 40.0, 30.0, "dog"),
        Box(6.0, 5.0, 8.0, 7.5, "dog"),
    )
    assert records["3.jpg"].frame.drawn_on is None


def test_faults_in_a_list_of_keras_reject_their_images(raw):
    for number in range(5):
        raw.add(f"{number}.jpg")
    lines = [
        "0.jpg 1,2,3,4,0",
        "1.jpg 1,2,3,4,9",
        "2.jpg 3,2,1,4,0",
        "3.jpg 1,2,3,4",
        "4.jpg 1,2,,4,0",
    ]
    raw.add("classes.txt", "cat")
    raw.add("train.txt", "\n".join([*lines, "9.jpg 1,2,3,4,0", "4.jpg 1,.-.,3,4,0"]))
    records, rejected = raw.read(type="yolo", data="classes.txt")
    assert list(records) == ["0.jpg"]
    assert {key: reason for key, (reason, _) in rejected.items()} == {
        "1.jpg": "unknown_class",
        "2.jpg": "box_inverted",
        "train.txt:4": "malformed",
        "train.txt:5": "malformed",
        "train.txt:6": "missing_image",
        "4.jpg": "malformed",
    }


def test_label_files_without_classes_are_told_with_the_cure(raw):
    add_scene(raw, "images/1.jpg", "labels/1.txt")
    with pytest.raises(
        DataError, match=r"1 label file of YOLO in labels, but no file names the cla"
    ):
        recognise(view_folder(raw.folder))
    raw.add("classes.txt", "cat")  # too few for class 1
    with pytest.raises(DataError, match=r"Add a file classes.txt with one class a line"):
        recognise(view_folder(raw.folder))


def test_two_files_of_different_classes_are_a_question(raw):
    add_scene(raw, "1.jpg")
    raw.add("classes.txt", "cat\ndog")
    raw.add("data/predefined_classes.txt", "dog\nperson")
    with pytest.raises(DataError, match="--type yolo --source data=data/predefined_classes.txt"):
        recognise(view_folder(raw.folder))
    match = recognise(view_folder(raw.folder, chosen={"data": "classes.txt"}))
    assert match.keys == {"data": "classes.txt"}


@pytest.mark.parametrize("start", ["\ufeff0.0\t", "0 ", "0\t"])
def test_label_files_of_windows_are_counted(raw, start):
    raw.add("data.yaml", "train: images\nnames: [cat]")
    raw.add("images/1.jpg")
    raw.add("labels/1.txt", f"{start}.5 .5\t.2 .2\r\n")
    assert "1 label file below it" in recognise(view_folder(raw.folder)).reason
