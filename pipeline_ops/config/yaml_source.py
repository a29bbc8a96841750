"""A config file's values together with the line of every key, for error messages."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline_ops.config.text_file import read_text
from pipeline_ops.config.yaml_messages import YamlProblem
from pipeline_ops.config.yaml_reading import Location, read_yaml
from pipeline_ops.config.yaml_view import drop_hidden
from pipeline_ops.errors import ConfigError


def parse_value(text: str) -> Any:
    """Returns a value from a command line, read like YAML. Raises ConfigError."""
    return read_yaml(text)[0]


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
class YamlCopy(os.PathLike[str]):
    """A copy of a config file that Airflow's database has, without what is hidden there.

    Attributes:
      file: the path of the file on the host that has read it.
      text: the text, as `yaml_view.hide_secrets` returns it.
    """

    file: Path
    text: str

    def __fspath__(self) -> str:
        return str(self.file)


ConfigFile = Path | str | YamlCopy


@dataclasses.dataclass(frozen=True)
class ConfigText:
    """The raw values of a YAML file, with overrides applied, and the line of each value.

    Attributes:
      is_copy: whether the file itself, and what lies next to it, may be missing on this host.
    """

    file: Path
    values: dict[str, Any]
    _lines: Mapping[Location, int]
    _override_locations: tuple[Location, ...] = ()
    is_copy: bool = False

    @classmethod
    def read(cls, source: ConfigFile) -> ConfigText:
        """Reads a YAML file.

        Raises:
          ConfigError: the file cannot be read or is not a YAML mapping. No other exception is
            raised.
        """
        file, is_copy = Path(source), isinstance(source, YamlCopy)
        text = source.text if isinstance(source, YamlCopy) else read_text(file)
        try:
            values, lines = read_yaml(text)
        except YamlProblem as problem:
            raise ConfigError(f"{file}:{problem.line}: {problem.rule}") from None
        if values is None:
            raise ConfigError(f"{file}:1: is empty. Give a mapping of keys to values.")
        if not isinstance(values, dict):
            kind = {"list": "a list", "str": "a text"}.get(
                type(values).__name__, type(values).__name__
            )
            raise ConfigError(
                f"{file}:1: must be a mapping of keys to values ('key: value'), got {kind}"
            )
        if is_copy:
            drop_hidden(values)
        return cls(file, values, lines, is_copy=is_copy)

    def with_overrides(self, overrides: Mapping[str, Any]) -> ConfigText:
        """Returns this text with other values by dotted key.

        Raises:
          ConfigError: a key leads through a plain value, or to an item that the list lacks.
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
