"""The marks of a pipeline: what `trainyard gc` would remove, since when, and by what rule.

Only what was marked, and was not touched since, is removed by a later call.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, Field, RootModel

from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.errors import DataError
from pipeline_ops.retention.candidates import Candidate
from pipeline_ops.storage.local_files import format_json
from pipeline_ops.storage.parsing import read_json_as
from pipeline_ops.storage.store_path import StorePath

_MAX_BYTES = 256 << 20


class Mark(BaseModel):
    """One entry. `since` is in seconds since 1970, by the store's clock."""

    model_config = ConfigDict(frozen=True)

    since: float = Field(ge=0, allow_inf_nan=False)
    kind: str = Field(max_length=100)
    rule: str = Field(max_length=1000)


class _MarkFile(RootModel[dict[str, Mark]]):
    """The marks by path below the root."""


def get_mark_file(layout: Layout) -> StorePath:
    return layout.root / "gc" / f"{layout.pipeline}.json"


def read_marks(layout: Layout) -> dict[str, Mark]:
    """The marks of the last call. None are left of a damaged file, so that everything waits."""
    try:
        found = read_json_as(_MarkFile, get_mark_file(layout), _MAX_BYTES)
    except DataError:
        return {}
    return found.root if found else {}


def write_marks(layout: Layout, marks: dict[str, Mark]) -> None:
    content = {path: marks[path].model_dump(mode="json") for path in sorted(marks)}
    get_mark_file(layout).write(format_json(content))


def update_marks(
    before: dict[str, Mark], candidates: Iterable[Candidate], now: float
) -> dict[str, Mark]:
    """The marks of this call.

    A candidate that was touched since its mark gets a new one, and so does one whose mark is of the
    future, when the clock was ahead.
    """
    marks = {}
    for candidate in candidates:
        mark = before.get(candidate.path)
        if mark is None or mark.since > now or was_touched(candidate.touched, mark):
            mark = Mark(since=now, kind=candidate.kind, rule=candidate.rule)
        marks[candidate.path] = mark
    return marks


def was_touched(touched: float, mark: Mark) -> bool:
    """Returns whether a time is not certainly before the mark. Buckets may count full seconds."""
    return touched >= mark.since
