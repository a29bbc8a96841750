"""CVAT's export "CVAT for images 1.1"."""

from __future__ import annotations

import tracemalloc

import pytest

from beam_jobs.stages.stage import Box
from pipeline_ops.errors import DataError

EXPORT = """\
<?xml version="1.0" encoding="utf-8"?>
<annotations>
  <version>1.1</version>
  <meta>
    <task>
      <id>4</id>
      <name>animals</name>
      <size>2</size>
      <mode>annotation</mode>
      <overlap>0</overlap>
      <bugtracker></bugtracker>
      <created>2024-09-25 11:34:24.617558+00:00</created>
      <updated>2024-09-25 11:38:27.301183+00:00</updated>
      <subset>Train</subset>
      <start_frame>0</start_frame>
      <stop_frame>1</stop_frame>
      <labels>
        <label>
          <name>cat</name>
          <color>#906080</color>
          <type>any</type>
          <attributes>
            <attribute>
              <name>quality</name>
              <mutable>False</mutable>
              <input_type>select</input_type>
              <default_value>good</default_value>
              <values>good
bad</values>
            </attribute>
          </attributes>
        </label>
      </labels>
      <segments>
        <segment>
          <id>4</id>
          <start>0</start>
          <stop>1</stop>
          <url>http://localhost:8080/api/jobs/4</url>
        </segment>
      </segments>
      <owner>
        <username>admin</username>
        <email></email>
      </owner>
      <assignee></assignee>
    </task>
    <dumped>2024-09-25 11:38:28.799808+00:00</dumped>
  </meta>
%s
</annotations>
"""
BOX = '<box label="cat" source="manual" occluded="0" xtl="1.00" ytl="2.00" xbr="30.00" ybr="20.00"'


def an_image(content: str = "", name: str = "1.jpg", more: str = "") -> str:
    return f'  <image id="0" name="{name}"{more} width="40" height="30">\n{content}\n  </image>'


@pytest.fixture
def read(raw):
    """Reads images of the XML; the files 1.jpg and 2.jpg are there."""

    def read(*images: str, **source):
        raw.add("images/1.jpg")
        raw.add("images/2.jpg")
        raw.add("annotations.xml", EXPORT % "\n".join(images))
        return raw.read(type="cvat", **source)

    return read


def test_shapes_become_boxes(read):
    attribute = '<attribute name="quality">bad</attribute>'
    records, rejected = read(
        an_image(
            f'{BOX} z_order="0">{attribute}</box>'
            '<polygon label="dog" source="file" occluded="1" '
            'points="10.00,5.50;20.25,5.00;15.00,25.00" z_order="1" group_id="3"></polygon>'
            '<mask label="cat" source="semi-auto" occluded="0" rle="3, 1, 4" left="3" top="4" '
            'width="10" height="6" z_order="0"></mask>'
            '<tag label="indoors" source="manual"></tag>'
        ),
        an_image(name="2.jpg"),
    )
    assert rejected == {}
    assert records["images/1.jpg"].boxes == (
        Box(2, 1, 20, 30, "cat"),
        Box(5, 10, 25, 20.25, "dog"),
        Box(4, 3, 10, 13, "cat"),
    )
    assert records["images/1.jpg"].frame.size == (30, 40)
    assert records["images/2.jpg"].boxes == ()


def test_a_rotated_box_becomes_the_box_around_it(read):
    """CVAT turns it clockwise around its centre. A quarter turn exchanges height and width."""
    box = '<box label="cat" xtl="10" ytl="10" xbr="30" ybr="20" rotation="{}"></box>'
    turns = [box.format(angle) for angle in ("90.00", "180.00", "45.00")]
    [quarter, half, eighth] = read(an_image("".join(turns)))[0]["images/1.jpg"].boxes
    assert str(quarter) == "cat: x 15 to 25, y 5 to 25"
    assert str(half) == "cat: x 10 to 30, y 10 to 20"
    reach = (20 + 10) / 2**0.5 / 2
    assert (eighth.xmin, eighth.ymax) == pytest.approx((20 - reach, 15 + reach))


def test_a_rotated_box_is_cut_off_at_the_border(read):
    box = '<box label="cat" xtl="0" ytl="10" xbr="40" ybr="20" rotation="90"></box>'
    assert read(an_image(box))[0]["images/1.jpg"].boxes == (Box(0, 15, 30, 25, "cat"),)


