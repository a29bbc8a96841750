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
from yaml.cyaml import CParser
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
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


class _Loader(Composer, CParser, SafeConstructor, Resolver):
    """A safe loader that counts the nodes that it composes."""

    def __init__(self, text: str):
        CParser.__init__(self, text)
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)
        self._depth = self._values = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> yaml.Node:
        line = self.peek_event().start_mark.line + 1
        if self._depth >= MAX_DEPTH:
            raise YamlProblem(
                line, f"nested more than {MAX_DEPTH} levels deep; is a bracket not closed?"
            )
        is_alias, before = self.check_event(yaml.AliasEvent), self._values
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias and id(node) not in self._sizes:
            raise YamlProblem(
                line, "an alias (*name) stands inside the value that it names (&name); remove it"
            )
        self._values += self._sizes[id(node)] if is_alias else 1
        if self._values > MAX_VALUES:
            raise YamlProblem(
                line,
                f"more than {MAX_VALUES} values, each alias counted with all that it stands for; "
                "a config may not be larger",
            )
        self._sizes.setdefault(id(node), self._values - before)
        _check(node, line)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            raise YamlProblem(
                node.start_mark.line + 1,
                f"{node.value!s:.40} cannot be read: {error}; put it in quotes if a text is meant",
            ) from None


_Loader.yaml_implicit_resolvers = {
    first: kept
    for first, resolvers in Resolver.yaml_implicit_resolvers.items()
    if (
        kept := [
            (tag, pattern)
            for tag, pattern in resolvers
            if tag.removeprefix(_PREFIX) not in ("int", "float", "timestamp", "value")
        ]
    )
}
_Loader.add_implicit_resolver(
    _PREFIX + "int", re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F]+)\Z"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    _PREFIX + "float",
    re.compile(
        r"([-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z"
    ),
    list("-+0123456789."),
)


def _construct_int(loader: _Loader, node: yaml.Node) -> int:
    text = loader.construct_scalar(node)
    value = loader.construct_yaml_int(node) if len(text) <= _MAX_INTEGER_DIGITS else math.inf
    if abs(value) > _MAX_INTEGER:
        raise YamlProblem(
            node.start_mark.line + 1,
            f"an integer of {len(text)} digits is too large; at most {_MAX_INTEGER}",
        )
    return value


def _construct_float(loader: _Loader, node: yaml.Node) -> float:
    value = loader.construct_yaml_float(node)
    if not math.isfinite(value):
        raise YamlProblem(
            node.start_mark.line + 1, f"{node.value:.40} is not a finite number; write a number"
        )
    return value


_Loader.add_constructor(_PREFIX + "int", _construct_int)
_Loader.add_constructor(_PREFIX + "float", _construct_float)


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
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise YamlProblem(
            1, f"cannot be read: {error}; put values that are meant as text in quotes"
        ) from None
    finally:
        if loader is not None:
            loader.dispose()


def _check(node: yaml.Node, line: int) -> None:
    """Refuses a value that no field of a config can hold."""
    if node.tag not in _TAGS:
        raise YamlProblem(
            line, f"the tag {node.tag.replace(_PREFIX, '!!')} is not allowed; remove it"
        )
    if isinstance(node, yaml.ScalarNode):
        if found := _CONTROL.search(node.value):
            raise YamlProblem(
                line, f"the text holds the control character U+{ord(found[0]):04X}; remove it"
            )
    elif isinstance(node, yaml.MappingNode):
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise YamlProblem(
                    key.start_mark.line + 1,
                    "a key must be a plain name; a text that begins with [ or { needs quotes",
                )


def _collect_lines(node: yaml.Node, location: Location, lines: dict[Location, int]) -> None:
    if len(location) > MAX_DEPTH:
        raise YamlProblem(
            node.start_mark.line + 1, f"nested more than {MAX_DEPTH} levels deep through aliases"
        )
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner, line = (*location, key.value), key.start_mark.line + 1
            if inner in lines:
                raise YamlProblem(
                    line,
                    f"{'.'.join(map(str, inner))} stands twice, first in line {lines[inner]}; "
                    "remove one of them",
                )
            lines[inner] = line
            _collect_lines(value, inner, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*location, index)] = value.start_mark.line + 1
            _collect_lines(value, (*location, index), lines)
