"""Reads a YAML file: its values, the line of every key, and messages that name file, line and cure.

The text is read without trusting the file: a pipe cannot block, a large file is not loaded, and
only UTF-8 is accepted. Differs from YAML 1.1 where its surprises cause wrong values. `1e-3` is a
number, a date or `12:30:00` is a text, and a key that stands twice is an error. The events come
from libyaml. They are composed here, because libyaml's own composer recurses without a limit.

A config for display is without the arguments of notifiers and the options of a runner, which may
hold a password or a token. All users who may see a DAG in Airflow see its documentation.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import math
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from pipeline_ops.errors import ConfigError

MAX_BYTES = 1 << 20
"""The largest config file. A list of 20,000 class names fits."""

_ATTEMPTS, _PAUSE_SECONDS = 4, 0.02
"""A file that changes during the read is read again."""

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def read_text(file: Path) -> str:
    """Returns the text of a regular UTF-8 file, without a byte order mark.

    Raises:
      ConfigError: the file is missing, is not a regular file, is too large, or is not UTF-8.
    """
    try:
        return _decode(file, _read_stable(file))
    except FileNotFoundError:
        raise ConfigError(f"{file}: {_explain_missing(file)}") from None
    except PermissionError:
        raise ConfigError(
            f"{file}: may not be read by this user (uid {os.geteuid()}). Give it "
            "the right to read the file."
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{file}: cannot be read: {reason}") from None


def _read_stable(file: Path) -> bytes:
    """Reads the bytes of a file. Tries again, a few times, if the file changes during the read."""
    for _ in range(_ATTEMPTS):
        descriptor = os.open(file, _FLAGS)
        try:
            before = os.fstat(descriptor)
            _validate_file_kind(file, before)
            data = os.read(descriptor, MAX_BYTES)
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if (after.st_mtime_ns, len(data)) == (before.st_mtime_ns, before.st_size):
            break
        time.sleep(_PAUSE_SECONDS)
    return data


def _validate_file_kind(file: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        inside = ", ".join(sorted(path.name for path in file.glob("*.yaml"))[:5])
        raise ConfigError(
            f"{file}: is a folder. Name one of its YAML files: {inside or 'there is none'}."
        )
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{file}: is a pipe or a device. Give a regular file.")
    if status.st_size > MAX_BYTES:
        raise ConfigError(
            f"{file}: has {status.st_size} bytes. A config may have at most {MAX_BYTES}."
        )


def _decode(file: Path, data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ConfigError(f"{file}:1: is UTF-16. Save it as UTF-8.")
    if (position := data.find(0)) >= 0:
        raise ConfigError(
            f"{file}:{_find_line(data, position)}: holds a zero byte, as binary files do. "
            "A config must be UTF-8 text."
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{file}:{_find_line(data, error.start)}: is not UTF-8 "
            f"(byte 0x{data[error.start]:02x}). Save it as UTF-8."
        ) from None


def _find_line(data: bytes, position: int) -> int:
    return data.count(b"\n", 0, position) + 1


def _explain_missing(file: Path) -> str:
    if file.is_symlink():
        return (
            f"is a link to {os.readlink(file)}, which does not exist. Correct or remove the link."
        )
    return "no such file"


class YamlProblem(ConfigError):
    """A defect of a YAML text, at a line that counts from 1."""

    def __init__(self, line: int, rule: str):
        super().__init__(rule)
        self.line, self.rule = line, rule


_MISSING_SPACE = re.compile(r"""^\s*(?:-\s+)*([A-Za-z_][\w.-]*):([^\s/\\:'"][^:]*)$""")

_COLON_IN_VALUE = re.compile(r"^\s*(?:-\s+)*[A-Za-z_][\w.-]*:\s+[^\s'\"{\[|>].*:(\s|$)")
_SPECIAL = re.compile(r"[^\t\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_DEFECTS_AT_START = (
    ("found unexpected end of stream", "this quote is not closed. Close it."),
    (
        "did not find expected ',' or ']'",
        "the bracket [ is not closed, or a comma is missing. Add ] or a comma.",
    ),
    (
        "did not find expected ',' or '}'",
        "the bracket { is not closed, or a comma is missing. Add } or a comma.",
    ),
    (
        "could not find expected ':'",
        "a key without a colon. Write 'key: value', with a space after the colon.",
    ),
)
"""The parser's words with their meaning for a person. The line to look at is the one where the
construct begins."""

_DEFECTS_AT_LINE = (
    (
        "did not find expected '-' indicator",
        "this line follows a list, but does not begin with '- '. Begin it with '- ', "
        "or indent it as the other keys of its section.",
    ),
    (
        "block sequence entries are not allowed",
        "a list item '- ' may not stand here. Put it on a line of its own.",
    ),
    (
        "did not find expected node content",
        "a value is missing between brackets or commas. Remove a comma, or add it.",
    ),
    (
        "found undefined alias",
        "a value that begins with * refers to a value named with &, and none has that name. "
        "Put the value in quotes if a text is meant.",
    ),
    (
        "while scanning an alias",
        'a value that begins with * is not a text. Put the value in quotes, as in "* * * * *".',
    ),
    (
        "while scanning an anchor",
        "a value that begins with & is not a text. Put the value in quotes.",
    ),
    ("duplicate anchor", "the name after & is used twice. Choose another one."),
    (
        "while parsing a quoted scalar",
        "a backslash in double quotes begins an escape. Use single quotes, or write it twice.",
    ),
    (
        "expected a single document",
        "a second document begins here. Remove the line '---' or '...'.",
    ),
    (
        "expected <document start>",
        "the document ends before this line. Check brackets, quotes and indentation above it.",
    ),
    ("mappings for merging", "<< must be given a mapping, such as *name. Remove it."),
)
"""The same for defects whose line is the one that the parser names."""


def explain(error: yaml.YAMLError, text: str) -> YamlProblem:
    """Returns the problem of a text that the parser has refused."""
    lines = text.splitlines() or [""]
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return _locate_control_character(error, lines)
    problem = " ".join(filter(None, [error.context, error.problem]))
    at, column = min(error.problem_mark.line, len(lines) - 1), error.problem_mark.column
    start = min(error.context_mark.line, at) if error.context_mark else at
    line, rule = (
        _find_tab(lines, at)
        or _find_missing_space(lines, start, at)
        or _find_known_defect(problem, start, at)
        or (at, _describe_character(problem, lines, at, column))
    )
    return YamlProblem(line + 1, f"not valid YAML: {rule}")


def _locate_control_character(error: yaml.YAMLError, lines: list[str]) -> YamlProblem:
    """Finds the line of a character that YAML does not allow. The parser does not name it."""
    for number, line in enumerate(lines, 1):
        if found := _SPECIAL.search(line):
            return YamlProblem(
                number, f"not valid YAML: the control character U+{ord(found[0]):04X}. Remove it."
            )
    return YamlProblem(1, f"not valid YAML: {error}. Check the characters of the text.")


def _find_known_defect(problem: str, start: int, at: int) -> tuple[int, str] | None:
    for line, defects in ((start, _DEFECTS_AT_START), (at, _DEFECTS_AT_LINE)):
        for words, advice in defects:
            if words in problem:
                return line, advice
    return None


def _describe_character(problem: str, lines: list[str], at: int, column: int) -> str:
    """The defect of a line where the parser only says that something else was expected."""
    character = lines[at][column : column + 1]
    if "cannot start any token" in problem:
        return f"a value may not begin with {character!r}. Put it in quotes."
    if character and character in "]}":
        return f"{character!r} closes a bracket that is not open. Remove it."
    if "mapping values are not allowed" in problem or "did not find expected key" in problem:
        return _describe_indentation(lines, at)
    return f"{problem}. Check quotes, brackets and indentation here."


def _find_tab(lines: list[str], at: int) -> tuple[int, str] | None:
    """The first line up to the given one that is indented with a tab, counted from 0."""
    for number in range(at + 1):
        if "\t" in lines[number][: len(lines[number]) - len(lines[number].lstrip())]:
            return number, "a tab in the indentation. Replace it by spaces."
    return None


def _find_missing_space(lines: list[str], start: int, at: int) -> tuple[int, str] | None:
    for number in range(max(0, start - 1), at + 1):
        if found := _MISSING_SPACE.match(lines[number]):
            key, value = found.groups()
            return number, (
                f"a space is missing after the colon in '{key}:{value.strip():.40}'. "
                f"Write '{key}: {value.strip():.40}'."
            )
    return None


def _describe_indentation(lines: list[str], at: int) -> str:
    if _COLON_IN_VALUE.match(lines[at]):
        return "the value holds ': '. Put it in quotes."
    above = [line for line in lines[:at] if line.strip() and not line.lstrip().startswith("#")]
    here, there = (
        len(line) - len(line.lstrip()) for line in (lines[at], above[-1] if above else "")
    )
    if here != there:
        return (
            f"the indentation does not fit: this line has {here} spaces, the one above it {there}. "
            "Give all keys of a section the same indentation."
        )
    return "a colon where none may stand. Give each key a line of its own."


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
