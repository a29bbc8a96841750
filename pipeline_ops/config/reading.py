"""Reads a YAML file: its values, the line of every key, and messages that name file, line and cure.

Differs from YAML 1.1 where its surprises cause wrong values. `1e-3` is a number, a date or
`12:30:00` is a text, and a key that stands twice is an error.

A config for display is without the arguments of notifiers and the options of a runner, which may
hold a password or a token. All users who may see a DAG in Airflow see its documentation.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import difflib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from yaml.resolver import Resolver

from pipeline_ops.errors import ConfigError

Location = tuple[str | int, ...]
_MISSING_SPACE = re.compile(r"""^\s*(?:-\s+)*([A-Za-z_][\w.-]*):([^\s/\\:'"][^:]*)$""")
_LOOKALIKE = re.compile("^ *([\\u00a0\\u200b\\u2013\\u2014])|^[^:]*(\\uff1a)")
"""Characters of web pages in the place of a space, a hyphen or a colon of YAML's syntax."""
_PREFIX = "tag:yaml.org,2002:"
_MAX_DEPTH = 40


class YamlProblem(ConfigError):
    """A defect of a YAML text, at a line that counts from 1."""

    def __init__(self, line: int, rule: str):
        super().__init__(rule)
        self.line, self.rule = line, rule


class _Loader(yaml.CSafeLoader):
    """A safe loader for which a date, a time and `.inf` are texts, and `1e-3` is a number."""

    yaml_implicit_resolvers = {
        first: [
            (tag, pattern)
            for tag, pattern in resolvers
            if tag.removeprefix(_PREFIX) in ("bool", "null", "merge")
        ]
        for first, resolvers in Resolver.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(
    f"{_PREFIX}int",
    re.compile(r"[-+]?(0|[1-9][0-9_]{0,30}|0x[0-9a-fA-F]{1,16})\Z"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    f"{_PREFIX}float",
    re.compile(r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?\Z"),
    list("-+0123456789."),
)


def read_text(file: Path) -> str:
    """Returns the text of a UTF-8 file, without a byte order mark. Raises ConfigError."""
    try:
        data = file.read_bytes()
        if data[:2].count(0) == 1:
            raise ConfigError(f"{file}:1: is UTF-16 and not UTF-8. Save it as UTF-8.")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{file}:{line}: is not UTF-8. Save it as UTF-8.") from None
    except OSError as error:
        names = ", ".join(sorted(path.name for path in file.glob("*.yaml"))[:5])
        inside = f" Name one of its files: {names}." if names else ""
        problem = error.strerror
        raise ConfigError(f"{file}: cannot be read: {problem}. Correct the path.{inside}") from None


def read_yaml(text: str) -> tuple[Any, dict[Location, int]]:
    """Returns the value of a text, and the line of each key and item in it.

    Raises YamlProblem with line and cure. No other exception is raised.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, {}
        lines: dict[Location, int] = {}
        _collect_lines(node, (), lines)
        return loader.construct_document(node), lines
    except yaml.YAMLError as error:
        raise _to_problem(error, text) from None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise YamlProblem(
            1, f"cannot be read: {error}. Put values that are meant as text in quotes."
        ) from None


def reject_nesting(text: str) -> None:
    """Rejects a text from outside that could use up memory or stack. Raises YamlProblem.

    The parser's events need neither.
    """
    depth = 0
    with contextlib.suppress(yaml.YAMLError):  # `read_yaml` tells it
        for event in yaml.parse(text, yaml.CSafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH or isinstance(event, yaml.AliasEvent):
                mark = event.start_mark
                raise YamlProblem(
                    mark.line + 1 if mark else 1,
                    f"nested more than {_MAX_DEPTH} levels deep, or an alias (*name). Write plain "
                    "lists and names.",
                )


def _to_problem(error: yaml.YAMLError, text: str) -> YamlProblem:
    """The problem of a text that the parser has refused, in the parser's words and with a cure."""
    if not isinstance(error, yaml.MarkedYAMLError) or not (mark := error.problem_mark):
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        return YamlProblem(line, f"not valid YAML: {' '.join(str(error).split())}. Remove it.")
    lines = text.splitlines()
    at = min(mark.line, len(lines) - 1)  # the end of the text has the line after the last one
    begin = error.context_mark
    start = min(begin.line, at) if begin else at
    for number, text in enumerate(lines[max(0, start - 1) : at + 1], max(1, start)):
        if "\t" in text[: len(text) - len(text.lstrip())]:
            cure = "Replace it by spaces."
            return YamlProblem(number, f"not valid YAML: a tab in the indentation. {cure}")
        if found := _MISSING_SPACE.match(text):
            cure = f"Write '{found[1]}: {found[2].strip():.40}'."
            return YamlProblem(
                number, f"not valid YAML: a space is missing after the colon. {cure}"
            )
    what = error.problem or ""
    if "cannot start any token" in what or "alphabetic or numeric" in what:
        return YamlProblem(at + 1, f"not valid YAML: {what}. Put the value in quotes.")
    if "escape" in what or "hexdecimal" in what:
        return YamlProblem(
            at + 1,
            f"not valid YAML: {what}, because a backslash in double quotes begins an escape. Use "
            "single quotes.",
        )
    for number, content in enumerate(lines[max(0, start - 1) : at + 1], max(1, start)):
        if found := _LOOKALIKE.match(content):
            character = found[1] or found[2]
            name = unicodedata.name(character).lower()
            return YamlProblem(
                number,
                f"not valid YAML: {character!a} ({name}) is no character of its syntax. Type a "
                "plain space, hyphen or colon.",
            )
    # What is not closed is best corrected where it begins.
    is_open = re.search("flow|quoted|simple key", error.context or "")
    problem = ", ".join(filter(None, [error.context, error.problem]))
    return YamlProblem(
        (start if is_open else at) + 1,
        f"not valid YAML: {problem}. Correct the indentation, quotes, brackets or colons.",
    )


def _collect_lines(node: yaml.Node, location: Location, lines: dict[Location, int]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner, line = (*location, str(key.value)), key.start_mark.line + 1
            if inner in lines:
                merge = inner[-1] == "<<" and "Write one list: `<<: [*a, *b]`."
                raise YamlProblem(
                    line,
                    f"{'.'.join(map(str, inner))} stands twice, first in line {lines[inner]}. "
                    f"{merge or 'Remove one of them.'}",
                )
            lines[inner] = line
            _collect_lines(value, inner, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*location, index)] = value.start_mark.line + 1
            _collect_lines(value, (*location, index), lines)


_HIDDEN = "(not shown)"


def hide_secrets(text: str) -> str:
    """Returns the text of a valid config with `(not shown)` in place of possible secrets."""
    root = yaml.compose(text, yaml.CSafeLoader)
    notifiers = _find_value(root, "notify")
    found = [_find_value(root, "preprocess", "runner", "options")]
    if isinstance(notifiers, yaml.SequenceNode):
        found += [_find_value(notifier, "arguments") for notifier in notifiers.value]
    shown, last = [], 0
    for node in sorted(filter(None, found), key=lambda node: node.start_mark.index):
        secret = text[node.start_mark.index : node.end_mark.index]
        shown += [text[last : node.start_mark.index], _HIDDEN, secret[len(secret.rstrip()) :]]
        last = node.end_mark.index
    return "".join([*shown, text[last:]])


def _find_value(node: yaml.Node | None, *keys: str) -> yaml.Node | None:
    for key in keys:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        node = next((value for name, value in pairs if name.value == key), None)
    return node


def parse_value(text: str) -> Any:
    """Returns a value from a command line, read like YAML, but without comments.

    Raises ConfigError.
    """
    value = read_yaml(text)[0]
    if re.search(r"(^|\s)#", text):
        with contextlib.suppress(YamlProblem):  # a number sign in quotes, which is none at the end
            if read_yaml(f"{text}x")[0] == value:
                rule = (
                    "YAML drops the text behind a #. Put the value in quotes of YAML, '\"a #1\"'."
                )
                raise ConfigError(rule)
    return value


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Returns `the nearest valid name is 'x'`, or all the valid names if none is near."""
    known = sorted(known)
    matches = difflib.get_close_matches(name[:200], known, n=1)
    return (
        f"the nearest valid name is {matches[0]!r}"
        if matches
        else f"valid names are {', '.join(known)}"
    )


def locate_in_file(file: Path, location: Sequence[str | int]) -> str:
    """Returns file and line of a key, or only the file if it can no longer be read."""
    try:
        return ConfigText.read(file).locate(location)
    except ConfigError:
        return str(file)


@dataclasses.dataclass(frozen=True)
class ConfigText:
    """The raw values of a YAML file, with overrides applied, and the line of each value."""

    file: Path
    values: dict[str, Any]
    _lines: Mapping[Location, int]
    _override_locations: tuple[Location, ...] = ()

    @classmethod
    def read(cls, file: Path) -> ConfigText:
        """Reads a YAML file. Raises ConfigError if it cannot be read or is no mapping."""
        try:
            values, lines = read_yaml(read_text(file))
        except YamlProblem as problem:
            raise ConfigError(f"{file}:{problem.line}: {problem.rule}") from None
        if values is None:
            raise ConfigError(f"{file}:1: is empty. Give a mapping of keys to values.")
        if not isinstance(values, dict):
            name = type(values).__name__
            kind = {"list": "a list", "str": "a text"}.get(name, name)
            raise ConfigError(
                f"{file}:1: must be a mapping of keys to values ('key: value'), got {kind}"
            )
        return cls(file, values, lines)

    def with_overrides(self, overrides: Mapping[str, Any]) -> ConfigText:
        """Returns this text with other values by dotted key.

        Raises ConfigError for a key that leads through a plain value, or to a missing list item.
        """
        values, locations = copy.deepcopy(self.values), self._override_locations
        for dotted, value in overrides.items():
            location = tuple(int(part) if part.isdecimal() else part for part in dotted.split("."))
            self._set(values, location, value)
            locations = (*locations, location)
        return dataclasses.replace(self, values=values, _override_locations=locations)

    def _set(self, values: dict[str, Any], location: Location, value: Any) -> None:
        parent: Any = values
        dotted = _join(location)
        for depth, part in enumerate(location[:-1], 1):
            try:
                inner = parent.setdefault(part, {}) if isinstance(parent, dict) else parent[part]
                if inner is None:
                    inner = parent[part] = {}
            except (IndexError, TypeError):
                raise ConfigError(
                    f"override {dotted}: there is no {_join(location[:depth])} in {self.file}"
                ) from None
            if not isinstance(inner, (dict, list)):
                raise ConfigError(
                    f"override {dotted}: {_join(location[:depth])} is a value, not a section"
                )
            parent = inner
        try:
            parent[location[-1]] = value
        except (IndexError, TypeError):
            raise ConfigError(f"override {dotted}: there is no such key in {self.file}") from None

    def find_key(self, section: Sequence[str | int], value: Any) -> str:
        """Returns the key of a section as it stands in the file, by its value: `on` for True."""
        for *here, name in self._lines:
            with contextlib.suppress(ConfigError):
                if here == [*section] and str(parse_value(str(name))) == str(value):
                    return str(name)
        return str(value)

    def locate(self, location: Sequence[str | int]) -> str:
        """Returns `configs/digits.yaml:14`, or the override that set the value."""
        prefix = tuple(location)
        for overridden in self._override_locations:
            if prefix[: len(overridden)] == overridden:
                return f"override {_join(overridden)}"
        while prefix and prefix not in self._lines:
            prefix = prefix[:-1]
        return f"{self.file}:{self._lines[prefix]}" if prefix else f"{self.file}:1"


def _join(location: Location) -> str:
    return ".".join(map(str, location))
