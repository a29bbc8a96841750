"""A config for display: without the arguments of notifiers and the options of a runner.

Both may hold a password or a token. All users who may see a DAG in Airflow see its documentation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

_HIDDEN = "(not shown)"
_BLOCK_START, _BLOCK_END = "```yaml\n", "\n```\n"


def hide_secrets(text: str) -> str:
    """Returns the text of a valid config with `(not shown)` in place of possible secrets."""
    root = yaml.compose(text, yaml.CSafeLoader)
    shown, last = [], 0
    for node in sorted(_find_secret_nodes(root), key=lambda node: node.start_mark.index):
        secret = text[node.start_mark.index : node.end_mark.index]
        shown += [text[last : node.start_mark.index], _HIDDEN, secret[len(secret.rstrip()) :]]
        last = node.end_mark.index
    return "".join([*shown, text[last:]])


def format_yaml(text: str) -> str:
    """Formats the text as a block of Markdown, which is the end of a documentation."""
    return f"{_BLOCK_START}{text.strip()}{_BLOCK_END}"


def find_yaml(documentation: str) -> str:
    """Returns the text in such a block; "" if there is none."""
    _, start, rest = documentation.partition(_BLOCK_START)
    return rest.removesuffix(_BLOCK_END) if start else ""


def drop_hidden(values: dict[str, Any]) -> None:
    """Removes from the values of such a text what is not valid without its hidden parts.

    Pages and the orphan reaper need none of it.
    """
    if values.pop("notify", None):
        values.pop("deadline_seconds", None)
    preprocess = values.get("preprocess")
    runner = preprocess.get("runner") if isinstance(preprocess, dict) else None
    if isinstance(runner, dict):
        runner.pop("options", None)


def _find_secret_nodes(root: yaml.Node | None) -> Iterator[yaml.Node]:
    notifiers = _find_value(root, "notify")
    for notifier in notifiers.value if isinstance(notifiers, yaml.SequenceNode) else ():
        yield from filter(None, [_find_value(notifier, "arguments")])
    yield from filter(
        None, [_find_value(_find_value(_find_value(root, "preprocess"), "runner"), "options")]
    )


def _find_value(node: yaml.Node | None, key: str) -> yaml.Node | None:
    """The value of a key in a mapping, including the mappings that it merges (`<<`)."""
    pairs: list[tuple[yaml.Node, yaml.Node]] = (
        node.value if isinstance(node, yaml.MappingNode) else []
    )
    for name, value in pairs:
        if name.value == key:
            return value
    merged = (value for name, value in pairs if name.value == "<<")
    return next((found for value in merged if (found := _find_value_in_any(value, key))), None)


def _find_value_in_any(node: yaml.Node, key: str) -> yaml.Node | None:
    nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
    return next((found for each in nodes if (found := _find_value(each, key))), None)
