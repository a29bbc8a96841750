"""YAML with limits: the allowed contents, depth and size of a text, and the line of every key.

Differs from YAML 1.1 where its surprises cause wrong values. `1e-3` is a number, a date or
`12:30:00` is a text, and a key that stands twice is an error. The events come from libyaml. They
are composed here, because libyaml's own composer recurses without a limit.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from pipeline_ops.config.yaml_messages import YamlProblem, explain

Location = tuple[str | int, ...]

MAX_DEPTH = 40
MAX_VALUES = 30_000
"""The largest number of keys and values of a text. A value counts again for each alias of it."""

_MAX_INTEGER_DIGITS = 20
_MAX_INTEGER = 2**63 - 1
_PREFIX = "tag:yaml.org,2002:"
_TAGS = frozenset(
    _PREFIX + name for name in ("null", "bool", "int", "float", "str", "seq", "map", "merge")
)
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def _get_line(item: yaml.Node | yaml.Event | None) -> int:
    mark = item and item.start_mark
    return mark.line + 1 if mark else 1


def _construct_int(constructor: SafeConstructor, node: yaml.ScalarNode) -> int:
    value = node.value
    if len(value) > _MAX_INTEGER_DIGITS or (
        abs(number := constructor.construct_yaml_int(node)) > _MAX_INTEGER
    ):
        raise YamlProblem(
            _get_line(node),
            f"an integer of {len(value)} digits is too large. The largest is {_MAX_INTEGER}.",
        )
    return number


def _construct_float(constructor: SafeConstructor, node: yaml.ScalarNode) -> float:
    value = constructor.construct_yaml_float(node)
    if not math.isfinite(value):
        raise YamlProblem(
            _get_line(node), f"{node.value:.40} is not a finite number. Write a number."
        )
    return value


class _Loader(Composer, yaml.CSafeLoader):
    """A safe loader that counts the nodes that it composes."""

    yaml_constructors = SafeConstructor.yaml_constructors | {
        f"{_PREFIX}int": _construct_int,
        f"{_PREFIX}float": _construct_float,
    }
    yaml_implicit_resolvers = {
        first: [
            (tag, pattern)
            for tag, pattern in resolvers
            if tag.removeprefix(_PREFIX) in ("bool", "null", "merge")
        ]
        for first, resolvers in Resolver.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str):
        yaml.CSafeLoader.__init__(self, text)
        Composer.__init__(self)
        self._depth = self._values = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node:
        line = _get_line(self.peek_event())
        if self._depth >= MAX_DEPTH:
            raise YamlProblem(
                line, f"nested more than {MAX_DEPTH} levels deep. Is a bracket not closed?"
            )
        is_alias, before = self.check_event(yaml.AliasEvent), self._values
        self._depth += 1
        node: yaml.Node = super().compose_node(parent, index)  # type: ignore[assignment]  # never None
        self._depth -= 1
        if is_alias and id(node) not in self._sizes:
            raise YamlProblem(
                line, "an alias (*name) stands inside the value that it names (&name). Remove it."
            )
        self._values += self._sizes[id(node)] if is_alias else 1
        if self._values > MAX_VALUES:
            raise YamlProblem(
                line,
                f"more than {MAX_VALUES} values, each alias counted with all that it stands for. "
                "Remove some.",
            )
        self._sizes.setdefault(id(node), self._values - before)
        _validate_node(node, line)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except _UNREADABLE as error:
            raise YamlProblem(
                _get_line(node),
                f"{node.value!s:.40} cannot be read: {error}. Put it in quotes if a text is meant.",
            ) from None


_Loader.add_implicit_resolver(
    f"{_PREFIX}int",
    re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F]+)\Z"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    f"{_PREFIX}float",
    re.compile(
        r"([-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z"
    ),
    list("-+0123456789."),
)


def read_yaml(text: str) -> tuple[Any, dict[Location, int]]:
    """Returns the value of a text, and the line of each key and item in it.

    Raises:
      YamlProblem: with line and cure. No other exception is raised.
    """
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, {}
        lines: dict[Location, int] = {}
        _collect_lines(node, (), lines)
        return loader.construct_document(node), lines
    except yaml.YAMLError as error:
        raise explain(error, text) from None
    except (*_UNREADABLE, RecursionError) as error:
        raise YamlProblem(
            1, f"cannot be read: {error}. Put values that are meant as text in quotes."
        ) from None
    finally:
        if loader is not None:
            loader.dispose()


def _validate_node(node: yaml.Node, line: int) -> None:
    """Rejects a value that no field of a config can hold."""
    if node.tag not in _TAGS:
        raise YamlProblem(
            line, f"the tag {node.tag.replace(_PREFIX, '!!')} is not allowed. Remove it."
        )
    if isinstance(node, yaml.ScalarNode):
        if found := _CONTROL.search(node.value):
            raise YamlProblem(
                line, f"the text holds the control character U+{ord(found[0]):04X}. Remove it."
            )
    elif isinstance(node, yaml.MappingNode):
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise YamlProblem(
                    _get_line(key),
                    "a key must be a plain name. A text that begins with [ or { needs quotes.",
                )


def _collect_lines(node: yaml.Node, location: Location, lines: dict[Location, int]) -> None:
    if len(location) > MAX_DEPTH:
        raise YamlProblem(
            _get_line(node), f"nested more than {MAX_DEPTH} levels deep through aliases"
        )
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner, line = (*location, key.value), _get_line(key)
            if inner in lines:
                raise YamlProblem(
                    line,
                    f"{'.'.join(map(str, inner))} stands twice, first in line {lines[inner]}. "
                    "Remove one of them.",
                )
            lines[inner] = line
            _collect_lines(value, inner, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*location, index)] = _get_line(value)
            _collect_lines(value, (*location, index), lines)