def test_tags_are_the_classes_of_images(read):
    records, rejected = read(
        an_image(f'{BOX}></box><tag label="indoors" source="manual"></tag>'),
        an_image(name="2.jpg"),
        task="classification",
    )
    assert (records["images/1.jpg"].label, records["images/1.jpg"].boxes) == ("indoors", None)
    assert rejected == {"images/2.jpg": ("no_label", "the image has no tag")}


def test_two_different_tags_are_contradictory(read):
    tags = '<tag label="indoors"></tag><tag label="indoors"></tag>'
    assert read(an_image(tags), task="classification")[1] == {}
    _, rejected = read(an_image(tags + '<tag label="at night"></tag>'), task="classification")
    assert rejected["images/1.jpg"] == (
        "contradictory",
        "the image has the tags at night, indoors",
    )


def test_the_subsets_of_a_project_are_splits_and_folders(raw):
    images = []
    for subset in ("Train", "valSet2", "Test", "default"):
        raw.add(f"images/{subset}/a b/1.jpg")
        images.append(an_image(f"{BOX}></box>", "a b/1.jpg", f' subset="{subset}" task_id="4"'))
    raw.add("annotations.xml", EXPORT % "\n".join(images))
    records, rejected = raw.read(type="cvat")
    assert rejected == {}
    assert {key: record.split for key, record in records.items()} == {
        "images/Train/a b/1.jpg": "train",
        "images/valSet2/a b/1.jpg": "validation",
        "images/Test/a b/1.jpg": "test",
        "images/default/a b/1.jpg": None,
    }


def test_a_subset_of_another_name_is_told(read):
    _, rejected = read(an_image(more=' subset="Batch 7"'))
    assert rejected["images/1.jpg"][0] == "unknown_split"


def test_frames_of_a_video_have_a_suffix_that_the_xml_does_not_name(raw):
    raw.add("images/frame_000000.PNG")
    raw.add("annotations.xml", EXPORT % an_image(name="frame_000000"))
    assert list(raw.read(type="cvat")[0]) == ["images/frame_000000.PNG"]


def test_images_may_lie_elsewhere(raw):
    raw.add("photos/x/1.jpg")
    raw.add("4/annotations.xml", EXPORT % an_image(name="x/1.jpg"))
    source = {"annotations": "4/annotations.xml", "images": "photos"}
    assert list(raw.read(type="cvat", **source)[0]) == ["photos/x/1.jpg"]


@pytest.mark.parametrize(
    "image, key, reason, detail",
    [
        (an_image(name="9.jpg"), "#image-0", "missing_image", "there is no file images/9.jpg"),
        (an_image(name="../../secret"), "#image-0", "missing_image", "no file ../secret"),
        (an_image(name=""), "#image-0", "malformed", "a path must be text"),
        ("<image/>", "#image-0", "malformed", "a path must be text, got None"),
        (
            '<image name="1.jpg" width="wide" height="3"/>',
            "1.jpg",
            "malformed",
            "'wide' is not a number",
        ),
        (an_image("<box/>"), "1.jpg", "malformed", "a shape lacks xtl, ytl, xbr, ybr"),
        (
            an_image('<box xtl="1" ytl="1" xbr="2" ybr="2"/>'),
            "1.jpg",
            "malformed",
            "None is not text",
        ),
        (an_image(f'{BOX} rotation="x"/>'), "1.jpg", "malformed", "'x' is not a number"),
        (an_image(f'{BOX} rotation="inf"/>'), "1.jpg", "box_not_finite", "inf degrees"),
        (
            an_image('<box label="cat" xtl="nan" ytl="1" xbr="2" ybr="2"/>'),
            "1.jpg",
            "box_not_finite",
            "nan",
        ),
        (
            an_image('<box label="cat" xtl="9" ytl="1" xbr="2" ybr="2"/>'),
            "1.jpg",
            "box_inverted",
            "x 9 to 2",
        ),
        (
            an_image('<box label="cat" xtl="1" ytl="1" xbr="90" ybr="2"/>'),
            "1.jpg",
            "box_outside",
            "x 1 to 90",
        ),
        (
            an_image('<box label="cat" xtl="70" ytl="1" xbr="90" ybr="9" rotation="5"/>'),
            "1.jpg",
            "box_outside",
            "",
        ),
        (
            an_image('<box label=" " xtl="1" ytl="1" xbr="2" ybr="2"/>'),
            "1.jpg",
            "no_label",
            "is not the name of a class",
        ),
        (
            an_image('<box label="cat" xtl="1" ytl="1" xbr="1" ybr="2"/>'),
            "1.jpg#box-0",
            "box_empty",
            "x 1 to 1",
        ),
        (
            an_image('<polygon label="cat" points=""/>'),
            "1.jpg",
            "malformed",
            "'' is not a point, x,y",
        ),
        (an_image('<polygon label="cat"/>'), "1.jpg", "malformed", "is not a point"),
        (
            an_image('<polygon label="cat" points="1,2;3,4"/>'),
            "1.jpg",
            "malformed",
            "a polygon needs three points, and this one has 2",
        ),
        (
            an_image('<polygon label="cat" points="1,2;3,4,5;6,7"/>'),
            "1.jpg",
            "malformed",
            "'4,5' is not a number",
        ),
        (
            an_image('<polygon label="cat" points="1,2;nan,4;6,7"/>'),
            "1.jpg",
            "box_not_finite",
            "not finite",
        ),
        (
            an_image('<mask label="cat" left="3" top="4" width="-1" height="6"/>'),
            "1.jpg",
            "box_inverted",
            "x 3 to 2",
        ),
        (
            an_image('<points label="nose" points="1,2"/>'),
            "1.jpg",
            "unknown_shape",
            "a points. Shapes that can become boxes are box, polygon, mask",
        ),
        (
            an_image('<skeleton label="cat"><points label="nose" points="1,2"/></skeleton>'),
            "1.jpg",
            "unknown_shape",
            "a skeleton",
        ),
    ],
)
def test_a_fault_in_one_image_keeps_that_one_out(read, image, key, reason, detail):
    records, rejected = read(image, an_image(f"{BOX}/>", "2.jpg"))
    assert "images/2.jpg" in records
    found = rejected[f"annotations.xml{key}" if key.startswith("#") else f"images/{key}"]
    assert found[0] == reason
    assert detail in found[1]
    assert ("images/1.jpg" in records) == (reason == "box_empty")


