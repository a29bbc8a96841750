"""The fields of a config: their declarations, their texts, and the values that a run may choose.

Only the author may set a field, unless it is declared with `per_run_field`, or the author opens
it to runs:

    per_run:
      train.hosts: [lab, two_gpus]
      preprocess.source.path: [/data/daily/, "s3://lake/daily/"]   folders, and all below them
      train.epochs: [5, 20]                  a run may choose one of these
      train.seed: []                         a run may not set it

The value in the YAML itself is always allowed. A path is made absolute and its links are followed
before the comparison.

`collect_fields` returns all fields as one flat table by dotted key. The trigger form, the check
of a run's conf and the reference read only this table.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import itertools
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo

from pipeline_ops.config.reading import suggest_name
from pipeline_ops.system.host import parse_python

SELECTS_A_PROGRAM = "it selects a program to execute"
READ_WITH_THE_DAG = "Airflow reads it when it makes the DAG, before there is a run"
SAME_FOR_ALL_RUNS = "pages, the orphan reaper and other runs need it to be the same for all runs"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Declarations:
    """The declarations of a field besides its type and its bounds.

    Attributes:
      is_operational: the value cannot change the result.
      is_per_run: a run may set it.
      is_advanced: few pipelines need it. The form and the reference mark it.
      rank: the position at the top of the form, for fields that change often. 0 for other fields.
      fixed: the reason why a run can never set it. Empty if the author may open it.
      is_path: a path or a URI, for which `per_run` takes folders.
      run_pattern: the values that a run may set it to. Empty for any valid value.
      run_pattern_description: a description of `run_pattern` in words.
      selects_program: the value selects the code that a host runs.
    """

    is_operational: bool = False
    is_per_run: bool = False
    is_advanced: bool = False
    rank: int = 0
    fixed: str = ""
    is_path: bool = False
    run_pattern: str = ""
    run_pattern_description: str = ""
    selects_program: bool = False


DECLARATIONS = frozenset(field.name for field in dataclasses.fields(Declarations))


def config_field(default: Any, **options: Any) -> Any:
    """A field with `Declarations`. The other options go to pydantic."""
    declared = {name: options.pop(name) for name in DECLARATIONS & options.keys()}
    return Field(default, json_schema_extra=declared, **options)


def get_declarations(field: FieldInfo) -> Mapping[str, Any]:
    """The declarations of a field that are not at their defaults, by name."""
    extra = field.json_schema_extra
    return extra if isinstance(extra, dict) else {}


def operational_field(default: Any, **declarations: Any) -> Any:
    """A field that cannot change the result, such as one about resources, timeouts or a note."""
    return config_field(default, is_operational=True, **declarations)


def advanced_field(default: Any, **declarations: Any) -> Any:
    """A field that few pipelines need. No shipped config sets it."""
    return config_field(default, is_advanced=True, **declarations)


def per_run_field(default: Any, **declarations: Any) -> Any:
    """A field that a single run may set."""
    return config_field(default, is_per_run=True, **declarations)


def fixed_field(default: Any, reason: str, **declarations: Any) -> Any:
    """A field that a run can never set, even if the author lists it in `per_run`."""
    return config_field(default, fixed=reason, **declarations)


JsonSchema = dict[str, Any]
_NOT_REPLACED = re.compile(r"\$[A-Za-z_]\w*|\$\{[^}]*\}|\{\{.*?\}\}")
_OF_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\")


def check_path(value: str) -> None:
    """Refuses a path that this host would take literally, and its author does not mean so."""
    if found := _NOT_REPLACED.search(value):
        day = " or, for the data of a run, {start:%Y-%m-%d}" * found[0].startswith("{{")
        raise ValueError(
            f"has {found[0]}, and neither environment variables nor templates are replaced in a "
            f"path. Write the path itself{day}, got {value!r}"
        )
    if re.search(r"[\0-\x1f\x7f]", value):
        raise ValueError(
            "has a tab, a line break or another control character, such as a backslash makes in "
            f"double quotes. Write it on one line, in single quotes, got {value!r}"
        )
    if _OF_WINDOWS.match(value):
        raise ValueError(
            f"is a path of Windows. Write the path on this host, such as /data, got {value!r}"
        )
    if value != value.strip() or value.startswith(
        ("\N{LEFT DOUBLE QUOTATION MARK}", "\N{LEFT SINGLE QUOTATION MARK}")
    ):
        raise ValueError(
            "must not begin or end with a space, or begin with a typographic quotation mark, got "
            f"{value!r}"
        )


class FieldError(ValueError):
    """A rule over several fields that one of them breaks.

    `key` is the dotted path of that field, below the section that checks.
    """

    def __init__(self, key: str, rule: str):
        super().__init__(rule)
        self.key_path = tuple(int(part) if part.isdecimal() else part for part in key.split("."))


class Section(BaseModel):
    """Base of every part of the config: frozen, strict about types, and without unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _check_text(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses a text whose author means something else by it."""
        field = cls.model_fields[str(info.field_name)]
        if value == "None" and type(None) in typing.get_args(field.annotation):
            raise ValueError("is the text 'None'. Write null, or leave the key out.")
        if isinstance(value, str) and get_declarations(field).get("is_path"):
            check_path(value)
        return value

    def to_fingerprint_dict(self) -> dict[str, Any]:
        """Returns this section as JSON, without its operational fields."""
        values = {}
        for name, field in type(self).model_fields.items():
            if not get_declarations(field).get("is_operational"):
                value = getattr(self, name)
                values[name] = (
                    value.to_fingerprint_dict()
                    if isinstance(value, Section)
                    else self.model_dump(mode="json", include={name})[name]
                )
        return values

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: Any, handler: GetJsonSchemaHandler
    ) -> JsonSchema:
        schema = handler(core_schema)
        cls.extend_json_schema(handler.resolve_ref_schema(schema))
        return schema

    @classmethod
    def extend_json_schema(cls, schema: JsonSchema) -> None:
        """Adds the forms of the YAML that the fields do not show, for editors, in place."""


def add_forms(schema: JsonSchema, *forms: JsonSchema) -> None:
    """Changes a JSON schema to one that allows other forms, too."""
    inner = {key: schema.pop(key) for key in [*schema] if key not in ("description", "default")}
    schema["anyOf"] = [inner, *forms]


def _check_pattern(pattern: str) -> str:
    parts = pattern.split("/")
    if not pattern or pattern.startswith(("/", "~")) or "://" in pattern or ".." in parts:
        raise ValueError(
            f"must be a path or a pattern of paths below the folder of this file, got {pattern!r}. "
            "Move the file there"
        )
    return pattern


FilePattern = Annotated[str, AfterValidator(_check_pattern)]
"""A path relative to the folder of the config, or a pattern of such paths, as `Path.glob` takes."""


class TaskSection(Section):
    """The fields that every task's section has."""

    timeout_seconds: int = operational_field(24 * 3600, ge=1)
    """The job ends itself after this long, whatever happens to Airflow."""

    retries: int = fixed_field(
        2, READ_WITH_THE_DAG, is_operational=True, ge=0, le=20, is_advanced=True
    )
    """Number of further attempts after a machine failure. The first follows at once, the next after
    half a minute or more, later ones after minutes, so that a slow restart of Airflow does not use
    them up. Errors in the config or the data are never retried."""

    runs_on: str | None = fixed_field(
        None, SELECTS_A_PROGRAM, is_operational=True, min_length=1, is_advanced=True
    )
    """A file in the folder `hosts/` next to the pipeline's YAML, without `.yaml`. It says where
    this task's job runs: with another interpreter, on a host over ssh, in a container, in a pod, or
    in a Slurm job. Null is the host and the interpreter of the Airflow worker."""

    pool: str | None = fixed_field(
        None, READ_WITH_THE_DAG, is_operational=True, min_length=1, is_advanced=True
    )
    """One of Airflow's pools, which keeps the number of running tasks within the number of hosts.
    Create it with `airflow pools set NAME SLOTS TEXT --include-deferred`. A task whose job runs is
    deferred, and only counts with this option."""


Kind = Literal["scalar", "list", "mapping"]
_INHERITED = frozenset({"is_operational", "fixed", "is_advanced", "selects_program"})
"""The declarations of a section that hold for all fields in it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigField(Declarations):
    """One field that is not a section, with its declarations.

    Attributes:
      key: dotted, as in `--set`. `[]` stands for the items of a list of sections:
        `notify[].events`.
      fields: the field in each of the sections that may have this key.
      sections: these sections, in the same order.
    """

    key: str
    kind: Kind
    fields: tuple[FieldInfo, ...]
    sections: tuple[type[Section], ...]

    @property
    def is_in_list(self) -> bool:
        return "[]" in self.key

    @property
    def can_be_opened(self) -> bool:
        """Returns whether the author may open it to runs."""
        return self.kind == "scalar" and not self.fixed and not self.is_in_list

    def accepts(self, value: Any) -> bool:
        """Returns whether the value has the type and the bounds of one of the fields."""
        for field in self.fields:
            annotation: Any = typing.Annotated[field.annotation, field]
            with contextlib.suppress(ValueError):
                TypeAdapter(annotation, config=ConfigDict(strict=True)).validate_python(value)
                return True
        return False


@functools.cache
def collect_fields(model: type[Section]) -> Mapping[str, ConfigField]:
    """All leaves by key, in the order of the classes."""
    found: dict[str, ConfigField] = {}
    for leaf in _iterate_fields(model, "", {}):
        existing = found.get(leaf.key)
        found[leaf.key] = (
            dataclasses.replace(
                existing,
                fields=(*existing.fields, *leaf.fields),
                sections=(*existing.sections, *leaf.sections),
            )
            if existing
            else leaf
        )
    return found


def get_value(config: Section, key: str) -> Any:
    """The value of a leaf. None if the section that holds it is null or of another type."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name, None)
    return value


def _iterate_fields(
    section: type[Section], prefix: str, inherited: Mapping[str, Any]
) -> Iterator[ConfigField]:
    for name, field in section.model_fields.items():
        declarations = {**get_declarations(field), **inherited}
        passed_down = {name: declarations[name] for name in _INHERITED & declarations.keys()}
        members = list(_iterate_members(field.annotation))
        sections = [member for member in members if _is_section(member)]
        items = [
            item
            for member in members
            if typing.get_origin(member) is list
            for item in _iterate_members(typing.get_args(member)[0])
        ]
        if len(sections) < len(members) and not any(map(_is_section, items)):
            origins = {typing.get_origin(member) for member in members}
            kind: Kind = "list" if list in origins else "mapping" if dict in origins else "scalar"
            yield ConfigField(
                key=f"{prefix}{name}",
                kind=kind,
                fields=(field,),
                sections=(section,),
                **declarations,
            )
        for inner in sections:
            yield from _iterate_fields(inner, f"{prefix}{name}.", passed_down)
        for inner in filter(_is_section, items):
            yield from _iterate_fields(inner, f"{prefix}{name}[].", passed_down)


def _iterate_members(annotation: Any) -> Iterator[Any]:
    """The types that an annotation allows, without None."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        yield from _iterate_members(typing.get_args(annotation)[0])
    elif origin in (typing.Union, types.UnionType):
        for member in typing.get_args(annotation):
            yield from _iterate_members(member)
    elif annotation is not type(None):
        yield annotation


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


@functools.cache
def read_descriptions(section: type) -> Mapping[str, str]:
    """Returns the text below each field of a class, and of the classes that it is derived from.

    Fields without a text are left out. So are those of a class without a source file.
    """
    texts: dict[str, str] = {}
    for base in reversed(section.__mro__):
        texts |= _read_module(base.__module__).get(base.__name__, {})
    return texts


@functools.cache
def _read_module(name: str) -> Mapping[str, Mapping[str, str]]:
    """The texts in the file of a module, by class and field."""
    file = Path(getattr(sys.modules.get(name), "__file__", None) or "")
    if file.suffix != ".py" or not file.is_file():
        return {}
    return {
        node.name: dict(_iterate_texts(node))
        for node in ast.walk(parse_python(file))
        if isinstance(node, ast.ClassDef)
    }


def _iterate_texts(found: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in itertools.pairwise(found.body):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(value))),
            ):
                yield name, inspect.cleandoc(value)


Scalar = bool | int | float | str | None
_URI = re.compile(r"([a-z][a-z0-9+.-]*)://(.+)")


def validate_per_run(
    leaves: Mapping[str, ConfigField], per_run: Mapping[str, Sequence[Scalar]]
) -> None:
    """Checks the fields and the values of `per_run`.

    Raises ValueError: a field does not exist or can never be opened, or a value is not valid.
    """
    for key, values in per_run.items():
        leaf = leaves.get(key)
        if leaf is None:
            known = [name for name, leaf in leaves.items() if leaf.can_be_opened]
            raise ValueError(f"{key}: there is no such value; {suggest_name(key, known)}")
        if not leaf.can_be_opened:
            reason = leaf.fixed or (
                f"it is {'a list' if leaf.kind == 'list' else 'a mapping'}, "
                "and a run sets single values only"
            )
            raise ValueError(f"{key}: cannot be opened to runs: {reason}. Remove this line.")
        for value in values:
            if leaf.is_path and isinstance(value, str):
                if re.search(r"[*?\[{\0]", value):
                    raise ValueError(
                        f"{key}: {value!r} must be a plain path. A slash at its end opens the "
                        "whole folder."
                    )
            elif not leaf.accepts(value):
                raise ValueError(
                    f"{key}: {value!r} is not a valid value of it. Correct or remove it."
                )


def resolve_allowed_value(
    leaf: ConfigField, value: Scalar, allowed: Sequence[Scalar], folder: Path
) -> Scalar:
    """The value to use. For a path in an allowed folder, that is the absolute path without links.

    Raises ValueError: the value is not allowed.
    """
    if any(type(one) is type(value) and one == value for one in allowed):
        return value
    if leaf.is_path and isinstance(value, str):
        path = _normalize(value, folder)
        for one in allowed:
            if is_folder(one) and f"{path}/".startswith(f"{_normalize(str(one), folder)}/"):
                return path
    choices = ", ".join("null" if one is None else str(one) for one in allowed)
    raise ValueError(
        f"must be one of the values that per_run allows ({choices})"
        if choices
        else "is closed to runs by per_run"
    )


def is_folder(value: Scalar) -> bool:
    """Returns whether an allowed value of a path stands for all paths in a folder."""
    return isinstance(value, str) and value.endswith("/")


def _normalize(value: str, folder: Path) -> str:
    """An absolute path without `..` and without links, or a plain URI.

    Raises ValueError: the value is neither.
    """
    if re.search(r"[{}*?\[]", value):
        raise ValueError("must be a plain path for a single run, without any of { } * ? [")
    if uri := _URI.fullmatch(value):
        parts = uri[2].rstrip("/").split("/")
        if any(part in ("", ".", "..") for part in parts) or re.search(r"[%#@\\]", uri[2]):
            raise ValueError("must be a plain URI, without '..', '//' or any of % # @ \\")
        return f"{uri[1]}://{'/'.join(parts)}"
    if "://" in value:
        raise ValueError("must be a path or a plain URI")
    return str((folder / Path(value).expanduser()).resolve())
