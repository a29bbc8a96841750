"""A config for display: without the arguments of notifiers and the options of a runner.

Both may hold a password or a token. All users who may see a DAG in Airflow see its documentation.
"""

from __future__ import annotations

from collections.abc import Iterator

import yaml

_HIDDEN = "(not shown)"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def without_secrets(text: str) -> str:
    """Returns the text of a valid config with `(not shown)` in place of possible secrets."""
    root = yaml.compose(text, _LOADER)
    shown, last = [], 0
    for node in sorted(_secret_nodes(root), key=lambda node: node.start_mark.index):
        secret = text[node.start_mark.index : node.end_mark.index]
        shown += [text[last : node.start_mark.index], _HIDDEN, secret[len(secret.rstrip()) :]]
        last = node.end_mark.index
    return "".join([*shown, text[last:]])


def _secret_nodes(root: yaml.Node) -> Iterator[yaml.Node]:
    notifiers = _value(root, "notify")
    for notifier in notifiers.value if isinstance(notifiers, yaml.SequenceNode) else ():
        yield from filter(None, [_value(notifier, "arguments")])
    yield from filter(None, [_value(_value(_value(root, "preprocess"), "runner"), "options")])


def _value(node: yaml.Node | None, key: str) -> yaml.Node | None:
    """The value of a key in a mapping, including the mappings that it merges (`<<`)."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    for name, value in pairs:
        if name.value == key:
            return value
    merged = (value for name, value in pairs if name.value == "<<")
    return next((found for value in merged if (found := _value_of_any(value, key))), None)


def _value_of_any(node: yaml.Node, key: str) -> yaml.Node | None:
    nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
    return next((found for each in nodes if (found := _value(each, key))), None)
