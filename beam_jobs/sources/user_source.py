"""Loads and runs a user source, which is a source next to the config or from another package.

It also loads a transform of the user's own, which `beam_jobs/transform.py` runs.

`source.py` is the interface for its author. The command line and the job call this module. The DAG
file does not.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from beam_jobs.sources.source import SourceEntry, SourceFailed, SourceFiles, SourceRecords
from beam_jobs.stages import find_parameter_problems, find_parameters_class, raise_problems
from beam_jobs.stages.stage import Reject, parameters
from pipeline_ops.config.reading import locate_in_file
from pipeline_ops.config.sources import BoxOptions, OwnCodeSource, Source, UserSource
from pipeline_ops.errors import ConfigError, DataError, TrainyardError
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.user_code.modules import hide_modules, load_object, locate_error
from pipeline_ops.user_code.planned_imports import get_planned_code
from pipeline_ops.user_code.sources import digest_source_code, find_modules_in, find_source_path

_LOCATION = ("preprocess", "source")


@parameters
class _NoParameters:
    pass


class BoundSource(NamedTuple):
    name: str
    class_names: Sequence[str] | None
    function: Callable[[SourceFiles, Any], Iterable[SourceEntry]]
    parameters: Any
    boxes: BoxOptions


def check_source(source: Source, config_file: Path) -> None:
    """Checks that code of the user's own can be imported, and takes its parameters."""
    if isinstance(source, OwnCodeSource):
        with bind_source(source, config_file):
            pass


def read_user_records(source: UserSource, listing: Listing, config_file: Path) -> SourceRecords:
    with bind_source(source, config_file) as bound:
        return collect_entries(bound, listing)


@contextlib.contextmanager
def bind_source(source: OwnCodeSource, config_file: Path) -> Iterator[BoundSource]:
    """Yields the source, for use within the block. Modules next to the config are known there.

    A job takes those that travelled with its request. The `function` of a transform is its class.
    """
    planned = get_planned_code()
    folder = planned.folder if planned else Path(config_file).resolve().parent
    with find_modules_in(folder):
        try:
            digest_source_code(source, folder)  # finds the module, and each error of syntax in it
            function = _load_function(source)
            taken = _find_parameters(function, source)
        except ConfigError as error:
            place = locate_in_file(config_file, (*_LOCATION, source.code_key))
            error.add_location(place)
            raise
        problems = find_parameter_problems(taken, source.parameters, _LOCATION)
        raise_problems(list(problems), config_file)
        values = taken(**source.parameters)
        yield BoundSource(source.code_name, source.class_names, function, values, source.boxes)


def collect_entries(
    bound: BoundSource, listing: Listing, is_reversed: bool = False
) -> SourceRecords:
    files = SourceFiles(listing, bound.name, bound.class_names, is_reversed, bound.boxes)
    found = files.collect(_iterate_entries(bound, files))
    if not found.records:
        first = next((f" ({r.key}: {r.reason}: {r.detail})" for r in found.rejected), "")
        raise DataError(
            f"{listing.folder}: the source {bound.name} found no image among {len(files)} "
            f"files, and rejected {len(found.rejected)} entries{first}. "
            "Correct preprocess.source, or the function."
        )
    by_task = {record.boxes is None: record.key for record in found.records}
    if len(by_task) > 1:
        raise SourceFailed(
            f"source {bound.name} gave a label to {by_task[True]} and boxes to {by_task[False]}. "
            "All entries must have labels, or all must have boxes."
        )
    return found


def _iterate_entries(bound: BoundSource, files: SourceFiles) -> Iterator[SourceEntry]:
    number = 0
    try:
        entries = bound.function(files, bound.parameters)
        if not isinstance(entries, Iterable):
            raise _make_bug(bound, f"returned a {type(entries).__name__}")
        for number, entry in enumerate(entries, 1):
            if not isinstance(entry, SourceEntry):
                raise _make_bug(bound, f"yielded a {type(entry).__name__} as entry {number}")
            yield entry
    except (TrainyardError, MemoryError):
        raise
    except Reject as reject:
        raise SourceFailed(
            f"source {bound.name} raised Reject outside of `with files.entry(place):`, in "
            f"{locate_error(reject)}: {reject.reason}: {reject.detail}"
        ) from reject
    except Exception as error:
        raise SourceFailed(
            f"source {bound.name} failed after {number} entries, in "
            f"{locate_error(error)}: {type(error).__name__}: {error}",
            "Correct the source, then retry.",
        ) from error


def _make_bug(bound: BoundSource, fault: str) -> SourceFailed:
    file = inspect.getsourcefile(bound.function)
    return SourceFailed(f"source {bound.name} in {file} {fault}. It must yield a SourceEntry.")


def _load_function(source: OwnCodeSource) -> Any:
    key, is_source = f"preprocess.source.{source.code_key}", isinstance(source, UserSource)
    remedy = "Correct it, or install what it needs, for both Airflow and the job."
    with hide_modules(()):  # Beam warns of clients that are not installed
        found = load_object(find_source_path(source), key, remedy)
    if not (inspect.isfunction(found) if is_source else callable(found)):
        kind = "function" if is_source else "class"
        raise ConfigError(f"{key}: {source.code_name} is no {kind}, but {found!r:.80}")
    return found


def _find_parameters(function: Callable[..., Any], source: OwnCodeSource) -> Any:
    taken, is_source = find_parameters_class(function), isinstance(source, UserSource)
    if taken is None and not is_source and len(inspect.signature(function).parameters) == 1:
        return _NoParameters
    if taken is None:
        first = "files: SourceFiles" if is_source else "folder: str"
        raise ConfigError(
            f"preprocess.source.{source.code_key}: {source.code_name} must take "
            f"`({first}, parameters: MyParameters)`, where MyParameters is a class with the "
            "decorator @parameters of beam_jobs.sources.source"
        )
    reserved = sorted(taken.__pydantic_fields__.keys() & type(source).model_fields.keys())
    if reserved:
        raise ConfigError(
            f"preprocess.source.{source.code_key}: {source.code_name} has a parameter "
            f"{reserved[0]}, which every source has. Rename it."
        )
    return taken
