"""Archives and layouts of other tools, which `trainyard init` names with the command that helps."""

from __future__ import annotations

import json

import pytest

from beam_jobs.sources.folder_view import view_folder
from beam_jobs.sources.recognition import recognise
from pipeline_ops.errors import DataError

KITTI = "Car 0.00 0 -1.57 599.41 156.40 629.75 189.25 2.85 2.63 12.34 0.47 1.49 69.44 -1.56\n"
DOTA = "imagesource:GoogleEarth\ngsd:0.1\n1.0 2.0 3.0 2.0 3.0 4.0 1.0 4.0 small-vehicle 0\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("my data.zip", "PK", "unzip '{0}/my data.zip' -d '{0}/my data'"),
        ("a/x.tar.gz", "x", "mkdir -p {0}/a/x && tar -xzf {0}/a/x.tar.gz -C {0}/a/x"),
        (
            "ann/1.jpg.json",
            {"size": {}, "tags": [], "objects": [], "description": ""},
            "Supervisely",
        ),
        ("annotations/default.json", {"info": {}, "categories": {}, "items": []}, "of Datumaro, "),
        (
            "annotations/default.json",
            {"categories": {}, "items": []},
            "datum convert -if datumaro -i {0}",
        ),
        ("samples.json", {"samples": [{"filepath": "1.jpg"}]}, "fiftyone convert --input-dir {0}"),
        (
            "gtFine/a_polygons.json",
            {"imgHeight": 9, "imgWidth": 9, "objects": []},
            "datum convert -if cityscapes",
        ),
        ("bounding_boxes.labels", {"version": 1, "boundingBoxes": {}}, "of Edge Impulse"),
        ("output.manifest", {"source-ref": "s3://b/1.jpg"}, "trainyard new source my_source"),
        ("export.ndjson", {"data_row": {}, "projects": {}}, "of Labelbox"),
        ("export.json", [{"data_row": {}, "projects": {}}], "of Labelbox"),
        (
            "label_2/000001.txt",
            KITTI,
            "datum convert -if kitti_detection -i {0} -f coco -o {0}-coco",
        ),
        ("labelTxt/P0001.txt", DOTA, "of DOTA"),
    ],
)
def test_a_layout_is_named_with_the_command_that_helps(raw, name, content, message):
    raw.add(name, content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(DataError) as error:
        recognise(view_folder(raw.folder))
    assert message.format(raw.folder) in str(error.value)


@pytest.mark.parametrize(
    "content", ["", "[", "[[]]", "3", "{}", "[" * 70_000, b"\xff\xfe\0", KITTI[:9]]
)
def test_other_files_are_not_taken_for_a_layout(raw, content):
    for name in ("a.json", "a.txt", "a.manifest"):
        raw.add(name, content)
    with pytest.raises(DataError) as error:
        recognise(view_folder(raw.folder))
    assert "which no source reads" not in str(error.value)


def test_the_header_for_a_table_of_automl_has_the_split(raw):
    raw.add("1.jpg")
    raw.add("a.csv", "TRAIN,1.jpg,cat,0.1,0.2,,,0.5,0.6,,\n")
    header = "split,path,label,xmin,ymin,column_5,column_6,xmax,ymax,column_9,column_10"
    with pytest.raises(DataError, match=f"Add the line {header}"):
        recognise(view_folder(raw.folder))
    raw.add("a.csv", f"{header}\nTRAIN,gs://b/1.jpg,cat,0.1,0.2,,,0.5,0.6,,\n")
    match = recognise(view_folder(raw.folder))
    records, _ = raw.read(type="csv", **match.keys)
    assert records["1.jpg"].split == "train"
