"""The page of a data set, as the job writes it."""

from __future__ import annotations

import html.parser


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
