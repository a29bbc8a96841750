"""Parser and reader of protobuf's text format, without the definitions of the messages.

The tokens are those of `google.protobuf.text_format`. Its parser requires the definitions, and
would drop the fields that forks of the Object Detection API have added.

Without a definition, the form of a field determines its type: a message in brackets, a string in
quotes, a number, or a word (an enum or a boolean). Every field is a list, because any field may be
repeated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, TypeVar

from google.protobuf import text_format
from google.protobuf.text_encoding import CUnescape
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
_ESCAPE = re.compile(r"\\.")
_STRING = re.compile(r"""(["'])([^\\]|\\(?![4-7][0-7]{2})[abfnrtvxuU0-7\\'"?])*\1""")
"""Protobuf warns of other escapes, or fails, and does not know the question mark's."""
_PART_OF_EXTENSION = re.compile(r"[\w./-]+")
_QUOTES = ("'", '"')
_REPEATED = frozenset(
    (
        *("anchor_grid", "data_augmentation_options", "eval_input_reader", "eval_input_readers"),
        *("keypoint_edge", "keypoint_estimation_task", "keypoint_label_to_sigmas"),
        *("keypoint_label_to_std", "keypoint_type_weight", "operations", "parameterized_metric"),
        *("schedule", "super_categories"),
    )
)
"""The repeated messages of the API. Protobuf merges the blocks of all others."""
_CHOICE = re.compile(
    r"(.*_)?(model|image_resizer|box_coder|matcher|similarity_calculator|box_predictor|"
    r"anchor_generator|(localization|classification)_loss|optimizer|learning_rate|regularizer|"
    r"initializer|data_augmentation_options)"
)
"""The messages whose messages are the members of one oneof, so that the last one counts."""
_CLOSING = {"{": "}", "<": ">"}
_BOOLEANS = {"true": True, "True": True, "t": True, "false": False, "False": False, "f": False}


class EnumName(str):
    """The name of an enum value."""


Scalar = str | int | float | bool
_MAX_FLOAT32 = 3.4e38


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
    """A recursive descent over protobuf's tokens. The last token is empty."""

    def __init__(self, text: str, name: str):
        self._tokens, self._name = text_format.Tokenizer(text.split("\n")), name

    def parse_message(self, closing: str = "", depth: int = 0) -> TextMessage:
        """Parses the fields up to the closing bracket, or to the end of the text."""
        if depth > _MAX_DEPTH:
            raise self._make_error(f"messages are nested more than {_MAX_DEPTH} deep")
        fields: list[Field] = []
        while not self._tokens.TryConsume(closing):
            fields += self._parse_field(depth)
            if not self._tokens.TryConsume(","):
                self._tokens.TryConsume(";")
        return TextMessage(tuple(fields))

    def _parse_field(self, depth: int) -> list[Field]:
        line, column = self._locate()
        name = self._parse_name()
        has_colon = self._tokens.TryConsume(":")
        if self._tokens.TryConsume("["):
            values = self._parse_list(depth)
        elif has_colon or self._tokens.token in _CLOSING:
            values = [self._parse_value(depth)]
        else:
            raise self._make_unexpected(f"a colon or a bracket after {name}")
        return [Field(name, value, line, column) for value in values]

    def _parse_name(self) -> str:
        if self._tokens.AtEnd():
            raise self._make_error("the file ends inside of a message. Add the missing bracket.")
        name: str = self._tokens.token
        if name == "[":
            self._tokens.NextToken()
            while _PART_OF_EXTENSION.fullmatch(self._tokens.token):
                name += self._tokens.token
                self._tokens.NextToken()
            name += "]"
            if not self._tokens.LookingAt("]"):
                raise self._make_unexpected(f"the end of {name}")
        elif not name.isidentifier():
            raise self._make_unexpected("the name of a field")
        self._tokens.NextToken()
        return name

    def _parse_list(self, depth: int) -> list[Scalar | TextMessage]:
        values: list[Scalar | TextMessage] = []
        while not self._tokens.TryConsume("]"):
            if values and not self._tokens.TryConsume(","):
                raise self._make_unexpected("','")
            values.append(self._parse_value(depth))
        return values

    def _parse_value(self, depth: int) -> Scalar | TextMessage:
        token: str = self._tokens.token
        if token in _CLOSING:
            self._tokens.NextToken()
            return self.parse_message(_CLOSING[token], depth + 1)
        if token.startswith(_QUOTES):
            return self._parse_string()
        for consume in (self._tokens.ConsumeInteger, self._tokens.ConsumeFloat):
            with contextlib.suppress(text_format.ParseError):
                number: int | float = consume()
                return number
        if not token.isidentifier():
            raise self._make_unexpected("a value")
        self._tokens.NextToken()
        return _BOOLEANS.get(token, EnumName(token))

    def _parse_string(self) -> str:
        """Parses adjacent strings. Escapes of single bytes may together form a character."""
        text, (line, column) = b"", self._locate()
        while (token := self._tokens.token).startswith(_QUOTES):
            with contextlib.suppress(ValueError):
                if _STRING.fullmatch(token):
                    text += CUnescape(
                        _ESCAPE.sub(lambda each: "?" if each[0] == r"\?" else each[0], token[1:-1])
                    )
                    self._tokens.NextToken()
                    continue
            raise self._make_error(f"{token} does not end in its line, or has a wrong escape")
        try:
            return text.decode()
        except UnicodeDecodeError:
            problem = f"the text {text[:100]!r} is not UTF-8. Rename what it names, or correct it."
            raise ConfigError(f"{self._name}:{line}:{column}: {problem}") from None

    def _locate(self) -> tuple[int, int]:
        place = self._tokens.ParseError("")
        return place.GetLine(), place.GetColumn()

    def _make_unexpected(self, expected: str) -> ConfigError:
        found = self._tokens.token or "the end of the file"
        return self._make_error(f"expected {expected}, got {found!r}")

    def _make_error(self, problem: str) -> ConfigError:
        line, column = self._locate()
        return ConfigError(f"{self._name}:{line}:{column}: {problem}")


