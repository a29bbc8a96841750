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
from typing import TypeVar

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
""",
    re.VERBOSE,
)
_ESCAPE = re.compile(
    r"\\(?:(?P<octal>[0-7]{1,3})|[xX](?P<hex>[0-9a-fA-F]{1,2})"
    r"|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})"
    r"|(?P<one>.))",
    re.DOTALL,
)
_ESCAPES = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "?": "?",
}
_CLOSING = {"{": "}", "<": ">"}
_BOOLEANS = {"true": True, "True": True, "t": True, "false": False, "False": False, "f": False}
_FLOATS = ("inf", "infinity", "nan")


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


@dataclasses.dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    position: int


def parse_text_proto(text: str, name: str) -> TextMessage:
    """Parses a text. Raises ConfigError with the name of the file, line and column."""
    return TextMessage(tuple(_Parser(text, name).parse_fields()))


class _Parser:
    """Goes through the tokens of one text once."""

    def __init__(self, text: str, name: str):
        self._text, self._name = text, name
        self._tokens = list(self._read_tokens())
        self._index = 0

    def _read_tokens(self) -> Iterator[_Token]:
        position = 0
        while position < len(self._text):
            found = _TOKEN.match(self._text, position)
            if found is None:
                is_string = self._text[position] in "\"'"
                raise self._make_error(
                    "a string that does not end in its line"
                    if is_string
                    else f"an unexpected {self._text[position : position + 10]!r}",
                    position,
                )
            if found.lastgroup and found.lastgroup != "space":
                yield _Token(found.lastgroup, found[0], position)
            position = found.end()
        yield _Token("end", "", position)

    def parse_fields(self, closing: str | None = None, depth: int = 0) -> Iterator[Field]:
        """Yields the fields up to the closing bracket, or to the end of the text."""
        if depth > _MAX_DEPTH:
            raise self._make_error(
                f"messages are nested more than {_MAX_DEPTH} deep", self._next_token.position
            )
        while not (
            self._next_token.kind == "end" if closing is None else self._next_token.text == closing
        ):
            yield from self._parse_field(depth)
            if self._next_token.text in (",", ";"):
                self._take_token()
        if closing is not None:
            self._take_token()

    def _parse_field(self, depth: int) -> Iterator[Field]:
        start = self._next_token
        if start.kind == "end":
            raise self._make_error(
                "the file ends inside of a message. Add the missing bracket.", start.position
            )
        name = self._parse_field_name()
        has_colon = self._next_token.text == ":"
        if has_colon:
            self._take_token()
        if self._next_token.text == "[":
            values = list(self._parse_list(depth))
        elif self._next_token.text in _CLOSING:
            values = [self._parse_message(depth)]
        elif has_colon:
            values = [self._parse_scalar()]
        else:
            raise self._make_error(
                f"expected a colon or a bracket after {name}, got "
                f"{self._next_token.text or 'the end of the file'!r}",
                self._next_token.position,
            )
        line, column = self._locate(start.position)
        yield from (Field(name, value, line, column) for value in values)

    def _parse_field_name(self) -> str:
        token = self._take_token()
        if token.kind == "word":
            return token.text
        if token.text != "[":
            raise self._make_error(
                f"expected the name of a field, got {token.text!r}", token.position
            )
        parts = []
        while self._next_token.kind in ("word", "number") or self._next_token.text in (*"./-",):
            parts.append(self._take_token().text)
        self._expect("]")
        return f"[{''.join(parts)}]"

    def _parse_list(self, depth: int) -> Iterator[Scalar | TextMessage]:
        self._expect("[")
        while self._next_token.text != "]":
            yield (
                self._parse_message(depth)
                if self._next_token.text in _CLOSING
                else self._parse_scalar()
            )
            if self._next_token.text != "]":
                self._expect(",")
                if self._next_token.text == "]":
                    raise self._make_error(
                        "expected a value after the comma, got ']'", self._next_token.position
                    )
        self._take_token()

    def _parse_message(self, depth: int) -> TextMessage:
        return TextMessage(tuple(self.parse_fields(_CLOSING[self._take_token().text], depth + 1)))

    def _parse_scalar(self) -> Scalar:
        token = self._take_token()
        if token.kind == "string":
            parts = [self._unquote(token)]
            while self._next_token.kind == "string":
                parts.append(self._unquote(self._take_token()))
            # Escapes of single bytes may together form a character.
            encoded = "".join(parts).encode("utf-8", "surrogateescape")
            return encoded.decode("utf-8", "surrogateescape")
        negative = token.text == "-"
        if negative:
            token = self._take_token()
        if token.kind == "number":
            number = _parse_number(token.text)
            return -number if negative else number
        if token.kind == "word":
            if token.text.lower() in _FLOATS:
                return float(f"{'-' if negative else ''}{token.text}")
            if not negative:
                return _BOOLEANS[token.text] if token.text in _BOOLEANS else EnumName(token.text)
        raise self._make_error(
            f"expected a value, got {token.text or 'the end of the file'!r}", token.position
        )

    def _unquote(self, token: _Token) -> str:
        """Returns the text of a string, in which escaped bytes from 128 on are surrogates."""
        return _ESCAPE.sub(lambda escape: self._unescape(escape, token), token.text[1:-1])

    def _unescape(self, escape: re.Match[str], token: _Token) -> str:
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
            f"the escape {escape[0]!r} is not a character", token.position + 1 + escape.start()
        )

    @property
    def _next_token(self) -> _Token:
        return self._tokens[self._index]

    def _take_token(self) -> _Token:
        token = self._tokens[self._index]
        self._index = min(self._index + 1, len(self._tokens) - 1)
        return token

    def _expect(self, sign: str) -> None:
        if self._next_token.text != sign or self._next_token.kind != "sign":
            raise self._make_error(
                f"expected {sign!r}, got {self._next_token.text or 'the end of the file'!r}",
                self._next_token.position,
            )
        self._take_token()

    def _locate(self, position: int) -> tuple[int, int]:
        before = self._text[:position]
        return before.count("\n") + 1, position - before.rfind("\n")

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

    `path` is the path of the message, "" for the whole file. `root` is the reader of the whole
    file, None for that reader itself. All readers of a file write into its lists.
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
        """Returns the file, line, column and path of a field that is present."""
        field = next(field for field in self._message.fields if field.name == name)
        return f"{self._file}:{field.line}:{field.column}: {self.path(name)}"

    def message(self, name: str) -> ConfigReader:
        """Returns the last message of this name, or an empty one if there is none."""
        empty = self._make_inner(TextMessage(()), self.path(name))
        return next(reversed(self.messages(name)), empty)

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
        """Returns the name of the message or field that is present, None if there is none.

        The last of several counts, as in protobuf.
        """
        return next(
            (field.name for field in reversed(self._message.fields) if field.name in names), None
        )

    def mark_taken(self, name: str) -> None:
        """Marks a field as taken, for example an empty message that counts by its presence."""
        self._root._taken.update(path for path, _ in self._iterate_fields(name))

    def take_message(self, name: str) -> ConfigReader | None:
        """Returns the last message of this name and marks it as taken, None if there is none."""
        self.mark_taken(name)
        return self.message(name) if self.has(name) else None

    def take(self, name: str, kind: type[_Kind], default: _Default) -> _Kind | _Default:
        """Returns the last scalar of this name. Raises ConfigError if it is of another kind."""
        return next(reversed(self.take_all(name, kind)), default)

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
