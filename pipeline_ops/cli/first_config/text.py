"""The text of a first config: every key with a short comment, as in `configs/*.yaml`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from pipeline_ops.cli.first_config.settings import FirstSettings
from pipeline_ops.cli.templates import render_template

if TYPE_CHECKING:
    from pipeline_ops.cli.first_config.data_summary import DataSummary
    from pipeline_ops.cli.first_config.settings import Budget

_MAX_CLASSES_SHOWN = 20
_COMMENT_COLUMN = 50
_MAX_HEAD_COLUMNS = 145


class ConfigFacts(NamedTuple):
    """The name, the source, the reason for it, the figures of the data, and the chosen values.

    `budget` is None if no time was measured, and `weights` is empty without a warm start.
    """

    pipeline: str
    source: Mapping[str, Any]
    reason: str
    data: DataSummary
    settings: FirstSettings
    weights: str = ""
    budget: Budget | None = None


def render_config(facts: ConfigFacts) -> str:
    """Returns the YAML, with the comments in one column."""
    text = render_template(
        "first_config.yaml",
        facts=facts,
        reason=textwrap.wrap(make_printable(f"{facts.reason}."), _MAX_HEAD_COLUMNS - 2),
        classes=describe_classes(facts.data.labels, with_counts=True),
        sizes=describe_sizes(facts.data),
        num_images=describe_splits(facts.data),
        number="{:,}".format,
        make_printable=make_printable,
        dump=_dump,
    )
    rows = (line.partition("\t") for line in text.splitlines())
    return "".join(
        f"{content:<{_COMMENT_COLUMN}} {comment}\n" if comment else f"{content}\n"
        for content, _, comment in rows
    )


def make_printable(text: str) -> str:
    """The text with escapes for control characters, which would end a comment or move a cursor."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def describe_classes(labels: Mapping[str, int], with_counts: bool = False) -> str:
    """The names of the classes, or the first of them."""
    names = sorted(labels)
    shown = [
        f"{name} ({labels[name]:,})" if with_counts else name for name in names[:_MAX_CLASSES_SHOWN]
    ]
    more = f" and {len(names) - len(shown):,} more" if len(names) > len(shown) else ""
    return make_printable(", ".join(shown)) + more


def _dump(value: Any) -> str:
    """A value as YAML in one line."""
    return yaml.safe_dump(
        value, default_flow_style=True, allow_unicode=True, sort_keys=False, width=100_000
    ).rstrip("\n")


def describe_sizes(data: DataSummary) -> str:
    """The range of the sizes of the decoded images, as width x height."""
    heights, widths = zip(*data.sample.sizes, strict=True)
    low, high = f"{min(widths)}x{min(heights)}", f"{max(widths)}x{max(heights)}"
    sizes = low if low == high else f"{low} to {high}"
    return f"{len(heights):,} decoded images have {sizes} pixels (width x height)"


def describe_splits(data: DataSummary) -> str:
    """The numbers of images in the splits."""
    return ", ".join(f"{number:,} {name}" for name, number in data.num_images.items())
