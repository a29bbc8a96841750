"""Loads and runs a user source, which is a source next to the config or from another package.

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
from beam_jobs.stages.stage import Reject
from pipeline_ops.config.reading import locate_in_file, suggest_name
from pipeline_ops.config.sources import BoxOptions, Source, UserSource
from pipeline_ops.errors import ConfigError, DataError, TrainyardError
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.user_code.modules import import_module, locate_error
from pipeline_ops.user_code.sources import digest_source_code, find_modules_in, find_source_path

_LOCATION = ("preprocess", "source")
_KEY = "preprocess.source.type"


class BoundSource(NamedTuple):
    name: str
    class_names: Sequence[str] | None
    function: Callable[[SourceFiles, Any], Iterable[SourceEntry]]
    parameters: Any
    boxes: BoxOptions


def check_source(source: Source, config_file: Path) -> None:
    """Checks that a user source can be imported, and takes its parameters."""
    if isinstance(source, UserSource):
        with bind_source(source, config_file):
            pass


def read_user_records(source: UserSource, listing: Listing, config_file: Path) -> SourceRecords:
    with bind_source(source, config_file) as bound:
        return collect_entries(bound, listing)


@contextlib.contextmanager
def bind_source(source: UserSource, config_file: Path) -> Iterator[BoundSource]:
    """Yields the source, for use within the block. Modules next to the config are known there."""
    folder = Path(config_file).resolve().parent
    with find_modules_in(folder):
        try:
            digest_source_code(source, folder)  # finds the module, and each error of syntax in it
            function = _load_function(find_source_path(source), folder)
            parameters = _find_parameters(function, source.type)
        except ConfigError as error:
            place = locate_in_file(config_file, (*_LOCATION, "type"))
            raise ConfigError(f"{place}: {error}") from error
        problems = find_parameter_problems(parameters, source.parameters, _LOCATION)
        raise_problems(list(problems), config_file)
        values = parameters(**source.parameters)
        yield BoundSource(source.type, source.class_names, function, values, source.boxes)


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
            f"{locate_error(error)}: {type(error).__name__}: {error}"
        ) from error


def _make_bug(bound: BoundSource, fault: str) -> SourceFailed:
    file = inspect.getsourcefile(bound.function)
    return SourceFailed(f"source {bound.name} in {file} {fault}. It must yield a SourceEntry.")


def _load_function(path: str, folder: Path) -> Callable[..., Any]:
    module_name, _, attribute = path.partition(":")
    try:
        module = import_module(
            module_name, "Correct it, or install what it needs, for both Airflow and the job."
        )
    except ConfigError as error:
        raise ConfigError(f"{_KEY}: {error}") from error
    found = getattr(module, attribute, None)
    if not inspect.isfunction(found):
        known = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        raise ConfigError(
            f"{_KEY}: {module.__file__} has no function {attribute!r}"
            + (f"; {suggest_name(attribute, known)}" if known else "; it defines no function")
        )
    return found


def _find_parameters(function: Callable[..., Any], name: str) -> Any:
    parameters = find_parameters_class(function)
    if parameters is None:
        raise ConfigError(
            f"{_KEY}: {name} must take files and its parameters, "
            "`def source(files: SourceFiles, parameters: MyParameters)`, where MyParameters is a "
            "class with the decorator @parameters of beam_jobs.sources.source"
        )
    reserved = sorted(parameters.__pydantic_fields__.keys() & UserSource.model_fields.keys())
    if reserved:
        raise ConfigError(
            f"{_KEY}: {name} has a parameter {reserved[0]}, which every source has. Rename it."
        )
    return parameters
