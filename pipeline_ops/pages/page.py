"""Renders the pages that people read.

A page is one file that is complete in itself, runs no script and loads nothing. `page_head.html`
declares that to the browser as a security policy. Templates escape all text.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from pipeline_ops.pages.charts import draw_legend

_HERE = Path(__file__).parent
STYLE = _HERE / "page.css"
"""The style that all pages share."""


def render_page(template: Path, styles: Sequence[Path] = (), **values: Any) -> str:
    """Renders a page as text, to be written in UTF-8. The same values give the same bytes.

    Args:
      template: includes `page_head.html`, which takes the variable `title`.
      styles: the page's own style sheets, which come after the shared one.
    """
    style = Markup("".join(file.read_text(encoding="utf-8") for file in (STYLE, *styles)))  # noqa: S704 (our own files)
    return render_part(template, style=style, **values)


def render_part(template: Path, **values: Any) -> str:
    """Renders a part that is put into a page. Works like `render_page`."""
    return _open_environment(template.parent).get_template(template.name).render(**values)


@functools.lru_cache(maxsize=8)
def _open_environment(folder: Path) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, _HERE]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["draw_legend"] = draw_legend
    return environment
