"""What tests of Airflow's own UI share: an embedded Airflow with a DAG file of the test's own, and
a person in front of a browser.

Pictures of what the person sees go to the folder that TRAINYARD_SCREENSHOTS names, for people
who want to look at them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline_ops.cli.airflow_api import AirflowApi

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium on this machine: install the package chromium"
)
PICTURES = os.environ.get("TRAINYARD_SCREENSHOTS")
_ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_UI_MILLISECONDS = 400_000
"""The maximum duration of a run on a busy machine."""
_DRAWING_MILLISECONDS = 800
"""Airflow draws a moment after it has loaded, and opens a part of a form slowly."""
_DESKTOP, _PHONE = {"width": 1400, "height": 1000}, {"width": 390, "height": 844}


class BrowserUser:
    """A user of Airflow with a browser, and nothing else. `outside` are the requests that
    went anywhere but to this Airflow."""

    def __init__(self, page, api: AirflowApi):
        self.page, self._login = page, api._login
        self.url = str(api._client.base_url).rstrip("/")
        self._count = 0
        self.outside: list[str] = []
        page.on(
            "request",
            lambda request: (
                self.outside.append(request.url)
                if not request.url.startswith((self.url, "data:", "blob:"))
                else None
            ),
        )

    def look(self, name: str) -> None:
        """Takes a numbered picture if TRAINYARD_SCREENSHOTS is set."""
        if PICTURES is None:
            return
        self._count += 1
        self.page.wait_for_load_state("networkidle")
        self.page.wait_for_timeout(_DRAWING_MILLISECONDS)
        self.page.screenshot(path=Path(PICTURES) / f"{self._count:02}-{name}.png")

    def go(self, path: str) -> None:
        self.page.goto(self.url + path)

    def log_in(self) -> None:
        self.go("/")
        self.page.locator("input[name=username]").wait_for()
        self.look("login")
        self.page.fill("input[name=username]", self._login["username"])
        self.page.fill("input[name=password]", self._login["password"])
        self.page.click("button[type=submit]")
        self.page.wait_for_url(re.compile(r".*/(home)?$"))

    def open_form(self, dag: str):
        """The trigger form of a DAG."""
        self.go(f"/dags/{dag}")
        self.page.get_by_role("button", name=re.compile("Trigger")).first.click()
        return self.page.get_by_role("dialog").first

    def fill(self, form, section: str, key: str, value: str):
        """Types into a field of the form. Opens its section if it is closed. Returns the field.

        To open a section closes another one, slowly: a field can be visible and about to vanish.
        """
        field = form.locator(f"[name='element_{key}']")
        self.page.wait_for_timeout(_DRAWING_MILLISECONDS)
        if not field.is_visible():
            form.get_by_text(section, exact=True).first.click()
        field.fill(value)
        field.press("Tab")
        return field

    def send(self, form) -> str:
        """Triggers a run. Returns the path of the run's page."""
        form.get_by_role("button", name="Trigger").click()
        self.page.wait_for_url(re.compile("/runs/"))
        return self.page.url.removeprefix(self.url).split("?")[0].rstrip("/")

    def open_tab(self, name: str):
        """One of our pages, by its link: in a run, or in the navigation."""
        self.page.get_by_role("link", name=name, exact=True).first.click()
        return self.page.frame_locator(f"iframe[title='{name}']")

    def look_on_a_phone(self, path: str, name: str) -> None:
        """One of our pages by itself, as narrow as a phone and in the dark. It must not be wider
        than the phone."""
        self.page.set_viewport_size(_PHONE)
        self.page.emulate_media(color_scheme="dark")
        self.go(path)
        self.page.wait_for_load_state("networkidle")
        self.look(f"{name}-on-a-phone")
        assert self.page.evaluate("document.documentElement.scrollWidth") <= _PHONE["width"]
        self.page.set_viewport_size(_DESKTOP)
        self.page.emulate_media(color_scheme="light")


@contextlib.contextmanager
def open_browser(api: AirflowApi) -> Iterator[BrowserUser]:
    """A user who has not logged in yet."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
        page = browser.new_page(viewport=_DESKTOP)
        page.set_default_timeout(_UI_MILLISECONDS)
        person = BrowserUser(page, api)
        try:
            yield person
        except BaseException:
            person.look("where-it-failed")
            raise
        finally:
            browser.close()
