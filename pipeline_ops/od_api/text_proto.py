"""A parser of protobuf's text format that works without the definitions of the messages.

`google.protobuf.text_format` requires the definitions, and no maintained package has those of the
Object Detection API.

Without a definition, the form of a field determines its type: a message in brackets, a string in
quotes, a number, or a word (an enum or a boolean). Every field is a list, because any field may be
repeated. The grammar is that of protobuf.dev/reference/protobuf/textformat-spec, with comments.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from pipeline_ops.errors import ConfigError

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
    """Returns the message of a text.

    Args:
      text: the text of the file.
      name: the name of the file, for error messages.

    Raises:
      ConfigError: the text is not in protobuf's text format. The message has file, line and column.
    """
    return _Parser(text, name).parse()


class _Parser:
    """Goes through the tokens of one text once."""

    def __init__(self, text: str, name: str):
        self._text, self._name = text, name
        self._tokens = list(self._read_tokens())
        self._index = 0

    def parse(self) -> TextMessage:
        return TextMessage(tuple(self._parse_fields(None, 0)))

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

    def _parse_fields(self, closing: str | None, depth: int) -> Iterator[Field]:
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
        return TextMessage(tuple(self._parse_fields(_CLOSING[self._take_token().text], depth + 1)))

    def _parse_scalar(self) -> Scalar:
        token = self._take_token()
        if token.kind == "string":
            parts = [self._unquote(token)]
            while self._next_token.kind == "string":
                parts.append(self._unquote(self._take_token()))
            return b"".join(parts).decode("utf-8", "surrogateescape")
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

    def _unquote(self, token: _Token) -> bytes:
        """Returns the bytes of a string. Escapes of single bytes may together form a character."""
        parts, position, inner = [], 0, token.text[1:-1]
        for escape in _ESCAPE.finditer(inner):
            parts += [
                inner[position : escape.start()].encode("utf-8", "surrogatepass"),
                self._unescape(escape, token),
            ]
            position = escape.end()
        return b"".join([*parts, inner[position:].encode("utf-8", "surrogatepass")])

    def _unescape(self, escape: re.Match[str], token: _Token) -> bytes:
        if escape["octal"] or escape["hex"]:
            value = int(escape["octal"], 8) if escape["octal"] else int(escape["hex"], 16)
            if value < 256:
                return bytes([value])
        elif escape["short"] or escape["long"]:
            value = int(escape["short"] or escape["long"], 16)
            if value < 0x110000 and not 0xD800 <= value < 0xE000:
                return chr(value).encode()
        elif escape["one"] in _ESCAPES:
            return _ESCAPES[escape["one"]].encode()
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
