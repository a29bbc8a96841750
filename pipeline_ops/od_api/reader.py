"""A message whose fields are taken one by one.

It records which fields were taken, so the fields that were left are known in the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from pipeline_ops.errors import ConfigError
from pipeline_ops.od_api.text_proto import Field, Scalar, TextMessage


@dataclasses.dataclass(frozen=True)
class ReadField:
    """A field that is not a message, or an empty message.

    `path` has the form `train_config.data_augmentation_options[1].random_crop_image`.
    """

    path: str
    value: Scalar | TextMessage
    line: int

    def __str__(self) -> str:
        text = (
            {True: "true", False: "false"}.get(self.value) if isinstance(self.value, bool) else None
        )
        value = (
            "{}"
            if isinstance(self.value, TextMessage)
            else text or (f"'{self.value}'" if type(self.value) is str else f"{self.value}")
        )
        return f"{self.path}: {value}"


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

    def note(self, text: str) -> None:
        """Adds a note for the user on a converted field."""
        if text not in self._root.notes:
            self._root.notes.append(text)

    def has(self, name: str) -> bool:
        return any(field.name == name for field in self._message.fields)

    def path(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def place(self, name: str) -> str:
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
        for path, field in self._paths():
            if field.name == name:
                if not isinstance(field.value, TextMessage):
                    raise ConfigError(
                        f"{self.place(name)} must be a message in brackets, got {field.value!r}"
                    )
                found.append(ConfigReader(field.value, self._file, path, self._root))
        return found

    def one_of(self, *names: str) -> str | None:
        """Returns the name of the message or field that is present, None if there is none.

        The last of several counts, as in protobuf.
        """
        return next(
            (field.name for field in reversed(self._message.fields) if field.name in names), None
        )

    def mark(self, name: str) -> None:
        """Takes an empty message, which says something by its presence alone."""
        self._root._taken.update(path for path, field in self._paths() if field.name == name)

    def take(self, name: str, kind: type, default: Any) -> Any:
        """Returns a scalar, for a key of ours. The last of several counts, as in protobuf.

        Raises:
          ConfigError: the value is of another kind.
        """
        return next(reversed(self.take_all(name, kind)), default)

    def take_all(self, name: str, kind: type) -> list[Any]:
        """Returns all values of a repeated scalar."""
        values = []
        for path, field in self._paths():
            if field.name == name:
                values.append(self._checked(field, kind))
                self._root._taken.add(path)
        return values

    def take_equal(self, name: str, wanted: Any) -> None:
        """Takes a value that equals our fixed setting. Any other value stays."""
        if [field.value for field in self._message.fields if field.name == name] == [wanted]:
            self.mark(name)

    def take_equals(self, name: str, wanted: Sequence[float]) -> None:
        """Does the same as `take_equal` for a repeated number, in any order."""
        if sorted(
            field.value
            for field in self._message.fields
            if field.name == name and isinstance(field.value, int | float)
        ) == sorted(wanted):
            self.mark(name)

    def leaves(self) -> Iterator[ReadField]:
        """Yields all leaves, in the order of the file."""
        for path, field in self._paths():
            if isinstance(field.value, TextMessage) and field.value.fields:
                yield from ConfigReader(field.value, self._file, path, self._root).leaves()
            else:
                yield ReadField(path, field.value, field.line)

    def left(self) -> list[ReadField]:
        """Returns the leaves that were not taken."""
        return [leaf for leaf in self.leaves() if leaf.path not in self._root._taken]

    def _paths(self) -> Iterator[tuple[str, Field]]:
        """Yields the fields with their paths. A repeated name has a number in brackets."""
        seen: dict[str, int] = {}
        names = [field.name for field in self._message.fields]
        for field in self._message.fields:
            number = seen[field.name] = seen.get(field.name, -1) + 1
            yield (
                self.path(field.name) + (f"[{number}]" if names.count(field.name) > 1 else ""),
                field,
            )

    def _checked(self, field: Field, kind: type) -> Any:
        value = field.value
        if kind is float and type(value) is int:
            value = float(value)
        if kind is bool and value in (0, 1) and type(value) is int:
            value = bool(value)
        if type(value) is not kind and not (kind is str and isinstance(value, str)):
            names = {
                str: "a text in quotes",
                int: "a whole number",
                float: "a number",
                bool: "true or false",
            }
            raise ConfigError(
                f"{self._file}:{field.line}:{field.column}: {self.path(field.name)} must be "
                f"{names[kind]}, got {field.value!r}"
            )
        return value
