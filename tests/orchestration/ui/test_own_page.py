"""The tab with the own content of a run's author."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from airflow_database import RUN
from airflow_ui import needs_chromium
from pages import Page
from plugin_browser import open_browser

from pipeline_ops import card
from pipeline_ops.card.collection import collect_card
from pipeline_ops.card.page import CARD_PAGE, render_card_page

HOSTILE_SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9" onload="alert(1)">'
    '<script>alert(2)</script><circle r="4"/></svg>'
)


def make_page(job: str) -> str:
    with collect_card() as collected:
        card.figure(f"Figure of {job} <script>alert(3)</script>", 1.5)
        card.svg("</h3><script>alert(4)</script>", HOSTILE_SVG)
    return render_card_page(job, collected.content)


def make_rich_page(job: str) -> str:
    """A page with each kind of item, wide and long ones."""
    with collect_card() as collected:
        card.text("The first paragraph.\n\nA second one, with a_very_long_word" + "_and_more" * 20)
        for number in range(5):
            card.figure(f"Figure {number} of the {job} job", 10.0**number)
        row = {f"column {number}": number for number in range(20)}
        card.table("A wide table", [row] * 3)
        pixels = np.arange(300 * 900 * 3, dtype=np.uint32).reshape(300, 900, 3)
        card.picture("A wide picture", (pixels // 3600).astype(np.uint8))
        card.svg("A drawing", HOSTILE_SVG.replace('viewBox="0 0 9 9"', 'width="1600" height="90"'))
    return render_card_page(job, collected.content)


def show(client, run_writer) -> Page:
    answer = client("viewer").get(run_writer.address("report", page="own"))
    assert answer.status_code == 200, answer.text
    return Page(answer.text)


def test_jobs_come_in_their_order_below_their_names_in_a_sandbox_without_script(client, run_writer):
    run_writer.artifact("train", {CARD_PAGE: make_page("train")})
    run_writer.artifact("preprocess", {CARD_PAGE: make_page("preprocess")})
    page = show(client, run_writer)
    [frame] = [attributes for tag, attributes in page.tags if tag == "iframe"]
    assert frame["sandbox"] == "" and frame["title"] == "Own content"
    current = [found["href"] for tag, found in page.tags if "aria-current" in found]
    assert len(current) == 1 and "page=own" in current[0]
    content = client("viewer").get(run_writer.address("report/content", page="own"))
    assert content.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    joined = Page(content.text)
    assert "script" not in {tag for tag, _ in joined.tags}
    assert not any(name.startswith("on") for _, found in joined.tags for name in found)
    assert joined.text.index("Preprocess") < joined.text.index("Figure of preprocess")
    assert joined.text.index("Figure of preprocess") < joined.text.index("Figure of train")
    assert "Taken out of this drawing: onload, script." in joined.text


def test_a_run_without_own_content_says_how_to_show_some(client, run_writer, set_states):
    set_states("success")
    run_writer.artifact("train", {"weights.npz": "of an older version"})
    page = show(client, run_writer)
    assert "iframe" not in {tag for tag, _ in page.tags}
    assert "when it calls pipeline_ops.card" in " ".join(page.text.split())
    answer = client("viewer").get(run_writer.address("report/content", page="own"))
    assert answer.status_code == 404 and f"The run {RUN} has no page own." in answer.text


def test_a_page_that_none_of_our_jobs_has_written_is_not_shown(client, run_writer):
    run_writer.artifact("train", {CARD_PAGE: "<h1>Something else</h1>"})
    answer = client("viewer").get(run_writer.address("report/content", page="own"))
    assert answer.status_code == 409 and "Something else" not in answer.text
    assert "card.html of this run was not written by this version" in answer.text


@pytest.mark.parametrize("page", ["report", "data"])
def test_other_pages_of_the_run_link_to_it(client, run_writer, page):
    run_writer.artifact("train", {CARD_PAGE: make_page("train")})
    answer = client("viewer").get(run_writer.address("report", page=page))
    assert 'href="report?page=own&amp;' in answer.text or 'href="report?page=own&' in answer.text


@needs_chromium
@pytest.mark.airflow
def test_at_a_desk_and_on_a_phone_all_is_seen_and_no_script_runs(client, run_writer, set_states):
    set_states("success")
    run_writer.artifact("preprocess", {CARD_PAGE: make_page("preprocess")})
    run_writer.artifact("train", {CARD_PAGE: make_rich_page("train")})
    address = run_writer.address("report", page="own")
    with open_browser(client("viewer")) as visit:
        for width, scheme in itertools.product((1400, 390), ("light", "dark")):
            with visit(address, width, scheme) as (page, problems):
                frame = page.frame_locator("iframe")
                for picture in frame.locator("img").all():
                    picture.scroll_into_view_if_needed()
                    box = picture.bounding_box()
                    assert box["width"] > 8 and box["height"] > 8
                    assert box["x"] >= 0 and box["x"] + box["width"] <= width
                assert frame.locator("img").count() == 3
                assert frame.get_by_role("heading", name="Train", exact=True).is_visible()
                assert problems == []
