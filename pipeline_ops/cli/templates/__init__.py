"""The templates of files that commands write: an own stage or source, and a first config."""

from __future__ import annotations

from pathlib import Path

import jinja2

_environment = jinja2.Environment(  # noqa: S701 (no HTML)
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def render_template(template: str, /, **values: object) -> str:
    """Renders the template `<template>.jinja` of this folder."""
    return _environment.get_template(f"{template}.jinja").render(values)
