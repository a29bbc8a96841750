"""Parser and reader of protobuf's text format, without the definitions of the messages.

`google.protobuf.text_format` requires the definitions, and no maintained package has those of the
Object Detection API.

Without a definition, the form of a field determines its type: a message in brackets, a string in
quotes, a number, or a word (an enum or a boolean). Every field is a list, because any field may be
repeated. The grammar is that of protobuf.dev/reference/protobuf/textformat-spec, with comments.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from pipeline_ops.errors import ConfigError

_Kind = TypeVar("_Kind", str, int, float, bool)
_Default = TypeVar("_Default")
_KIND_NAMES: dict[type, str] = {
    str: "a text in quotes",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}
_MAX_DEPTH = 100
_TOKEN = re.compile(
    r"""
    (?P<space>(?:\s|\#[^\n]*)+)
  | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
  | (?P<number>(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fF]?)(?![\w.]))
  | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<sign>[-{}<>\[\]:,;./])
  | (?P<end>\Z)
  | (?P<wrong>.{1,10})
""",
    re.VERBOSE,
)
_ESCAPE = re.compile(
    r"\\(?:(?P<octal>[0-7]{1,3})|[xX](?P<hex>[0-9a-fA-F]{1,2})"
    r"|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})"
    r"|(?P<one>.))",
    re.DOTALL,
)
_ESCAPES = dict(zip("abfnrtv\\'\"?", "\a\b\f\n\r\t\v\\'\"?", strict=True))
_CLOSING = {"{": "}", "<": ">"}
_BOOLEANS = {"true": True, "True": True, "t": True, "false": False, "False": False, "f": False}


class EnumName(str):
    """The name of an enum value."""


Scalar = str | int | float | bool


@dataclasses.dataclass(frozen=True)
class Field:
    """One field of the file. `line` and `column` count from 1."""

    name: str
    value: Scalar | TextMessage
    line: int
    column: int


@dataclasses.dataclass(frozen=True)
class TextMessage:
    """The fields of a message, in the order of the file."""

    fields: tuple[Field, ...]


def parse_text_proto(text: str, name: str) -> TextMessage:
    """Parses a text. Raises ConfigError with the name of the file, line and column."""
    return _Parser(text, name).parse_message()


class _Parser:
    """Goes through the tokens of one text once. The last one is empty."""

    def __init__(self, text: str, name: str):
        self._text, self._name = text, name
        tokens = [found for found in _TOKEN.finditer(text) if found.lastgroup != "space"]
        for token in tokens:
            if token.lastgroup == "wrong":
                is_string = token[0][0] in "\"'"
                problem = f"an unexpected {token[0]!r}"
                raise self._make_error(
                    "a string that does not end in its line" if is_string else problem,
                    token.start(),
                )
        self._next, *rest = tokens
        self._tokens = iter(rest)

    def parse_message(self, closing: str = "", depth: int = 0) -> TextMessage:
        """Parses the fields up to the closing bracket, or to the end of the text."""
        if depth > _MAX_DEPTH:
            raise self._make_error(
                f"messages are nested more than {_MAX_DEPTH} deep", self._next.start()
            )
        fields: list[Field] = []
        while not self._accept(closing):
            fields += self._parse_field(depth)
            if not self._accept(","):
                self._accept(";")
        return TextMessage(tuple(fields))

    def _parse_field(self, depth: int) -> list[Field]:
        start = self._take()
        if start.lastgroup == "end":
            raise self._make_error(
                "the file ends inside of a message. Add the missing bracket.", start.start()
            )
        name = start[0]
        if name == "[":
            while self._next.lastgroup in ("word", "number") or self._next[0] in (*"./-",):
                name += self._take()[0]
            name += self._expect("]")
        elif start.lastgroup != "word":
            raise self._make_unexpected("the name of a field", start)
        has_colon = self._accept(":")
        if self._accept("["):
            values = self._parse_list(depth)
        elif has_colon or self._next[0] in _CLOSING:
            values = [self._parse_value(depth)]
        else:
            raise self._make_unexpected(f"a colon or a bracket after {name}", self._next)
        line, column = self._locate(start.start())
        return [Field(name, value, line, column) for value in values]

    def _parse_list(self, depth: int) -> list[Scalar | TextMessage]:
        values: list[Scalar | TextMessage] = []
        while not self._accept("]"):
            if values:
                self._expect(",")
                if self._next[0] == "]":
                    raise self._make_unexpected("a value after the comma", self._next)
            values.append(self._parse_value(depth))
        return values

    def _parse_value(self, depth: int) -> Scalar | TextMessage:
        if self._next[0] in _CLOSING:
            return self.parse_message(_CLOSING[self._take()[0]], depth + 1)
        if self._next.lastgroup == "string":
            text = ""
            while self._next.lastgroup == "string":
                text += self._unquote(self._take())
            # Escapes of single bytes may together form a character.
            return text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
        sign = "-" if self._accept("-") else ""
        token = self._take()
        if token.lastgroup == "number":
            number = _parse_number(token[0])
            return -number if sign else number
        if token[0].lower() in ("inf", "infinity", "nan"):
            return float(sign + token[0])
        if token.lastgroup == "word" and not sign:
            return _BOOLEANS[token[0]] if token[0] in _BOOLEANS else EnumName(token[0])
        raise self._make_unexpected("a value", token)

    def _unquote(self, token: re.Match[str]) -> str:
        """Returns the text of a string, in which escaped bytes from 128 on are surrogates."""

        def unescape(escape: re.Match[str]) -> str:
            if escape["octal"] or escape["hex"]:
                value = int(escape["octal"], 8) if escape["octal"] else int(escape["hex"], 16)
                if value < 256:
                    return bytes([value]).decode("ascii", "surrogateescape")
            elif escape["short"] or escape["long"]:
                value = int(escape["short"] or escape["long"], 16)
                if value < 0x110000 and not 0xD800 <= value < 0xE000:
                    return chr(value)
            elif escape["one"] in _ESCAPES:
                return _ESCAPES[escape["one"]]
            raise self._make_error(
                f"the escape {escape[0]!r} is not a character", token.start() + 1 + escape.start()
            )

        return _ESCAPE.sub(unescape, token[0][1:-1])

    def _take(self) -> re.Match[str]:
        token, self._next = self._next, next(self._tokens, self._next)
        return token

    def _accept(self, text: str) -> bool:
        """Takes the next token if it has this text. Returns whether it has."""
        has_text = self._next[0] == text
        if has_text:
            self._take()
        return has_text

    def _expect(self, sign: str) -> str:
        if self._next[0] != sign:
            raise self._make_unexpected(repr(sign), self._next)
        return self._take()[0]

    def _locate(self, position: int) -> tuple[int, int]:
        before = self._text[:position]
        return before.count("\n") + 1, position - before.rfind("\n")

    def _make_unexpected(self, expected: str, token: re.Match[str]) -> ConfigError:
        found = token[0] or "the end of the file"
        return self._make_error(f"expected {expected}, got {found!r}", token.start())

    def _make_error(self, problem: str, position: int) -> ConfigError:
        line, column = self._locate(position)
        return ConfigError(f"{self._name}:{line}:{column}: {problem}")


def _parse_number(text: str) -> int | float:
    if text[:2].lower() == "0x":
        return int(text, 16)
    if re.fullmatch(r"0[0-7]+", text):
        return int(text, 8)
    return int(text) if text.isdigit() else float(text.rstrip("fF"))


@dataclasses.dataclass(frozen=True)
class LeafField:
    """A field without fields of its own: a scalar or an empty message.

    `path` has the form `train_config.data_augmentation_options[1].random_crop_image`.
    """

    path: str
    value: Scalar | TextMessage
    line: int

    def __str__(self) -> str:
        match self.value:
            case TextMessage():
                text = "{}"
            case bool():
                text = str(self.value).lower()
            case str() if not isinstance(self.value, EnumName):
                text = f"'{self.value}'"
            case _:
                text = str(self.value)
        return f"{self.path}: {text}"


class ConfigReader:
    """A message whose fields are taken one by one, so that the remaining ones are known in the end.

    The reader of the whole file is the root, with the path "". It has the lists of all readers.
    """

    def __init__(
        self, message: TextMessage, file: str, path: str = "", root: ConfigReader | None = None
    ):
        self._message, self._file, self._path, self._root = message, file, path, root or self
        if root is None:
            self._taken: set[str] = set()
            self.notes: list[str] = []
            self.losses: list[str] = []

    def note(self, text: str) -> None:
        """Adds a note for the user on a converted field."""
        if text not in self._root.notes:
            self._root.notes.append(text)

    def note_loss(self, text: str) -> None:
        """Adds a note on something that the converted config does not do at all."""
        if text not in self._root.losses:
            self._root.losses.append(text)

    def has(self, name: str) -> bool:
        return any(field.name == name for field in self._message.fields)

    def path(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def format_location(self, name: str) -> str:
        """Returns the file, line, column and path of a field, without line and column if absent."""
        found = (field for field in reversed(self._message.fields) if field.name == name)
        place = next((f"{self._file}:{field.line}:{field.column}" for field in found), self._file)
        return f"{place}: {self.path(name)}"

    def message(self, names: str) -> ConfigReader:
        """Returns the last message of names with dots between them, or an empty one."""
        inner = self
        for name in names.split("."):
            empty = inner._make_inner(TextMessage(()), inner.path(name))
            inner = next(reversed(inner.messages(name)), empty)
        return inner

    def messages(self, name: str) -> Sequence[ConfigReader]:
        """Returns all messages of this name. Raises ConfigError if a field is not a message."""
        found = []
        for path, field in self._iterate_fields(name):
            if not isinstance(field.value, TextMessage):
                raise ConfigError(
                    f"{self.format_location(name)} must be a message in brackets, "
                    f"got {field.value!r}"
                )
            found.append(self._make_inner(field.value, path))
        return found

    def find_present(self, *names: str) -> str | None:
        """Returns the name of the present message or field: the last one, as in protobuf."""
        return next(
            (field.name for field in reversed(self._message.fields) if field.name in names), None
        )

    def mark_taken(self, name: str) -> None:
        """Marks a field as taken, for example an empty message that counts by its presence."""
        self._root._taken.update(path for path, _ in self._iterate_fields(name))

    def take(
        self, name: str, kind: type[_Kind], default: _Default, key: FieldInfo | None = None
    ) -> _Kind | _Default:
        """Returns the last scalar of this name.

        `key` is the key of ours that gets the value. Raises ConfigError if the value is of another
        kind, or out of the bounds of this key.
        """
        value = next(reversed(self.take_all(name, kind)), default)
        if key is not None and self.has(name):
            hint: Any = Annotated[kind, key]
            try:
                TypeAdapter(hint, config=ConfigDict(allow_inf_nan=False)).validate_python(value)
            except ValidationError as error:
                problem = error.errors()[0]["msg"].removeprefix("Input ")
                raise ConfigError(f"{self.format_location(name)} {problem}, got {value}") from None
        return value

    def take_all(self, name: str, kind: type[_Kind]) -> list[_Kind]:
        """Returns all values of a repeated scalar."""
        self.mark_taken(name)
        return [self._validate_kind(field, kind) for _, field in self._iterate_fields(name)]

    def take_equal(self, name: str, *expected: Scalar) -> None:
        """Takes values that equal our fixed setting, in any order. Other values stay."""
        if Counter(field.value for _, field in self._iterate_fields(name)) == Counter(expected):
            self.mark_taken(name)

    def iterate_leaves(self) -> Iterator[LeafField]:
        """Yields all leaves, in the order of the file."""
        for path, field in self._iterate_fields():
            if isinstance(field.value, TextMessage) and field.value.fields:
                yield from self._make_inner(field.value, path).iterate_leaves()
            else:
                yield LeafField(path, field.value, field.line)

    def iterate_messages(self) -> Iterator[ConfigReader]:
        """Yields this message and all messages in it."""
        yield self
        for path, field in self._iterate_fields():
            if isinstance(field.value, TextMessage):
                yield from self._make_inner(field.value, path).iterate_messages()

    def take_rest(self) -> list[LeafField]:
        """Takes all leaves of this message that were not taken, and returns them."""
        rest = self.list_unconverted()
        self._root._taken.update(leaf.path for leaf in rest)
        return rest

    @property
    def field_names(self) -> list[str]:
        return [field.name for field in self._message.fields]

    def list_unconverted(self) -> list[LeafField]:
        """Returns the leaves that were not taken."""
        return [leaf for leaf in self.iterate_leaves() if leaf.path not in self._root._taken]

    def _make_inner(self, message: TextMessage, path: str) -> ConfigReader:
        return ConfigReader(message, self._file, path, self._root)

    def _iterate_fields(self, name: str | None = None) -> Iterator[tuple[str, Field]]:
        """Yields the fields of a name, or all of them, with their paths.

        A repeated name has a number in brackets.
        """
        counts = Counter(field.name for field in self._message.fields)
        seen: Counter[str] = Counter()
        for field in self._message.fields:
            number = f"[{seen[field.name]}]" if counts[field.name] > 1 else ""
            seen[field.name] += 1
            if name in (None, field.name):
                yield self.path(field.name) + number, field

    def _validate_kind(self, field: Field, kind: type[_Kind]) -> _Kind:
        value: object = field.value
        if type(value) is int and (kind is float or (kind is bool and value in (0, 1))):
            value = kind(value)
        if isinstance(value, kind) and (kind is str or type(value) is kind):
            return value
        raise ConfigError(
            f"{self._file}:{field.line}:{field.column}: {self.path(field.name)} must be "
            f"{_KIND_NAMES[kind]}, got {field.value!r}"
        )
