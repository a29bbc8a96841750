"""`per_run` of a pipeline config: fields that the author opens to runs, with the allowed values.

    per_run:
      train.hosts: [lab, two_gpus]
      preprocess.source.path: [/data/daily/**, "s3://lake/daily/*"]
      train.epochs: [5, 20]                  a run may choose one of these
      train.seed: []                         a run may not set it

The value in the YAML itself is always allowed. A path is made absolute and its links are followed
before the comparison. `*` and `?` stand for anything within one folder's name, `**` for any number
of folders.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline_ops.config.fields import ConfigField
from pipeline_ops.config.yaml_source import suggest_name

Scalar = bool | int | float | str | None
_WILDCARD = re.compile(r"[*?\[]")
_URI = re.compile(r"([a-z][a-z0-9+.-]*)://(.+)")


def validate_per_run(
    leaves: Mapping[str, ConfigField], per_run: Mapping[str, Sequence[Scalar]]
) -> None:
    """Checks the fields and the values of `per_run`.

    Raises:
      ValueError: a field does not exist or can never be opened, or a value is not valid.
    """
    for key, values in per_run.items():
        leaf = leaves.get(key)
        if leaf is None:
            known = [name for name, leaf in leaves.items() if _can_be_opened(leaf)]
            raise ValueError(f"{key}: there is no such value; {suggest_name(key, known)}")
        if not _can_be_opened(leaf):
            reason = leaf.fixed or (
                f"it is {'a list' if leaf.kind == 'list' else 'a mapping'}, "
                "and a run sets single values only"
            )
            raise ValueError(f"{key}: cannot be opened to runs: {reason}. Remove this line.")
        for value in values:
            if leaf.is_path and isinstance(value, str):
                _validate_pattern(key, value)
            elif not leaf.accepts(value):
                raise ValueError(
                    f"{key}: {value!r} is not a valid value of it. Correct or remove it."
                )


def resolve_allowed_value(
    leaf: ConfigField, value: Scalar, allowed: Sequence[Scalar], folder: Path
) -> Scalar:
    """The value to use. For a path that a glob allows, that is the absolute path without links.

    Raises:
      ValueError: the value is not allowed.
    """
    for candidate in allowed:
        if (
            type(candidate) is type(value)
            and candidate == value
            and not (leaf.is_path and isinstance(value, str) and _WILDCARD.search(value))
        ):
            return value
    if leaf.is_path and isinstance(value, str):
        path = _normalize(value, folder)
        if any(_is_match(pattern, path, folder) for pattern in allowed if isinstance(pattern, str)):
            return path
    choices = ", ".join("null" if candidate is None else str(candidate) for candidate in allowed)
    raise ValueError(
        f"must be one of the values that per_run allows ({choices})"
        if choices
        else "is closed to runs by per_run"
    )


def is_glob(value: Scalar) -> bool:
    """Returns whether an allowed value stands for several."""
    return isinstance(value, str) and bool(_WILDCARD.search(value))


def _can_be_opened(leaf: ConfigField) -> bool:
    return leaf.kind == "scalar" and not leaf.fixed and not leaf.is_in_list


def _validate_pattern(key: str, pattern: str) -> None:
    wildcard = _WILDCARD.search(pattern)
    after = pattern[pattern.rfind("/", 0, wildcard.start()) + 1 :] if wildcard else ""
    if ".." in after.split("/"):
        raise ValueError(
            f"{key}: {pattern!r} has '..' behind a wildcard. Write the folder that is meant."
        )
    if "{" in pattern or "\0" in pattern:
        raise ValueError(
            f"{key}: {pattern!r} must be a plain path or a glob, without brackets like {{start}}"
        )


def _normalize(value: str, folder: Path) -> str:
    """An absolute path without `..` and without links, or a plain URI.

    Raises:
      ValueError: the value is neither.
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


def _is_match(pattern: str, path: str, folder: Path) -> bool:
    return _are_segments_matching(_make_absolute(pattern, folder).split("/"), path.split("/"))


def _make_absolute(pattern: str, folder: Path) -> str:
    """The pattern with the folders before its first wildcard made absolute.

    These folders may be links, because they are the author's own.
    """
    if _URI.fullmatch(pattern):
        return pattern.rstrip("/")
    wildcard = _WILDCARD.search(pattern)
    cut = len(pattern) if wildcard is None else pattern.rfind("/", 0, wildcard.start()) + 1
    start = str((folder / Path(pattern[:cut]).expanduser()).resolve())
    return f"{start.rstrip('/')}/{pattern[cut:].rstrip('/')}" if pattern[cut:] else start


def _are_segments_matching(pattern: Sequence[str], segments: Sequence[str]) -> bool:
    if not pattern:
        return not segments
    if pattern[0] == "**":
        return any(
            _are_segments_matching(pattern[1:], segments[skipped:])
            for skipped in range(len(segments) + 1)
        )
    return (
        bool(segments)
        and fnmatch.fnmatchcase(segments[0], pattern[0])
        and _are_segments_matching(pattern[1:], segments[1:])
    )
