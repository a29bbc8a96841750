"""The page of the server, in a browser."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from export.serve_process import HOSTILE, serve_command

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@contextlib.contextmanager
def open_page(width: int = 800, height: int = 700, scheme: str = "light"):
    """A page of a browser, and the errors that it reports.

    Pictures of the page go to the folder that TRAINYARD_SCREENSHOTS names.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--no-proxy-server"]
        )
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        page.set_default_timeout(120_000)
        problems = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        yield page, problems
        browser.close()


def take_screenshot(page, name: str) -> None:
    if folder := os.environ.get("TRAINYARD_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@pytest.mark.models
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
@pytest.mark.parametrize("width, scheme", [(1200, "light"), (390, "dark")])
def test_a_picture_that_is_dropped_gets_its_classes_drawn_and_no_name_of_a_class_is_a_script(
    server, tmp_path, width, scheme
):
    picture = tmp_path / "digit.png"
    picture.write_bytes(server.encoded[int(np.flatnonzero(server.labels == 0)[0])])
    with open_page(width, 900, scheme) as (page, problems):
        page.on(
            "console",
            lambda message: problems.append(message.text) if message.type == "error" else None,
        )
        page.goto(server.address)
        page.get_by_text("version 2, @champion").wait_for()
        page.set_input_files("#file", str(picture))
        page.locator("#bars li").first.wait_for()
        assert page.locator("#headline").inner_text() == HOSTILE
        assert page.locator("#bars li").count() == 10
        assert page.title() == "Trainyard: try a model" and problems == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        take_screenshot(page, f"serve-{width}-{scheme}")
        (tmp_path / "bad.png").write_bytes(b"no picture")
        page.set_input_files("#file", str(tmp_path / "bad.png"))
        page.get_by_text("the model cannot process this").wait_for()
        assert not page.locator("#result").is_visible()
        take_screenshot(page, f"serve-{width}-{scheme}-bad")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_boxes_are_drawn_over_the_picture_where_a_model_answers_with_boxes(server, tmp_path):
    """The test gives the page an answer of a detector. `evaluation/test_detector.py` has a real
    one."""
    detections = {
        "boxes": [[0.1, 0.2, 0.5, 0.6], [0.4, 0.5, 0.9, 1.0], [0.0, 0.0, 0.1, 0.1]],
        "scores": [0.9, 0.8, 0.1],
        "classes": [3, 0, 5],
        "num_detections": 3,
    }
    (tmp_path / "digit.png").write_bytes(server.encoded[0])
    with open_page() as (page, _):
        page.route("**/*:predict", lambda route: route.fulfill(json={"predictions": [detections]}))
        page.goto(server.address)
        page.get_by_text("version 2, @champion").wait_for()
        page.set_input_files("#file", str(tmp_path / "digit.png"))
        page.get_by_text("2 objects").wait_for()
        drawn = page.locator("#boxes rect").first.bounding_box()
        picture = page.locator("#picture").bounding_box()
        assert page.locator("#boxes rect").count() == 2 and page.locator("#bars li").count() == 2
        # Class 0 has the hostile name.
        assert page.locator("#names .tag").all_inner_texts() == ["3", HOSTILE]
        assert drawn["x"] - picture["x"] == pytest.approx(0.2 * picture["width"], abs=2)
        assert drawn["height"] == pytest.approx(0.4 * picture["height"], abs=3)
        take_screenshot(page, "serve-boxes")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_picture_that_is_dropped_before_there_is_a_model_gets_the_reason(tmp_path):
    """It was "Cannot read properties of null"."""
    (tmp_path / "digit.png").write_bytes(b"no picture yet")
    command = serve_command("digits", tmp_path)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        with open_page() as (page, problems):
            page.goto(process.stdout.readline().strip())
            page.get_by_text("no model is loaded yet").first.wait_for()
            page.set_input_files("#file", str(tmp_path / "digit.png"))
            page.get_by_text("No model is loaded yet. Drop").wait_for()
            assert problems == [] and not page.locator("#result").is_visible()
            take_screenshot(page, "serve-early")
        process.terminate()
