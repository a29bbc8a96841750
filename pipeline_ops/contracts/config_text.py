"""A YAML file together with the place of every key in it, so that an error can say where.

Floats are read as in YAML 1.2, where `1e-3` is a number; a key that stands twice is an error and not the last one wins.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from pipeline_ops.contracts.errors import ConfigError

Location = tuple[str | int, ...]


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """A safe loader of its own, so that what we add to it stays out of everybody else's."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789"))


def parse_value(text: str) -> Any:
    """A value from a command line, read as YAML would read it."""
    return yaml.load(text, _Loader)


def nearest(name: str, known: Iterable[str]) -> str:
    """`the nearest valid name is 'x'`, or all the valid names where none is near."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f"the nearest valid name is {close[0]!r}" if close else f"valid names are {', '.join(known)}"


class ConfigText:
    """The raw values of a YAML file, with overrides applied, and the line that each came from."""

    def __init__(self, file: Path, values: dict[str, Any], lines: dict[Location, int]):
        self.file, self.values, self._lines = file, values, lines
        self._overridden: dict[Location, str] = {}

    @classmethod
    def read(cls, file: Path) -> ConfigText:
        """Raises ConfigError if the file can't be read or is not a YAML mapping."""
        try:
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigError(f"{file}: no such file") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: can't be read as UTF-8 text: {error}") from None
        try:
            node = yaml.compose(text, _Loader)
            values = yaml.load(text, _Loader)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 0
            raise ConfigError(f"{file}:{line}: not valid YAML: {error.problem}") from None
        except yaml.YAMLError as error:
            raise ConfigError(f"{file}: not valid YAML: {error}") from None
        if not isinstance(values, dict):
            raise ConfigError(f"{file}: must be a mapping of keys to values, got {type(values).__name__}")
        lines: dict[Location, int] = {}
        try:
            _collect_lines(file, node, (), lines)
        except RecursionError:
            raise ConfigError(f"{file}: nested too deeply; does an alias (*name) stand inside what it is the name of (&name)?") from None
        return cls(file, values, lines)

    def override(self, dotted: str, value: Any) -> None:
        """Sets one value. Raises ConfigError if the path leads through something that is no section."""
        location = tuple(int(part) if part.isdecimal() else part for part in dotted.split("."))
        where = self.values
        for depth, part in enumerate(location[:-1]):
            try:
                inner = where.setdefault(part, {}) if isinstance(where, dict) else where[part]
                if inner is None:
                    inner = where[part] = {}
            except (IndexError, TypeError):
                raise ConfigError(f"override {dotted}: there is no {'.'.join(map(str, location[:depth + 1]))} in {self.file}") from None
            if not isinstance(inner, (dict, list)):
                raise ConfigError(f"override {dotted}: {'.'.join(map(str, location[:depth + 1]))} is a value, not a section")
            where = inner
        try:
            where[location[-1]] = value
        except (IndexError, TypeError):
            raise ConfigError(f"override {dotted}: there is no such place in {self.file}") from None
        self._overridden[location] = dotted

    def place(self, location: Sequence[str | int]) -> str:
        """`configs/digits.yaml:14`, or the override that brought the value."""
        wanted = tuple(location)
        for overridden, dotted in self._overridden.items():
            if wanted[: len(overridden)] == overridden:
                return f"override {dotted}"
        while wanted and wanted not in self._lines:
            wanted = wanted[:-1]
        return f"{self.file}:{self._lines[wanted]}" if wanted else str(self.file)


def _collect_lines(file: Path, node: yaml.Node, location: Location, lines: dict[Location, int]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*location, key.value)
            if inner in lines:
                raise ConfigError(f"{file}:{key.start_mark.line + 1}: {'.'.join(map(str, inner))} stands twice, first in line {lines[inner]}")
            lines[inner] = key.start_mark.line + 1
            _collect_lines(file, value, inner, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*location, index)] = value.start_mark.line + 1
            _collect_lines(file, value, (*location, index), lines)
