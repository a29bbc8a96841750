"""Renders the plugin's pages.

The templates escape all text. The headers restrict what a browser may do with a page.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from fastapi.responses import HTMLResponse

from pipeline_ops.pages.page import STYLE
from pipeline_ops.ui.models import describe_move
from pipeline_ops.ui.progress import format_duration, format_metric_title

_TEMPLATES = Path(__file__).parent / "templates"

IN_PIPELINE = "../../"
"""The way from the address of a pipeline's page to the plugin's root."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)
"""The policy for our own pages: nothing inline, nothing from elsewhere."""

SANDBOX = (
    "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'"
)
"""The policy for a report, which the code of a job has written and is not trusted.

A report has an origin of its own, no script and no request. It can neither read the session's
cookie nor act with it, however it is opened.
"""

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_ICON = (_TEMPLATES / "models.svg").read_text(encoding="utf-8")

FILES: Mapping[str, str] = {
    "style.css": STYLE.read_text(encoding="utf-8")
    + (_TEMPLATES / "ui.css").read_text(encoding="utf-8"),
    "live.js": (_TEMPLATES / "live.js").read_text(encoding="utf-8"),
    # In a selected entry of the navigation, Airflow swaps the colours of all but an icon. The rim
    # keeps the icon visible.
    "models.svg": _ICON.replace("currentColor", "#3f3f46").replace("rimColor", "#ffffff"),
    "models-dark.svg": _ICON.replace("currentColor", "#e4e4e7").replace("rimColor", "#18181b"),
}
"""The files that the pages load, by name."""


def render(template: str, base: str, **values: Any) -> HTMLResponse:
    """Renders a page.

    Args:
      base: the way from the page's address to the plugin's root, such as `../../`.
      values: the variables of the template. A missing one is an error.
    """
    return HTMLResponse(_environment.get_template(template).render(base=base, **values))


def format_time(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


_environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_TEMPLATES),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters |= {
    "duration": format_duration,
    "utc_time": format_time,
    "move": describe_move,
    "metric": format_metric_title,
}
