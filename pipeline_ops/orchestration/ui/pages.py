"""Renders the plugin's pages, whose templates escape all text."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from fastapi.responses import HTMLResponse

from pipeline_ops.contract.results import format_figure
from pipeline_ops.orchestration.ui.models import describe_move
from pipeline_ops.orchestration.ui.progress import format_duration
from pipeline_ops.pages.metric_titles import format_metric_title
from pipeline_ops.pages.page import STYLE

_TEMPLATES = Path(__file__).parent / "templates"

IN_PIPELINE = "../../"
"""The relative address of the plugin's root, from a pipeline's page."""

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

A report has an origin of its own, no script and no request, so it cannot use the session's cookie.
"""

FORCED_THEMES: Mapping[str, bytes] = {
    theme: f"<style>:root {{ color-scheme: {theme} !important }}</style>".encode()
    for theme in ("light", "dark")
}
"""What the end of a job's page gets for each theme, because no script runs in it."""

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
    "airflow.js": (_TEMPLATES / "airflow.js").read_text(encoding="utf-8"),
    "overlay.js": (_TEMPLATES / "overlay.js").read_text(encoding="utf-8"),
    "live.js": (_TEMPLATES / "live.js").read_text(encoding="utf-8"),
    "thresholds.js": (_TEMPLATES / "thresholds.js").read_text(encoding="utf-8"),
    # The rim keeps the icon visible in a selected entry of Airflow's navigation.
    "models.svg": _ICON.replace("currentColor", "#3f3f46").replace("rimColor", "#ffffff"),
    "models-dark.svg": _ICON.replace("currentColor", "#e4e4e7").replace("rimColor", "#18181b"),
}
"""The files that the pages load, by name."""


def render(template: str, base: str, **values: Any) -> HTMLResponse:
    """Renders a page. `base` is the relative address of the plugin's root, such as `../../`."""
    return HTMLResponse(_environment.get_template(template).render(base=base, **values))


def format_time(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def format_minute(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M UTC")


def format_size(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"


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
    "utc_minute": format_minute,
    "size": format_size,
    "move": describe_move,
    "metric": format_metric_title,
    "figure": format_figure,
}