def test_a_file_that_two_images_name_is_kept_out(read):
    assert read(an_image(), an_image())[1]["images/1.jpg"] == (
        "duplicate",
        "named more than once: annotations.xml#image-0, annotations.xml#image-1",
    )


ENTITIES = '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'
EXTERNAL = '<!DOCTYPE a [<!ENTITY a SYSTEM "file:///etc/passwd">]>'


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "not well-formed XML"),
        ("<annotations><image>", "not well-formed XML"),
        ("<annotation/>", "the XML is a <annotation> and not an <annotations>"),
        (f"{ENTITIES}<annotations>&b;</annotations>", "declares a document type"),
        (f"{EXTERNAL}<annotations>&a;</annotations>", "declares a document type"),
        (
            f"{ENTITIES}<annotations>&b;</annotations>".encode("utf-16"),
            "declares a document type",
        ),
        ("<?xml version='1.0' encoding='x-no'?><annotations/>", "not well-formed XML"),
        ("<annotations>&b;</annotations>", "not well-formed XML"),
        (
            '<annotations><track id="0" label="car"><box frame="0"/></track></annotations>',
            "is an export of CVAT for video. Export the task as CVAT for images 1.1",
        ),
    ],
)
def test_a_file_that_is_no_export_is_told(raw, content, message):
    raw.add("annotations.xml", content)
    with pytest.raises(DataError, match=message) as error:
        raw.read(type="cvat")
    assert "as CVAT for images 1.1" in str(error.value)


def test_deeply_nested_elements_are_no_danger(raw):
    depth = 200_000
    raw.add("images/1.jpg")
    content = "<a>" * depth + "</a>" * depth
    raw.add("annotations.xml", EXPORT % an_image(content))
    assert raw.read(type="cvat")[1]["images/1.jpg"][0] == "unknown_shape"


def test_memory_does_not_grow_with_what_is_not_kept_of_the_xml(raw):
    """N10: 100 MB of XML took 2.5 GB."""
    attributes = '<attribute name="a">b</attribute>' * 1000
    image = an_image(f"{BOX}>{attributes}</box>")

    def measure_peak(count: int) -> int:
        raw.add("annotations.xml", EXPORT % (image * count))
        tracemalloc.start()
        raw.read(type="cvat")
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak_bytes

    measure_peak(1)
    growth = measure_peak(200) - measure_peak(100)
    assert growth < 2 * 100 * len(image)  # the text itself


def test_an_element_without_end_is_refused_before_all_of_it_is_in_memory(read):
    """N10."""
    with pytest.raises(DataError, match="an element has more than 33554432 bytes. Export"):
        read(an_image(f"<a>{' ' * (34 << 20)}</a>"))


def test_a_file_that_is_missing_is_told(raw):
    raw.add("1.jpg")
    with pytest.raises(DataError, match=r"annotations.xml: no such file"):
        raw.read(type="cvat")
