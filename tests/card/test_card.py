"""The author's own content: what the functions take, and the page that it becomes."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from pipeline_ops import card
from pipeline_ops.card.collection import collect_card
from pipeline_ops.card.items import MAX_ITEMS, CardContent
from pipeline_ops.card.page import join_card_pages, render_card_page
from pipeline_ops.errors import DataError

RAMP = np.arange(64, dtype=np.uint8).reshape(8, 8)
CIRCLE = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><circle r="4"/></svg>'


class Plot:
    """A stand-in for a figure of Matplotlib, with the method that a card uses."""

    def savefig(self, file, format):
        Image.fromarray(RAMP).save(file, format)


def noise(side: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)


def test_items_come_in_their_order_and_a_title_comes_once():
    with collect_card() as collected:
        card.figure("loss", 3)
        card.text("first")
        card.table("loss", [{"class": "a", "errors": 1}])
        card.figure("loss", 2.5)
        card.text("first")
    kinds = [item.kind for item in collected.content.items]
    assert kinds == ["figure", "text", "table"]
    assert collected.content.items[0].value == "2.5"
    assert CardContent.model_validate_json(collected.content.model_dump_json()) == collected.content


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1204, "1,204"),
        (0.03171234, "0.0317123"),
        (12345678.0, "1.23457e+07"),
        (np.float32(0.5), "0.5"),
        (np.int64(3), "3"),
        (tf.constant(0.25), "0.25"),
        (True, "yes"),
        ("3 of 4", "3 of 4"),
    ],
)
def test_a_figure_is_a_number_of_any_library_or_a_text(value, shown):
    with collect_card() as collected:
        card.figure("it", value)
    assert collected.content.items[0].value == shown


@pytest.mark.parametrize(
    "image",
    [RAMP, RAMP[..., None], noise(8), np.dstack([noise(8), RAMP]), tf.constant(RAMP), Plot()],
    ids=["grey", "one channel", "colours", "alpha", "tensor", "plot"],
)
def test_a_picture_is_an_array_a_tensor_or_a_plot(image):
    with collect_card() as collected:
        card.picture("it", image)
        again = base64.b64decode(collected.content.items[0].png)
        card.picture("it", again)
    [item] = collected.content.items
    assert base64.b64decode(item.png) == again
    assert Image.open(io.BytesIO(again)).size == (8, 8)


@tf.function
def show_in_a_graph(value):
    card.figure("loss", value)


WRONG = {
    "a value of a graph": (lambda: show_in_a_graph(tf.constant(1.0)), TypeError, "a number or"),
    "nan": (lambda: card.figure("it", float("nan")), ValueError, "nan is not a finite"),
    "an infinite cell": (lambda: card.table("it", [{"a": np.inf}]), ValueError, "inf is not"),
    "an object": (lambda: card.figure("it", object()), TypeError, "got object"),
    "no title": (lambda: card.figure("", 1), ValueError, "title"),
    "a number as title": (lambda: card.figure(3, 1), ValueError, "title"),
    "a long text": (lambda: card.text("x" * 10_001), ValueError, "10000"),
    "half of a character": (lambda: card.text("\ud800"), ValueError, "unicode|surrogate"),
    "no row": (lambda: card.table("it", []), ValueError, "1 to 500 rows"),
    "too many rows": (lambda: card.table("it", [{"a": 1}] * 501), ValueError, "got 501"),
    "uneven rows": (lambda: card.table("it", [{"a": 1}, {"b": 1}]), ValueError, "row 2"),
    "a list of lists": (lambda: card.table("it", [[1]]), TypeError, "list of dicts"),
    "a JPEG file": (lambda: card.picture("it", b"\xff\xd8\xff"), ValueError, "PNG"),
    "floats": (lambda: card.picture("it", RAMP / 255), TypeError, "float64"),
    "two channels": (lambda: card.picture("it", RAMP.reshape(4, 8, 2)), TypeError, "uint8"),
    "an empty picture": (lambda: card.picture("it", RAMP[:0]), ValueError, "pixels"),
    "3 MB": (lambda: card.picture("it", noise(1000)), ValueError, "2097152|2 MiB"),
    "no XML": (lambda: card.svg("it", "<svg"), ValueError, "not SVG"),
    "HTML": (lambda: card.svg("it", "<html/>"), ValueError, "its root is html"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_shown_is_an_error_that_names_the_call_also_outside_of_a_job(name):
    call, error, text = WRONG[name]
    with pytest.raises(error, match=rf"card\.\w+.*: .*({text})"):
        call()


def test_outside_of_a_job_a_call_leaves_nothing():
    card.figure("before", 1)
    with collect_card() as collected:
        pass
    card.figure("after", 1)
    assert collected.content.items == []


def test_one_item_too_many_is_refused_and_those_before_it_stay():
    with collect_card() as collected:
        for number in range(MAX_ITEMS):
            card.figure(f"figure {number}", number)
        with pytest.raises(ValueError, match=rf"card.figure\('more'\): .*at most {MAX_ITEMS}"):
            card.figure("more", 1)
        card.figure("figure 0", 7)
    assert len(collected.content.items) == MAX_ITEMS


def test_pictures_of_more_than_two_megabytes_together_are_refused():
    with collect_card() as collected:
        for number in range(2):
            card.picture(f"noise {number}", noise(400))
        with pytest.raises(ValueError, match=r"card.picture\('noise 3'\): .*at most 2 MiB"):
            for number in range(2, 6):
                card.picture(f"noise {number}", noise(400))
    assert len(collected.content.items) == 3


HOSTILE = (
    '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
    'onload="alert(1)" width="9" height="9">'
    "<script>alert(2)</script><style>@import url(//evil.example/x.css)</style>"
    '<foreignObject><p xmlns="http://www.w3.org/1999/xhtml"><img src="x"/></p></foreignObject>'
    '<a xlink:href="javascript:alert(3)"><circle r="1"/></a>'
    '<image href="https://evil.example/p.png"/><use xlink:href="//evil.example/x.svg#a"/>'
    '<rect style="fill:url(https://evil.example/f)" fill="url( \'http://evil.example\')"/>'
    '<set attributeName="onload" to="alert(4)"/><animate attributeName="href"/>'
    '<path d="M0 0" ONCLICK="alert(5)" id="kept"/><text>1 &lt; 2</text></svg>'
)


def test_of_a_hostile_svg_the_shapes_stay_and_the_page_says_what_was_taken_out():
    with collect_card() as collected:
        card.svg("hostile", HOSTILE)
    [item] = collected.content.items
    for evil in ("alert", "evil", "script", "import", "foreign", "onload", "href", "<a", "set"):
        assert evil not in item.svg.replace("xmlns:xlink", ""), evil
    assert '<path d="M0 0" id="kept">' in item.svg and "1 &lt; 2" in item.svg
    removed = " ".join(item.removed)
    for name in ("script", "onload", "foreignObject", "a", "content of style", "fill", "ONCLICK"):
        assert name in removed
    assert "Taken out of this drawing: ONCLICK, a, animate," in render_card_page(
        "train", collected.content
    )


@pytest.mark.parametrize(
    "start",
    [
        '<!DOCTYPE svg [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>',
        '<!DOCTYPE svg [<!ENTITY a SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE svg [<!ENTITY % a SYSTEM "http://evil.example/a.dtd"> %a;]>',
    ],
)
def test_an_svg_that_declares_entities_is_refused(start):
    with pytest.raises(ValueError, match="entity"):
        card.svg("it", start + CIRCLE)


def test_deeply_nested_svg_is_refused():
    with pytest.raises(ValueError, match="more than 100"):
        card.svg("it", CIRCLE.replace("<circle", "<g>" * 200 + "<circle").replace("</svg>", ""))


def test_a_drawing_as_matplotlib_writes_it_is_kept():
    drawing = (
        '<?xml version="1.0" encoding="utf-8" standalone="no"?>\n<!DOCTYPE svg PUBLIC '
        '"-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">\n'
        '<svg xmlns:xlink="http://www.w3.org/1999/xlink" width="99pt" height="9pt" '
        'viewBox="0 0 99 9" xmlns="http://www.w3.org/2000/svg" version="1.1">'
        "<metadata><rdf:RDF xmlns:rdf='http://www.w3.org/1999/02/22-rdf-syntax-ns#'/></metadata>"
        '<defs><style type="text/css">*{stroke-linejoin: round}</style>'
        '<clipPath id="p1"><rect width="9" height="9"/></clipPath><path id="m1" d="M0 3"/></defs>'
        '<g clip-path="url(#p1)"><use xlink:href="#m1" x="3" style="stroke: #1f77b4"/>'
        '<image xlink:href="data:image/png;base64,iVBORw0KGgo=" width="9" height="9"/></g></svg>'
    )
    with collect_card() as collected:
        card.svg("it", drawing)
    [item] = collected.content.items
    assert item.removed == [] and "metadata" not in item.svg
    for part in ("{stroke-linejoin: round}", "url(#p1)", 'xlink:href="#m1"', "data:image/png"):
        assert part in item.svg


def test_a_file_of_a_job_with_hostile_items_is_sanitized_when_it_is_read():
    item = {"kind": "svg", "title": "it", "svg": HOSTILE}
    content = CardContent.model_validate({"items": [item]})
    assert "alert" not in content.items[0].svg
    for wrong in ({"kind": "svg", "title": "it", "svg": "<html/>"}, {"kind": "html", "text": "x"}):
        with pytest.raises(ValueError):
            CardContent.model_validate({"items": [wrong]})


def test_texts_are_escaped_and_pages_of_two_jobs_become_one():
    with collect_card() as first:
        card.text("</p><script>alert(1)</script>\n\n<!-- own content -->")
        card.figure("<img src=x onerror=alert(2)>", '"><b>')
    with collect_card() as second:
        card.table("'\"><i>", [{"<u>": "&amp;"}])
        card.svg('"><svg onload=alert(3)>', CIRCLE)
    pages = [
        render_card_page(job, each.content).encode()
        for job, each in (("preprocess", first), ("train", second))
    ]
    joined = join_card_pages(pages).decode()
    assert not re.search(r"<(script|b|i|u|svg|img src=x)\b", joined)
    assert re.findall("<h2>(.*)</h2>", joined) == ["Preprocess", "Train"]
    assert joined.count("<html") == joined.count("</html>") == joined.count("<main") == 1
    assert join_card_pages(pages[:1]) != join_card_pages(pages)
    with pytest.raises(DataError, match=r"card\.html"):
        join_card_pages([b"<p>of another program</p>"])
