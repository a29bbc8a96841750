"""A config for display: without the arguments of notifiers and the options of a runner.

Both may hold a password or a token. All users who may see a DAG in Airflow see its documentation.
"""

from __future__ import annotations

from collections.abc import Iterator

import yaml

_HIDDEN = "(not shown)"


def hide_secrets(text: str) -> str:
    """Returns the text of a valid config with `(not shown)` in place of possible secrets."""
    root = yaml.compose(text, yaml.CSafeLoader)
    shown, last = [], 0
    for node in sorted(_find_secret_nodes(root), key=lambda node: node.start_mark.index):
        secret = text[node.start_mark.index : node.end_mark.index]
        shown += [text[last : node.start_mark.index], _HIDDEN, secret[len(secret.rstrip()) :]]
        last = node.end_mark.index
    return "".join([*shown, text[last:]])


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
