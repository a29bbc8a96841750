"""The pages of a run's answers: thresholds and predictions."""

from __future__ import annotations

import re

import numpy as np
import pytest
from airflow_ui import needs_chromium
from pages import BREAKOUT, SCRIPT, TEMPLATE, Page
from plugin_browser import open_page

from pipeline_ops.contract.results import ANSWERS, ANSWERS_BY_THRESHOLD


def read_cells(html: str) -> dict[str, str]:
    return dict(re.findall(r'data-series="([^"]+)">([^<]*)<', html))


def find_file(run_writer, name):
    return run_writer.layout.artifact("evaluate", "0" * 32).local / name


def replace(run_writer, name: str, content: bytes) -> None:
    """Replaces a file of the evaluation, also in its manifest."""
    find_file(run_writer, name).write_bytes(content)
    run_writer.artifact("evaluate", {})


def test_the_page_without_script_shows_the_figures_at_the_threshold_of_its_address(
    client, whole_run, write_classifier
):
    predictions = write_classifier().predictions
    [model, champion], labels = predictions.models, predictions.labels
    for query, least in (({}, 0.0), ({"threshold": "60"}, np.float32(0.6))):
        cells = read_cells(client("viewer").get(whole_run.address("thresholds", **query)).text)
        assert cells["threshold"] == f"{least:.2f}"
        for number, each in enumerate((model, champion)):
            reaches = each.confidences.astype(np.float32) >= least
            right = reaches & (each.classes == labels)
            assert cells[f"answered-{number}"] == f"{100 * reaches.mean():.1f} %"
            assert cells[f"precision-{number}"] == f"{right.sum() / reaches.sum():.4f}"
            assert cells[f"false-{number}"] == f"{(reaches & ~right).sum()}"
            assert cells[f"missed-{number}"] == f"{(~reaches).sum()}"
        is_label, is_answer = labels == 1, (model.classes == 1) & (model.confidences >= least)
        assert cells["class-1-recall-0"] == f"{(is_label & is_answer).sum() / is_label.sum():.4f}"
        none = (is_label & (model.confidences.astype(np.float32) < least)).sum()
        assert cells["cell-1-none"] == str(none or "")
        assert cells["cell-1-1"] == str((is_label & is_answer).sum())


def test_the_script_gets_a_text_for_each_cell_at_each_threshold(client, whole_run):
    answer = client("viewer").get(whole_run.address("thresholds/content"))
    series = answer.json()
    assert answer.headers["content-type"] == "application/json"
    for threshold in (0, 37, 100):
        address = whole_run.address("thresholds", threshold=str(threshold))
        cells = read_cells(client("viewer").get(address).text)
        assert cells == {name: texts[threshold] for name, texts in series.items()}
    assert {len(texts) for texts in series.values()} == {101}
    assert "<script src" in client("viewer").get(address).text


@pytest.mark.parametrize("threshold", ["-1", "101", "x", "1e2"])
def test_a_threshold_that_is_none_is_refused(client, whole_run, threshold):
    address = whole_run.address("thresholds", threshold=threshold)
    assert client("viewer").get(address).status_code == 422


def test_the_presets_are_links_to_their_thresholds(client, whole_run):
    page = client("viewer").get(whole_run.address("thresholds")).text
    links = dict(re.findall(r'data-threshold="(\d+)">([^:]+):', page))
    texts = read_cells(page) | client("viewer").get(whole_run.address("thresholds/content")).json()
    [best] = [index for index, text in links.items() if text.startswith("best F1")]
    assert float(texts["mean-f1-0"][int(best)]) == max(map(float, texts["mean-f1-0"]))
    assert "precision of 0.99" in page


def test_the_report_leads_to_the_thresholds(client, whole_run):
    page = client("viewer").get(whole_run.address("report")).text
    assert re.search(r'<a href="thresholds\?run_id=[^"]+">Try thresholds</a>', page)