def _merge_blocks(message: TextMessage, name: str = "") -> TextMessage:
    """Merges the blocks of one message, as protobuf does, at the place of the last one."""
    fields: list[Field] = []
    blocks: dict[str, tuple[Field, TextMessage]] = {}
    for field in message.fields:
        if isinstance(field.value, TextMessage) and field.name not in _REPEATED:
            value = field.value
            if field.name in blocks:
                earlier, first = blocks.pop(field.name)
                fields.remove(earlier)
                value = TextMessage(first.fields + value.fields)
                field = dataclasses.replace(field, value=value)
            if _CHOICE.fullmatch(name):
                blocks.clear()
            blocks[field.name] = field, value
        fields.append(field)
    return TextMessage(
        tuple(
            dataclasses.replace(field, value=_merge_blocks(field.value, field.name))
            if isinstance(field.value, TextMessage)
            else field
            for field in fields
        )
    )


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
                text = str(shorten(self.value))
        return f"{self.path}: {text}"


def shorten(value: Any) -> Any:
    """Returns the shortest number with the same float32, and any other value as it is.

    The API's numbers are float32, which its own tools write as 0.07999999821186066 for 0.08.
    """
    if type(value) is not float or not abs(value) < _MAX_FLOAT32:
        return value
    candidates = (float(f"{value:.{digits}g}") for digits in range(6, 9))
    return next((each for each in candidates if _pack(each) == _pack(value)), value)


def _pack(value: float) -> bytes:
    return struct.pack("f", value)


def describe_values(leaves: Iterable[LeafField]) -> str:
    """Returns the names and values of fields of one message, `num_layers: 6, scales: 0.2 0.95`."""
    found: dict[str, list[str]] = {}
    for leaf in leaves:
        name = leaf.path.rpartition(".")[2].partition("[")[0]
        found.setdefault(name, []).append(str(leaf).removeprefix(f"{leaf.path}: "))
    return ", ".join(f"{name}: {' '.join(values)}" for name, values in found.items())


class ConfigReader:
    """A message whose fields are taken one by one, so that the remaining ones are known in the end.

    The reader of the whole file is the root, with the path "". It has the lists of all readers.
    """

    def __init__(
        self, message: TextMessage, file: str, path: str = "", root: ConfigReader | None = None
    ):
        self._message, self.file, self._path, self.root = message, file, path, root or self
        if root is None:
            self._message = _merge_blocks(message)
            self._taken: set[str] = set()
            self.notes: list[str] = []
            self.losses: list[str] = []

    def note(self, text: str) -> None:
        """Adds a note for the user on a converted field."""
        if text not in self.root.notes:
            self.root.notes.append(text)

    def note_loss(self, text: str) -> None:
        """Adds a note on something that the converted config does not do at all."""
        if text not in self.root.losses:
            self.root.losses.append(text)

    def has(self, name: str) -> bool:
        return any(field.name == name for field in self._message.fields)

    def path(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def format_location(self, name: str) -> str:
        """Returns the file, line, column and path of a field, without line and column if absent."""
        found = (field for field in reversed(self._message.fields) if field.name == name)
        place = next((f"{self.file}:{field.line}:{field.column}" for field in found), self.file)
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
        self.root._taken.update(path for path, _ in self._iterate_fields(name))

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
        return [self._check_kind(field, kind) for _, field in self._iterate_fields(name)]

    def take_equal(self, name: str, expected: Scalar) -> bool:
        """Takes a value that equals our setting, and returns whether it does. Others stay."""
        values = [shorten(field.value) for _, field in self._iterate_fields(name)]
        if is_equal := values == [expected]:
            self.mark_taken(name)
        return is_equal

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
        self.root._taken.update(leaf.path for leaf in rest)
        return rest

    @property
    def field_names(self) -> list[str]:
        return [field.name for field in self._message.fields]

    def list_unconverted(self) -> list[LeafField]:
        """Returns the leaves that were not taken."""
        return [leaf for leaf in self.iterate_leaves() if leaf.path not in self.root._taken]

    def _make_inner(self, message: TextMessage, path: str) -> ConfigReader:
        return ConfigReader(message, self.file, path, self.root)

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

    def _check_kind(self, field: Field, kind: type[_Kind]) -> _Kind:
        value: object = shorten(field.value)
        if type(value) is int and (kind is float or (kind is bool and value in (0, 1))):
            value = kind(value)
        if isinstance(value, kind) and (kind is str or type(value) is kind):
            return value
        raise ConfigError(
            f"{self.file}:{field.line}:{field.column}: {self.path(field.name)} must be "
            f"{_KIND_NAMES[kind]}, got {field.value!r}"
        )
