"""What a person sees of each page, at a desk and on a phone, in both themes."""

from __future__ import annotations

import itertools
from typing import get_args
from urllib.parse import urlencode

import pytest
from airflow_database import DAG, RUN
from airflow_ui import needs_chromium
from plugin_browser import find_barriers, open_browser, open_page

from pipeline_ops.contract.outcome import Kind
from pipeline_ops.contract.run_summary import MetricSummary
from pipeline_ops.orchestration.ui.runs import WORDS

pytestmark = [needs_chromium, pytest.mark.airflow]

WIDTHS, SCHEMES = (1400, 390), ("light", "dark")
BACKGROUNDS = {"light": "rgb(245, 245, 242)", "dark": "rgb(18, 20, 23)"}
FINISHED = [kind for kind in get_args(Kind) if kind not in ("running", "waiting")]
FAILED = ("failed", "data_refused", "cancelled", "out_of_date")


def list_addresses(run_id: str) -> list[str]:
    here, run = f"/pipelines/{DAG}", urlencode({"run_id": run_id})
    return [
        "/models",
        f"{here}/models",
        f"{here}/models/change?action=promote&version=1",
        f"{here}/runs?all=1",
        f"{here}/overlay?{run}",
        f"{here}/progress?{run}",
        f"{here}/report?{run}",
        f"{here}/report?{run}&page=data",
        f"{here}/report?{run}&page=own",
        f"{here}/data",
        f"{here}/data?tab=history",
        f"{here}/thresholds?{run}",
        f"{here}/predictions?{run}",
    ]


def test_no_page_has_a_barrier_or_scrolls_sideways(client, whole_run, add_run):
    """axe-core finds nothing serious or critical."""
    for kind in FINISHED:
        metrics = {"accuracy": MetricSummary(value=0.98, champion=0.97)}
        add_run(kind, metrics=metrics, values={"train.epochs": 4}, note="a note")
    found = []
    with open_browser(client("admin")) as visit:
        for address, width, scheme in itertools.product(list_addresses(RUN), WIDTHS, SCHEMES):
            with visit(address, width, scheme) as (page, problems):
                found += [f"{address} {width} {scheme}: {each}" for each in find_barriers(page)]
                found += [f"{address} {width} {scheme}: {each}" for each in problems]
                if (wide := page.evaluate("document.documentElement.scrollWidth")) > width:
                    found.append(f"{address} is {wide} pixels wide on {width}")
    assert found == [], "\n".join(found)


@pytest.mark.parametrize("kind", FINISHED)
def test_the_outcome_of_a_run_is_the_first_thing_on_each_page(client, add_run, kind):
    sentence = f"The sentence of {kind}."
    query = urlencode({"run_id": add_run(kind)})
    with open_browser(client("viewer")) as visit:
        for width, scheme in itertools.product(WIDTHS, SCHEMES):
            for name in ("report", "progress"):
                with visit(f"/pipelines/{DAG}/{name}?{query}", width, scheme) as (page, _):
                    head = page.get_by_role("status").filter(has_text=sentence)
                    box = head.bounding_box()
                    assert box["y"] + box["height"] < 300, "it must be seen without scrolling"
                    assert box["x"] >= 0 and box["x"] + box["width"] <= width
            with visit(f"/pipelines/{DAG}/runs?all=1&kind={kind}", width, scheme) as (page, _):
                row = page.locator("tbody tr")
                assert row.count() == 1 and row.get_by_text(sentence).is_visible()
                assert row.get_by_text(WORDS[kind], exact=True).is_visible()


@pytest.mark.parametrize("state", ["running", "awaiting_input"])
def test_a_run_that_has_not_ended_says_what_it_waits_for(client, run_writer, set_states, state):
    set_states("running", preprocess="success", train="running" if state == "running" else state)
    with open_browser(client("viewer")) as visit:
        for width, scheme in itertools.product(WIDTHS, SCHEMES):
            with visit(run_writer.address("progress"), width, scheme) as (page, _):
                assert page.get_by_role("status").first.bounding_box()["y"] < 200


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("theme", SCHEMES)
def test_the_theme_of_airflow_counts_before_that_of_the_machine(client, whole_run, scheme, theme):
    """Also in the frame of a job's page, which has no script."""
    whole_run.report(
        "<meta name=color-scheme content='light dark'><style>body { background: "
        f"light-dark({BACKGROUNDS['light']}, {BACKGROUNDS['dark']}) }}</style><h1>Report</h1>"
    )
    get_color = "getComputedStyle(document.body).backgroundColor"
    address = whole_run.address("report")
    with open_page(client("viewer"), address, scheme=scheme, theme=theme) as (page, _):
        assert page.evaluate(get_color) == BACKGROUNDS[theme]
        assert page.frames[1].evaluate(get_color) == BACKGROUNDS[theme]


def test_a_change_of_the_theme_in_another_frame_is_followed_at_once(client, whole_run):
    with open_page(client("viewer"), whole_run.address("runs")) as (page, _):
        assert page.evaluate("document.documentElement.style.colorScheme") == ""
        other = page.context.new_page()
        other.route("http://airflow.example/**", lambda route: route.fulfill(body="<p>"))
        other.goto("http://airflow.example/other")
        other.evaluate("localStorage.setItem('theme', 'dark')")
        page.wait_for_function("document.documentElement.style.colorScheme === 'dark'")
        other.evaluate("localStorage.setItem('theme', 'system')")
        page.wait_for_function("document.documentElement.style.colorScheme === ''")


SANDBOX = "allow-scripts allow-same-origin allow-forms allow-downloads"
"""What Airflow's frame around a tab allows. A link may not navigate the page around it."""


@pytest.mark.parametrize("name", ["runs", "report", "data"])
def test_a_click_in_a_tab_of_airflow_opens_the_page_around_it(client, whole_run, name):
    inner = whole_run.address(name)
    outer = f"<!doctype html><iframe sandbox='{SANDBOX}' width=1300 height=900 src='{inner}'>"
    with open_page(client("viewer"), inner) as (page, _):
        assert page.get_by_text("In Airflow").is_visible()
        assert not page.get_by_text("Open alone").is_visible()
        page.route(
            "http://airflow.example/dags/**",
            lambda route: route.fulfill(body=outer, content_type="text/html"),
        )
        page.goto("http://airflow.example/dags/digits")
        frame = page.frames[1]
        frame.wait_for_load_state()
        assert not frame.get_by_text("In Airflow").first.is_visible()
        frame.get_by_text("Open alone").click()
        page.wait_for_url(f"**/pipelines/{DAG}/{name}*")
        assert len(page.frames) <= 2


def test_the_last_good_run_is_one_that_was_published_or_unchanged(client, whole_run, add_run):
    add_run("failed")
    add_run("refused")
    add_run("unchanged")
    failed = add_run("failed")
    assert failed
    with open_page(
        client("viewer"), f"/pipelines/{DAG}/report?{urlencode({'run_id': 'run-0+failed'})}"
    ) as (page, _):
        card = page.get_by_text("Last good run:")
        assert card.is_visible() and "unchanged" in card.text_content()
        link = card.get_by_role("link").get_attribute("href")
        assert "run-2%2Bunchanged" in link
