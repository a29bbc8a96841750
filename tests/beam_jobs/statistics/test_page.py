"""The page of a data set, as the job writes it, and its pictures of bad records."""

from __future__ import annotations

import base64
import html.parser

import cv2
import numpy as np
import pytest

from beam_jobs.statistics.page import make_thumbnail


class Page(html.parser.HTMLParser):
    """Collects tags, attributes and text."""

    def __init__(self, text: str):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text.append(data)


def test_hostile_names_are_text_and_nothing_is_loaded(animals, encode):
    name = "<script>alert(1)<" + "∕script>\"'&"
    for index in range(20):
        animals.add(f"{name}/{index}.png", encode(seed=700 + index))
    animals.add(f"{name}/'\"><img src=x onerror=alert(1)>.png", b"<b>no image</b>")
    text = (animals.run(rejects={"max_count": 1}).artifact / "data.html").read_text()
    page = Page(text)
    assert not {"script", "iframe", "link", "object"} & set(page.tags)
    assert all(
        value.startswith("data:image/png;base64,")
        for key, value in page.attributes
        if key in ("src", "href")
    )
    assert not [key for key, _ in page.attributes if key.startswith("on")]
    assert name in page.text
    assert "default-src 'none'" in text
    assert "http" not in text.replace("http-equiv", "")


def test_the_page_shows_what_is_left_of_a_truncated_image(animals, encode):
    whole = encode(64, 64, 3, seed=9, kind=".jpg")
    animals.add("cat/truncated.jpg", whole[: len(whole) * 3 // 4])
    text = (animals.run(rejects={"max_count": 1}).artifact / "data.html").read_text()
    assert "data:image/png;base64," in text
    assert "truncated" in text


@pytest.mark.parametrize(("duplicates", "count"), [("remove_exact", 3), ("keep", 0)])
def test_files_that_equal_others_are_never_said_to_be_none(animals, encode, duplicates, count):
    for name in ("cat/a.png", "cat/b.png", "dog/c.png"):  # the last with another label
        animals.add(name, encode(seed=3000))
    outcome = animals.run(duplicates=duplicates, rejects={"max_count": 3})
    text = "\n".join(Page((outcome.artifact / "data.html").read_text()).text)
    assert "No two files are the same." not in text
    assert "no two files have the same content" not in text
    said = f"No two examples are the same. In quarantine: {count} files that equal others"
    assert (said in text) == (count > 0)


def test_every_class_split_and_histogram_is_on_the_page(animals):
    outcome = animals.run()
    text = "\n".join(Page((outcome.artifact / "data.html").read_text()).text)
    for wanted in (
        "60 examples",
        "cat",
        "dog",
        "Train",
        "Validation",
        "Test",
        "Brightness",
        "Contrast",
        "Image width",
        "Empty: every record became",
    ):
        assert wanted in text


def decoded(uri: str) -> np.ndarray:
    return cv2.imdecode(
        np.frombuffer(base64.b64decode(uri.removeprefix("data:image/png;base64,")), np.uint8),
        cv2.IMREAD_COLOR,
    )


@pytest.mark.parametrize("kind", [".jpg", ".png", ".bmp", ".webp", ".gif"])
def test_a_whole_image_becomes_a_small_png(encode, kind):
    assert decoded(make_thumbnail(encode(300, 400, 3, kind=kind)).uri).shape == (84, 112, 3)


def test_of_a_truncated_image_the_part_that_is_there_is_shown(encode):
    whole = encode(64, 64, 3, kind=".jpg")
    picture = decoded(make_thumbnail(whole[: len(whole) * 3 // 4]).uri)
    assert picture[:16].std() > 10
    assert picture[-4:].std() < 1


def test_a_truncated_image_with_nothing_of_it_left_has_no_picture(encode):
    whole = encode(64, 64, 3, kind=".png")
    assert make_thumbnail(whole[:60]) is None
    black = cv2.imencode(".png", np.zeros((64, 64), np.uint8))[1].tobytes()
    assert not decoded(make_thumbnail(black).uri).any()  # a whole one that is black is shown


@pytest.mark.parametrize(("side", "is_small"), [(64, True), (65, False)])
def test_the_pixels_of_a_small_picture_are_drawn_as_squares(encode, side, is_small):
    assert make_thumbnail(encode(side, side)).is_small == is_small


def test_each_reason_of_the_quarantine_has_up_to_three_pictures(animals, encode):
    whole = encode(64, 64, 3, seed=9, kind=".jpg")
    for number in range(5):
        animals.add(
            f"cat/{number}-half.jpg", encode(64, 64, 3, seed=90 + number, kind=".jpg")[:900]
        )
    animals.add("dog/broken.png", b"no image")
    animals.add("dog/whole.jpg", whole)
    outcome = animals.run(rejects={"max_count": 6})
    page = Page((outcome.artifact / "data.html").read_text())
    text = "\n".join(page.text)
    shown = [line for line in page.text if line.endswith("-half.jpg")]
    assert len({*shown}) == 3
    assert "dog/broken.png" in text and "cannot be shown" in text
    assert len(outcome.quarantine) == 6


@pytest.mark.parametrize(
    "content",
    [b"", b"text", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n" + b"\0" * 40, b"RIFF\0\0\0\0WEBPVP8 "],
)
def test_what_is_no_image_has_no_picture(content):
    assert make_thumbnail(content) is None


def test_a_bomb_is_not_decoded(encode):
    header = bytearray(encode(8, 8))
    header[16:24] = (60000).to_bytes(4, "big") * 2
    assert make_thumbnail(bytes(header)) is None
