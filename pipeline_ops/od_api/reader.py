"""A message whose fields are taken one by one.

It records which fields were taken, so the fields without a counterpart are known in the end.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

from pipeline_ops.errors import ConfigError
from pipeline_ops.od_api.text_proto import EnumName, Field, Scalar, TextMessage

_Kind = TypeVar("_Kind", str, int, float, bool)
_Default = TypeVar("_Default")
_KIND_NAMES: dict[type, str] = {
    str: "a text in quotes",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


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
    """One message. Readers of the messages inside it write into the same lists.

    Args:
      message: the message to read.
      file: the name of the file, for error messages.
      path: the path of the message, "" for the whole file.
      root: the reader of the whole file, None for that reader itself.
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
        return next(
            reversed(self.messages(name)),
            ConfigReader(TextMessage(()), self._file, self.path(name), self._root),
        )

    def messages(self, name: str) -> Sequence[ConfigReader]:
        """Returns all messages of this name. Raises ConfigError if a field is not a message."""
        found = []
        for path, field in self._iterate_fields(name):
            if not isinstance(field.value, TextMessage):
                raise ConfigError(
                    f"{self.format_location(name)} must be a message in brackets, "
                    f"got {field.value!r}"
                )
            found.append(ConfigReader(field.value, self._file, path, self._root))
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
        """Returns a scalar, for a key of ours. The last of several counts, as in protobuf.

        Raises:
          ConfigError: the value is of another kind.
        """
        return next(reversed(self.take_all(name, kind)), default)

    def take_all(self, name: str, kind: type[_Kind]) -> list[_Kind]:
        """Returns all values of a repeated scalar."""
        self.mark_taken(name)
        return [self._validate_kind(field, kind) for _, field in self._iterate_fields(name)]

    def take_equal(self, name: str, expected: Scalar) -> None:
        """Takes a value that equals our fixed setting. Any other value stays."""
        if [field.value for _, field in self._iterate_fields(name)] == [expected]:
            self.mark_taken(name)

    def take_equal_values(self, name: str, expected: Sequence[float]) -> None:
        """Does the same as `take_equal` for a repeated number, in any order."""
        values = [field.value for _, field in self._iterate_fields(name)]
        if sorted(value for value in values if isinstance(value, int | float)) == sorted(expected):
            self.mark_taken(name)

    def iterate_leaves(self) -> Iterator[LeafField]:
        """Yields all leaves, in the order of the file."""
        for path, field in self._iterate_fields():
            if isinstance(field.value, TextMessage) and field.value.fields:
                yield from ConfigReader(field.value, self._file, path, self._root).iterate_leaves()
            else:
                yield LeafField(path, field.value, field.line)

    def iterate_messages(self) -> Iterator[ConfigReader]:
        """Yields this message and all messages in it."""
        yield self
        for path, field in self._iterate_fields():
            if isinstance(field.value, TextMessage):
                inner = ConfigReader(field.value, self._file, path, self._root)
                yield from inner.iterate_messages()

    def take_rest(self) -> list[LeafField]:
        """Takes all leaves of this message that were not taken, and returns them."""
        rest = [leaf for leaf in self.iterate_leaves() if leaf.path not in self._root._taken]
        self._root._taken.update(leaf.path for leaf in rest)
        return rest

    @property
    def field_names(self) -> list[str]:
        return [field.name for field in self._message.fields]

    def list_unconverted(self) -> list[LeafField]:
        """Returns the leaves that were not taken."""
        return [leaf for leaf in self.iterate_leaves() if leaf.path not in self._root._taken]

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
