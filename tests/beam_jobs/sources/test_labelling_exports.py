"""Files as the tools themselves wrote them: label-studio-sdk 2.1.2 (the converter behind the button
Export) and Datumaro 1.13 (the library behind CVAT's exports)."""

from __future__ import annotations

from beam_jobs.stages.stage import Box

JSON_MIN = r"""[
{
  "image": "\/data\/upload\/1\/1a2b3c4d-1.jpg",
  "id": 1,
  "label": [
    {
      "x": 10,
      "y": 20,
      "width": 30,
      "height": 40,
      "rotation": 0,
      "rectanglelabels": [
        "cat"
      ],
      "original_width": 200,
      "original_height": 100
    }
  ],
  "choice": "indoors",
  "annotator": 2,
  "annotation_id": 1,
  "created_at": "2024-12-27T13:36:25.747398Z",
  "updated_at": "2024-12-27T21:04:40.495704Z",
  "lead_time": 1235.418
},
{
  "image": "\/data\/local-files\/?d=sub\/2.jpg",
  "id": 2,
  "annotator": 2,
  "annotation_id": 1,
  "created_at": "2024-12-27T13:36:25.747398Z",
  "updated_at": "2024-12-27T21:04:40.495704Z",
  "lead_time": 1235.418
},
{
  "image": "5.jpg",
  "id": 5,
  "annotator": null,
  "annotation_id": null,
  "created_at": null,
  "updated_at": null,
  "lead_time": null
}
]"""
CVAT = """<?xml version="1.0" encoding="utf-8"?>
<annotations>
  <version>1.1</version>
  <meta>
    <task>
      <id></id>
      <name>train</name>
      <size>1</size>
      <mode>annotation</mode>
      <overlap></overlap>
      <start_frame>0</start_frame>
      <stop_frame>1</stop_frame>
      <frame_filter></frame_filter>
      <z_order>True</z_order>
      <labels>
        <label>
          <name>cat</name>
          <attributes>
          </attributes>
        </label>
        <label>
          <name>dog</name>
          <attributes>
          </attributes>
        </label>
      </labels>
    </task>
  </meta>
  <image id="0" name="a/1.jpg" width="200" height="100">
    <box label="cat" occluded="1" outside="0" keyframe="0" xtl="20.00" ytl="20.00" xbr="60.00" \
ybr="80.00" z_order="0">
    </box>
    <polygon label="dog" occluded="0" outside="0" keyframe="0" \
points="10.00,10.00;50.00,12.00;30.00,80.00" z_order="0">
    </polygon>
    <tag label="dog">
    </tag>
  </image>
</annotations>
"""
YOLO = {
    "data.yaml": "val: val.txt\ntrain: train.txt\nnames:\n  0: cat\n  1: dog\n",
    "train.txt": "./images/train/a/1.jpg\n",
    "val.txt": "./images/val/2.jpg\n./images/val/3.jpg\n",
    "images/train/a/1.jpg": "",
    "images/val/2.jpg": "",
    "images/val/3.jpg": "",
    "labels/train/a/1.txt": "0 0.200000 0.500000 0.200000 0.600000\n",
    "labels/val/2.txt": "",
    "labels/val/3.txt": "1 0.500000 0.500000 1.000000 1.000000\n",
}


def test_label_studio_writes_json_min(raw):
    for name in ("1.jpg", "sub/2.jpg", "5.jpg"):
        raw.add(name)
    raw.add("result.json", JSON_MIN)
    source = {"type": "label_studio", "export": "result.json"}
    records, rejected = raw.read(**source)
    assert {key: record.boxes for key, record in records.items()} == {
        "1.jpg": (Box(20, 20, 60, 80, "cat"),),
        "sub/2.jpg": (),
    }
    assert {key: reason for key, (reason, _) in rejected.items()} == {"5.jpg": "no_annotation"}
    assert raw.read(**source, task="classification")[0]["1.jpg"].label == "indoors"


def test_datumaro_writes_cvat(raw):
    raw.add("images/a/1.jpg")
    raw.add("train.xml", CVAT)
    source = {"type": "cvat", "annotations": "train.xml"}
    records, rejected = raw.read(**source)
    assert rejected == {}
    assert records["images/a/1.jpg"].boxes == (
        Box(20, 20, 80, 60, "cat"),
        Box(10, 10, 80, 50, "dog"),
    )
    assert raw.read(**source, task="classification")[0]["images/a/1.jpg"].label == "dog"


def test_datumaro_writes_yolo(raw):
    for name, content in YOLO.items():
        raw.add(name, content)
    records, rejected = raw.read(type="yolo")
    assert rejected == {}
    assert {key: (record.split, record.labels) for key, record in records.items()} == {
        "images/train/a/1.jpg": ("train", ["cat"]),
        "images/val/2.jpg": ("validation", []),
        "images/val/3.jpg": ("validation", ["dog"]),
    }