def test_the_page_of_a_detector_counts_boxes(client, whole_run, write_detector):
    find_file(whole_run, ANSWERS).unlink()
    found = write_detector()
    page = client("viewer").get(whole_run.address("thresholds")).text
    cells, text = read_cells(page), Page(page).text
    assert cells["threshold"] == f"{found.min_score:.2f}"
    counted = [each.scores >= found.min_score for each in found.evaluations[0].matches]
    right = sum(
        (is_shown & each.is_right[0, 0]).sum()
        for is_shown, each in zip(counted, found.evaluations[0].matches, strict=True)
    )
    assert cells["right-0"] == str(right) and cells["missed-0"] == str(120 - right)
    assert "Show a box only if its score is at least" in text and "no answer" not in text
    answer = client("viewer").get(whole_run.address("predictions"))
    assert "Only an evaluation of a classifier keeps its answer to each image." in answer.text


@pytest.mark.parametrize("page", ["thresholds", "predictions"])
def test_a_run_of_an_older_version_says_how_to_get_the_page(client, whole_run, page):
    for name in (ANSWERS, ANSWERS_BY_THRESHOLD):
        find_file(whole_run, name).unlink()
    whole_run.artifact("evaluate", {})
    answer = client("viewer").get(whole_run.address(page))
    assert answer.status_code == 200
    assert "Clear the task evaluate to get them." in answer.text
    assert client("viewer").get(whole_run.address("thresholds/content")).status_code == 404


@pytest.mark.parametrize("page", ["thresholds", "predictions"])
def test_a_run_that_has_not_been_evaluated_says_so(client, run_writer, set_states, page):
    set_states("running", preprocess="running")
    answer = client("viewer").get(run_writer.address(page))
    assert "The evaluation writes its answers when it ends." in answer.text


BAD = [b"", b"{", b"null", b'{"task": "classification"}', b"[" * 100_000, b"\xff\xfe"]


@pytest.mark.parametrize("content", BAD, ids=lambda content: repr(content[:12]))
@pytest.mark.parametrize("page", ["thresholds", "thresholds/content", "predictions"])
def test_damaged_counts_are_a_sentence(client, whole_run, content, page):
    replace(whole_run, ANSWERS_BY_THRESHOLD, content)
    answer = client("viewer").get(whole_run.address(page))
    assert answer.status_code == 409
    assert "thresholds.json: not a valid ThresholdCounts" in answer.text


def test_counts_that_do_not_fit_the_classes_are_a_sentence(client, whole_run):
    text = find_file(whole_run, ANSWERS_BY_THRESHOLD).read_text()
    for old, new, why in (
        ('"class 0",', "", "3 classes, but 2 names"),
        ('"mistakes":[[0,', '"mistakes":[[7,', "a class that is not one of the 3"),
        ('"start":0', '"start":101', "start"),
    ):
        assert old in text
        replace(whole_run, ANSWERS_BY_THRESHOLD, text.replace(old, new).encode())
        answer = client("viewer").get(whole_run.address("thresholds"))
        assert answer.status_code == 409 and why in answer.text


def test_a_hostile_file_of_answers_is_a_sentence(client, whole_run):
    replace(whole_run, ANSWERS, b"PK\x03\x04" + bytes(100))
    answer = client("viewer").get(whole_run.address("predictions"))
    assert answer.status_code == 409
    assert "predictions.npz: not the answers of an evaluation" in answer.text


def read_rows(client, run_writer, **query) -> list[str]:
    answer = client("viewer").get(run_writer.address("predictions", **query))
    assert answer.status_code == 200
    return re.findall(r"<code>(\d+)&lt;b&gt;\.png</code>", answer.text)


def test_the_filters_choose_the_answers_and_the_address_keeps_them(
    client, whole_run, write_classifier
):
    predictions = write_classifier().predictions
    [model, champion], labels = predictions.models, predictions.labels
    wrong, right_before = model.classes != labels, champion.classes == labels
    assert read_rows(client, whole_run) == [str(row) for row in range(50)]
    assert read_rows(client, whole_run, page="7") == [str(row) for row in range(350, 400)]
    assert read_rows(client, whole_run, page="8") == []
    for query, chosen in (
        ({"show": "wrong"}, wrong),
        ({"show": "new"}, wrong & right_before),
        ({"show": "wrong", "label": "2"}, wrong & (labels == 2)),
        ({"label": "2"}, labels == 2),
        ({"label": "999999"}, labels == 999999),
    ):
        found = [
            row
            for page in range(4)
            for row in read_rows(client, whole_run, page=str(page), **query)
        ]
        assert sorted(map(int, found)) == np.flatnonzero(chosen).tolist()
        if "show" in query:
            confidences = np.float16(model.confidences)[list(map(int, found))]
            assert (np.diff(confidences) <= 0).all()
    page = client("viewer").get(whole_run.address("predictions", show="wrong", label="")).text
    assert f"{wrong.sum()} of 400 test images" in page
    assert '&amp;show=wrong&amp;page=1">More</a>' in page


