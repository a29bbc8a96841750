"""A browser whose requests go to the plugin's application, without an Airflow around it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from http.cookies import SimpleCookie
from pathlib import Path

from airflow_ui import CHROMIUM, PICTURES
from npm_packages import install_package

_HOST = "http://airflow.example"
_AXE = ("axe-core", "4.10.3")


@contextlib.contextmanager
def open_page(viewer, address: str, width: int = 1400, scheme: str = "light", theme: str = ""):
    """A page in a browser, and the problems that it reports.

    `scheme` is that of the operating system, `theme` the one that is chosen in Airflow. Pictures of
    the page go to the folder that TRAINYARD_SCREENSHOTS names.
    """
    with open_browser(viewer) as visit, visit(address, width, scheme, theme) as found:
        yield found


@contextlib.contextmanager
def open_browser(viewer) -> Iterator:
    """Yields a function that opens pages like `open_page`, in one browser."""
    from playwright.sync_api import sync_playwright

    def answer(route):
        for cookie in SimpleCookie(route.request.all_headers().get("cookie", "")).values():
            viewer.cookies.set(cookie.key, cookie.value)
        found = viewer.get(route.request.url.removeprefix(_HOST))
        route.fulfill(status=found.status_code, headers=dict(found.headers), body=found.content)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

        @contextlib.contextmanager
        def visit(address: str, width: int = 1400, scheme: str = "light", theme: str = ""):
            context = browser.new_context(
                viewport={"width": width, "height": 900}, color_scheme=scheme
            )
            if theme:
                context.add_init_script(
                    f"try {{ localStorage.setItem('theme', '{theme}') }} catch (problem) {{}}"
                )
            page, problems = context.new_page(), []
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("console", lambda message: problems.append(message.text))
            page.route(f"{_HOST}/**", answer)
            page.goto(_HOST + address)
            yield page, problems
            if PICTURES:
                name = address.partition("?")[0].strip("/").replace("/", "-")
                page.screenshot(path=Path(PICTURES) / f"{name}-{width}-{theme or scheme}.png")
            context.close()

        yield visit
        browser.close()


def find_barriers(page) -> list[str]:
    """What axe-core calls a serious or critical barrier for a person, with the first element."""
    page.evaluate((install_package(*_AXE) / "axe.min.js").read_text())
    found = page.evaluate("axe.run(document, {iframes: false})")
    return [
        f"{each['id']}: {each['nodes'][0]['html']}: {each['nodes'][0]['failureSummary']}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]
