"""A config file's values together with the line of every key, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pipeline_ops.config.text_file import read_text
from pipeline_ops.config.yaml_messages import YamlProblem
from pipeline_ops.config.yaml_reading import Location, read_yaml
from pipeline_ops.errors import ConfigError


def parse_value(text: str) -> Any:
    """Returns a value from a command line, read like YAML. Raises ConfigError."""
    return read_yaml(text)[0]


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns `the nearest valid name is 'x'`, or all the valid names if none is near."""
    known = sorted(known)
    close = difflib.get_close_matches(name[:200], known, n=1)
    return (
        f"the nearest valid name is {close[0]!r}"
        if close
        else f"valid names are {', '.join(known)}"
    )


def place_in(file: Path, location: Sequence[str | int]) -> str:
    """Returns file and line of a key, or only the file if it can no longer be read."""
    try:
        return ConfigText.read(file).place(location)
    except ConfigError:
        return str(file)


class ConfigText:
    """The raw values of a YAML file, with overrides applied, and the line of each value."""

    def __init__(self, file: Path, values: dict[str, Any], lines: dict[Location, int]):
        self.file, self.values, self._lines = file, values, lines
        self._overridden: dict[Location, str] = {}

    @classmethod
    def read(cls, file: Path) -> ConfigText:
        """Reads a YAML file.

        Raises:
          ConfigError: the file cannot be read or is not a YAML mapping. No other exception is
            raised.
        """
        text = read_text(file)
        try:
            values, lines = read_yaml(text)
        except YamlProblem as problem:
            raise ConfigError(f"{file}:{problem.line}: {problem.rule}") from None
        if values is None:
            raise ConfigError(f"{file}:1: is empty; a config is a mapping of keys to values")
        if not isinstance(values, dict):
            kind = {"list": "a list", "str": "a text"}.get(
                type(values).__name__, type(values).__name__
            )
            raise ConfigError(
                f"{file}:1: must be a mapping of keys to values ('key: value'), got {kind}"
            )
        return cls(file, values, lines)

    def override(self, dotted: str, value: Any) -> None:
        """Sets one value. Raises ConfigError if the path leads through a plain value."""
        location = tuple(int(part) if part.isdecimal() else part for part in dotted.split("."))
        where = self.values
        for depth, part in enumerate(location[:-1]):
            try:
                inner = where.setdefault(part, {}) if isinstance(where, dict) else where[part]
                if inner is None:
                    inner = where[part] = {}
            except (IndexError, TypeError):
                raise ConfigError(
                    f"override {dotted}: "
                    f"there is no {'.'.join(map(str, location[: depth + 1]))} in {self.file}"
                ) from None
            if not isinstance(inner, (dict, list)):
                raise ConfigError(
                    f"override {dotted}: {'.'.join(map(str, location[: depth + 1]))} "
                    "is a value, not a section"
                )
            where = inner
        try:
            where[location[-1]] = value
        except (IndexError, TypeError):
            raise ConfigError(f"override {dotted}: there is no such place in {self.file}") from None
        self._overridden[location] = dotted

    def place(self, location: Sequence[str | int]) -> str:
        """Returns `configs/digits.yaml:14`, or the override that set the value."""
        wanted = tuple(location)
        for overridden, dotted in self._overridden.items():
            if wanted[: len(overridden)] == overridden:
                return f"override {dotted}"
        while wanted and wanted not in self._lines:
            wanted = wanted[:-1]
        return f"{self.file}:{self._lines[wanted]}" if wanted else f"{self.file}:1"