@pytest.mark.parametrize("query", [{"show": "x"}, {"label": "-1"}, {"label": "x"}, {"page": "-1"}])
def test_a_filter_that_is_none_is_refused(client, whole_run, query):
    assert client("viewer").get(whole_run.address("predictions", **query)).status_code == 422


def test_without_a_champion_there_is_no_column_of_it(client, whole_run, write_classifier):
    write_classifier(champion=False)
    for page in ("thresholds", "predictions"):
        text = Page(client("viewer").get(whole_run.address(page)).text).text
        assert "ersion 2" not in text.split("Open alone")[1]


def test_of_very_many_classes_those_of_the_lowest_recall_are_shown(
    client, whole_run, write_classifier
):
    write_classifier(num_classes=120, num_examples=600)
    page = client("viewer").get(whole_run.address("thresholds")).text
    assert "The 100 of 120 classes with the lowest recall" in page and "Confusions" not in page
    assert len(re.findall(r'data-series="class-\d+-f1-0"', page)) == 100
    assert "not among the first" in client("viewer").get(whole_run.address("predictions")).text


@pytest.mark.parametrize("page", ["thresholds", "predictions"])
def test_no_name_of_a_class_is_a_script(client, whole_run, write_classifier, page):
    write_classifier(names=[SCRIPT, BREAKOUT, TEMPLATE])
    html = client("viewer").get(whole_run.address(page)).text
    assert SCRIPT not in html and "<img" not in html
    assert all(name in Page(html).text for name in (SCRIPT, BREAKOUT, TEMPLATE))


@needs_chromium
@pytest.mark.parametrize("width, scheme", [(1400, "light"), (390, "dark")])
def test_the_slider_moves_all_figures_and_the_address_follows(
    client, whole_run, write_classifier, width, scheme
):
    write_classifier(10, 2000, names=[str(digit) for digit in range(10)])
    viewer, address = client("viewer"), whole_run.address("thresholds")
    series = viewer.get(whole_run.address("thresholds/content")).json()
    with open_page(viewer, address, width, scheme) as (page, problems):
        page.locator("form.is-live").wait_for()

        def read():
            cells = page.locator("[data-series]").all()
            return {cell.get_attribute("data-series"): cell.text_content() for cell in cells}

        assert read() == {name: texts[0] for name, texts in series.items()}
        page.locator("#threshold").focus()
        mark = page.locator("svg .mark")
        before = float(mark.get_attribute("x1"))
        page.keyboard.press("End")
        page.keyboard.press("ArrowLeft")
        assert read() == {name: texts[99] for name, texts in series.items()}
        assert float(mark.get_attribute("x1")) - before == pytest.approx(0.99 * 270)
        assert page.url.endswith("&threshold=99")
        assert page.locator("#threshold").get_attribute("aria-valuetext") == "0.99"
        page.get_by_role("link", name="precision of 0.99").click()
        precise = next(i for i, text in enumerate(series["precision-0"]) if text >= "0.99")
        assert page.locator("output").text_content() == f"{precise / 100:.2f}"
        page.reload()
        page.locator("form.is-live").wait_for()
        assert page.locator("output").text_content() == f"{precise / 100:.2f}"
        assert page.evaluate("document.documentElement.scrollWidth") == width
    assert problems == []


@needs_chromium
def test_the_button_works_where_the_figures_cannot_be_fetched(client, whole_run):
    viewer = client("viewer")
    with open_page(viewer, whole_run.address("thresholds")) as (page, _):
        page.route("**/thresholds/content*", lambda route: route.abort())
        page.reload()
        page.locator("#threshold").fill("60")
        page.get_by_role("button", name="Show").click()
        page.wait_for_url("**threshold=60")
        assert page.locator("output").text_content() == "0.60"
