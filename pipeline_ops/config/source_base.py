"""The common fields of all sources in `preprocess.source`."""

from __future__ import annotations

import re
import string
from datetime import datetime
from typing import Literal

from pydantic import Field, field_validator

from pipeline_ops.config.base import Section, operational_field
from pipeline_ops.storage.open_store import validate_no_credentials

SplitName = Literal["train", "validation", "test"]


class Source(Section):
    """The common fields of every source.

    The location of the raw data is not fingerprinted. The digest of their contents is.
    """

    path: str = operational_field(..., is_path=True)
    """The folder that holds all of the raw data, or a URI such as s3://bucket/folder. All files
    below it are in the fingerprint, for `tfrecord`, `webdataset` and `parquet` those that the
    config names. For data by day or by hour, `raw/{start:%Y-%m-%d}` contains the start of the run's
    data interval (`{end}` its end), which backfills need."""

    @property
    def folder(self) -> str:
        """The folder whose files are listed: a path, relative like `path`, or a URI."""
        return self.path

    @property
    def has_interval(self) -> bool:
        """Returns whether the location of the raw data depends on the run's data interval."""
        return bool(_find_fields(self.path))

    @property
    def required_files(self) -> dict[str, str]:
        """Files that the source requires, as paths below `path`, by the key that names each."""
        return {}

    @property
    def file_patterns(self) -> tuple[str, ...] | None:
        """Globs of the files below `path` that are read, as fnmatch takes them. None is all."""
        return None

    def format_path(self, start: datetime, end: datetime) -> str:
        """Returns the path for one data interval."""
        return self.path.format(start=start, end=end)

    @field_validator("path")
    @classmethod
    def _validate_interval(cls, value: str) -> str:
        for _, field, spec, conversion in string.Formatter().parse(value):
            if field is not None and (conversion or not _INTERVAL_FORMAT.fullmatch(spec or "")):
                raise ValueError(
                    f"{{{field}}} takes a format of strftime such as %Y-%m-%d, "
                    f"got {spec or conversion!r}"
                )
        if unknown := _find_fields(value) - {"start", "end"}:
            raise ValueError(
                "only the start and the end of a run's data interval can stand in brackets, "
                f"such as {{start:%Y-%m-%d}}, got {min(unknown)!r}"
            )
        return value

    @field_validator("path")
    @classmethod
    def _validate_scheme(cls, value: str) -> str:
        validate_no_credentials(value)
        if "://" in value and not _is_known_scheme(value):
            raise ValueError(
                "must be a local folder, or a URI of an object store "
                f"such as s3://bucket/folder, got {value}"
            )
        return value


_INTERVAL_FORMAT = re.compile(r"(%[A-Za-z%]|[^%{}])*")


def _is_known_scheme(uri: str) -> bool:
    """Returns whether fsspec knows the scheme of a URI. Its driver need not be installed."""
    from fsspec.registry import known_implementations  # here: few configs name a store

    return uri.partition("://")[0] in known_implementations


def _find_fields(path: str) -> set[str]:
    """Returns the fields in brackets. Raises ValueError if a bracket is not closed."""
    return {field for _, field, _, _ in string.Formatter().parse(path) if field is not None}


class AnnotatedSource(Source):
    """A source that names the classes in its annotations."""

    class_names: list[str] | None = Field(None, min_length=1)
    """The classes, in the order of their indices. Records with another class are left out. Null is
    all classes that occur, sorted."""

    @field_validator("class_names")
    @classmethod
    def _validate_unique(cls, value: list[str] | None) -> list[str] | None:
        if value and (duplicates := sorted({name for name in value if value.count(name) > 1})):
            raise ValueError(
                f"must name each class once, got {', '.join(duplicates)} more than once"
            )
        return value
