"""Renders the pages that people read: one file that holds everything itself, runs no script and loads nothing.

`page_head.html` says so to the browser, as a security policy, and `page.css` is the look that all pages share. The report
of an evaluation and the page of a data set are made with it. Templates escape all text by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

_HERE = Path(__file__).parent
STYLE = _HERE / "page.css"
"""The look that all pages share."""


def render_page(template: Path, styles: Sequence[Path] = (), **values: Any) -> str:
    """The page as text, to be written in UTF-8: the same values give the same bytes.

    Args:
      template: has `{% include "page_head.html" %}` in its head, which takes the variable `title`.
      styles: style sheets of the page's own, which come after the shared one.
      values: what the template needs; a name that it lacks is an error.
    """
    style = Markup("".join(file.read_text(encoding="utf-8") for file in (STYLE, *styles)))  # noqa: S704 (our own files)
    return render_part(template, style=style, **values)


def render_part(template: Path, **values: Any) -> str:
    """As `render_page`, for a part that is put into a page."""
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader([template.parent, _HERE]), autoescape=True, undefined=jinja2.StrictUndefined,
                                     trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    return environment.get_template(template.name).render(**values)
