"""A transform of Apache Beam as a source: runs it once, and stores the entries that it yields.

    [Create(parts of the input) | ReadEntries] | the user's transform | StoreEntries | ToList

Everything is below the job's work folder, in the same store as the data set, so that workers on any
host can reach it. A new try of the job, its plan, its deltas and its quarantine all see one result:

    input.jsonl             the entries of `source.input`, if the config has it
    entries/<id>.jsonl      the entries of one bundle of elements, a line each
    entries/<id>.images     their images one after another, if the transform yields bytes
    names.json              the ids that count, written last. A bundle that failed leaves others

No bytes of an image cross a shuffle, unless the transform itself has one.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import inspect
import json
import logging
import os
import sys
import tempfile
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import IO, Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue
from pydantic import BaseModel, TypeAdapter

from beam_jobs.exchange import Exchange, ProgressReporter
from beam_jobs.graph import run_embedded
from beam_jobs.io.raw import PackedImage, Raw
from beam_jobs.planning.plan import Record
from beam_jobs.sources import read_records
from beam_jobs.sources.folder_view import view_folder
from beam_jobs.sources.source import SourceEntry, SourceFailed, SourceRecords
from beam_jobs.sources.user_source import BoundSource, bind_source, collect_entries
from beam_jobs.stages.boxes import BoxFrame
from beam_jobs.stages.stage import Box
from pipeline_ops.config.sources import BeamSource
from pipeline_ops.errors import ConfigError, DataError, MachineError, TrainyardError
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.raw_file import RawFile, compute_digest, to_raw_key
from pipeline_ops.raw_data.remote import RemoteFolder
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.request_cache import map_requests
from pipeline_ops.storage.store_path import StorePath

_INPUT, _ENTRIES, _NAMES = "input.jsonl", "entries", "names.json"
_PART_ENTRIES = 1000
_NO_FILES = "No files found based on the file pattern"
_RAW: TypeAdapter[Raw] = TypeAdapter(Raw)
_log = logging.getLogger(__name__)

Run = Callable[[Callable[[beam.Pipeline], object]], None]
"""Runs the pipeline that a function fills, to its end."""
FindFault = Callable[[], ConfigError | None]


class _Names(BaseModel, frozen=True):
    names: list[str]


def read_transformed(
    source: BeamSource,
    listing: Listing,
    config_file: Path,
    exchange: Exchange,
    run: Run,
    find_fault: FindFault = lambda: None,
) -> tuple[Listing, SourceRecords]:
    """The records that a transform yields, and the listing of the files that hold their images.

    These are the raw files, or those stored here if the transform yields bytes. `run` is called
    once for each exchange. `find_fault` tells each worker whether it may do the work.
    """
    inner = source.input_source
    given = read_records(inner, listing, source.boxes) if inner else None
    with bind_source(source, config_file) as bound:
        if not (exchange.folder / _NAMES).exists():
            run(partial(_build_graph, bound, str(listing.folder), given, exchange, find_fault))
        names = exchange.read(_Names, _NAMES).names
        stored = _list_images(exchange.folder / _ENTRIES, names)
        read = partial(_read_entries, exchange.folder / _ENTRIES, names, stored, bound.name)
        listing = stored if stored.files else listing
        found = collect_entries(bound._replace(function=read), listing)
    if given is None:
        return listing, found
    _log.info("%s: %d entries of %d", bound.name, len(found.records), len(given.records))
    rejected = sorted([*found.rejected, *given.rejected], key=attrgetter("key"))
    labels = {**given.rejected_labels, **found.rejected_labels}
    return listing, SourceRecords(found.records, rejected, labels, given.class_numbers)


def read_transformed_here(
    source: BeamSource, listing: Listing, config_file: Path
) -> tuple[Listing, SourceRecords]:
    """Runs a transform in this process, for commands. The result is kept until the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="trainyard-transform-")
    atexit.register(folder.cleanup)
    exchange = Exchange(open_root(folder.name))
    run = make_run_here(exchange, lambda _: None)
    return read_transformed(source, listing, config_file, exchange, run)


def make_run_here(exchange: Exchange, report: Callable[[int], None]) -> Run:
    """Runs pipelines on this host. `report` gets the number of entries that are stored."""

    def run(build: Callable[[beam.Pipeline], object]) -> None:
        if error := run_embedded(build, exchange, lambda: report(exchange.count_done())):
            raise _explain(error) from error

    return run


def _explain(error: BaseException) -> TrainyardError:
    """Beam's own error has only the text of the author's, which is in its context."""
    if isinstance(error, TrainyardError):
        return error
    cause = error.__context__ or error
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "apache_beam" not in frame.filename] or frames
    place, kind = f"{own[-1].filename}:{own[-1].lineno}", type(cause).__name__
    text = f"preprocess.source.transform failed in {place}: {kind}: {cause}"
    if _NO_FILES in str(cause):  # Beam's readers raise a plain OSError
        return DataError(f"{text}. Correct the parameter that names it, or put the file there.")
    return MachineError(f"{text}. Retry.") if isinstance(cause, OSError) else SourceFailed(text)


def _build_graph(
    bound: BoundSource,
    folder: str,
    given: SourceRecords | None,
    exchange: Exchange,
    find_fault: FindFault,
    pipeline: beam.Pipeline,
) -> None:
    """Adds a transform on a folder, or on the records of another source."""
    exchange.clear()
    entries: Any = pipeline
    if given:
        file = exchange.folder / _INPUT
        entries = (
            pipeline
            | "Parts of the input" >> beam.Create(_write_input(given.records, file))
            | "Spread the input" >> beam.Reshuffle()
            | "Read entries" >> beam.FlatMap(_read_part, file)
        )
    make: Any = bound.function
    has_parameters = len(inspect.signature(make).parameters) > 1
    transform = make(folder, bound.parameters) if has_parameters else make(folder)
    name = f"preprocess.source.transform: {bound.name}"
    if not isinstance(transform, beam.PTransform):
        raise ConfigError(f"{name} is a {type(transform).__name__} and no PTransform of Beam.")
    made = entries | "Transform" >> transform
    if not isinstance(made, beam.PCollection):
        raise ConfigError(f"{name} yields a {type(made).__name__} and no PCollection of entries.")
    _ = (
        made
        | "Store entries" >> beam.ParDo(StoreEntries(exchange, bound.name, find_fault))
        | "List the files" >> beam.combiners.ToList()
        | "Store the list" >> beam.Map(_write_names, exchange.folder / _NAMES)
    )


def _write_names(names: list[str], file: StorePath) -> None:
    """Stores the list of the ids. If two workers do this step, each has the whole list."""
    file.write(_Names(names=sorted(names)).model_dump_json().encode())


class StoreEntries(beam.DoFn):  # type: ignore[misc]  # Beam is skipped by mypy
    """Stores the entries of a bundle, and yields the name of their file when it is whole."""

    def __init__(self, exchange: Exchange, transform: str, find_fault: FindFault):
        self._exchange, self._transform, self._find_fault = exchange, transform, find_fault

    def setup(self) -> None:
        if fault := self._find_fault():
            self._exchange.write_error("the transform's entries", fault)
            raise fault

    def start_bundle(self) -> None:
        self._name, self._open = uuid.uuid4().hex, contextlib.ExitStack()
        self._reporter = ProgressReporter(self._exchange, self._name)
        self._lines, self._images = self._create("jsonl"), list[IO[bytes]]()

    def _create(self, suffix: str) -> IO[bytes]:
        path = self._exchange.folder / _ENTRIES / f"{self._name}.{suffix}"
        return self._open.enter_context(path.open_for_writing())

    def process(self, entry: Any) -> None:
        with self._leave_errors():
            if not isinstance(entry, SourceEntry):
                fault = f"the transform {self._transform} yielded a {type(entry).__name__}"
                raise SourceFailed(fault, "It must yield a SourceEntry.")
            image = None
            if (encoded := entry.encoded) is not None:
                self._images = self._images or [self._create("images")]
                image = self._images[0].tell(), len(encoded), compute_digest(encoded)
                self._images[0].write(encoded)
            self._lines.write(_to_line(entry, image))
            self._reporter.add(is_rejected=False)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        with self._leave_errors():
            self._open.close()
        yield GlobalWindows.windowed_value(self._name)

    @contextlib.contextmanager
    def _leave_errors(self) -> Iterator[None]:
        """Leaves an error of the block for the driver, and no part of a file."""
        try:
            yield
        except Exception as error:
            self._open.__exit__(*sys.exc_info())
            if isinstance(error, TrainyardError | OSError):
                self._exchange.write_error("the transform's entries", error)
            raise


def _to_line(entry: SourceEntry, image: tuple[int, int, int] | None = None) -> bytes:
    """An entry as a line of JSON. `image` is the offset, size and digest of its bytes."""
    values = {field.name: getattr(entry, field.name) for field in dataclasses.fields(entry)}
    if isinstance(entry.path, Raw):
        values["path"] = _RAW.dump_python(entry.path)
    if entry.boxes is not None:
        values["boxes"] = [vars(box) if isinstance(box, Box) else box for box in entry.boxes]
    try:
        return json.dumps(values | {"encoded": image}, default=_to_plain).encode() + b"\n"
    except (TypeError, ValueError) as error:
        shown = dataclasses.replace(entry, encoded=None)
        raise SourceFailed(f"an entry has {error} and not text and numbers: {shown!r}") from None


def _to_plain(value: Any) -> Any:
    """Lists and numbers for what numpy has."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__}")


def _parse_line(line: bytes, images: RawFile | None = None) -> SourceEntry:
    """The entry in a line of `_to_line`, whose bytes are in a file of images."""
    try:
        values = json.loads(line)
        path, boxes, encoded = values["path"], values["boxes"], values.pop("encoded")
        if encoded is not None and images is not None:
            offset, num_bytes, digest = map(int, encoded)
            key = to_raw_key(os.fsencode(path)) if isinstance(path, str) else repr(path)
            values["path"] = PackedImage(key, num_bytes, digest, images, offset)
        elif isinstance(path, dict):
            values["path"] = _RAW.validate_python(path)
        if boxes is not None:
            values["boxes"] = [Box(**box) if isinstance(box, dict) else box for box in boxes]
        return SourceEntry(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise MachineError(f"a stored entry is damaged: {error!s:.200}. Retry.") from None


def _write_input(records: Iterable[Record], file: StorePath) -> Sequence[tuple[int, int]]:
    """Writes the entries of records. Returns the ranges of the file that are read together."""
    parts, start, position = [], 0, 0
    with file.open_for_writing() as opened:
        for number, record in enumerate(records, start=1):
            frame = record.frame or BoxFrame()
            label = record.label if record.boxes is None else None
            given = record.split, record.group, frame.size
            entry = SourceEntry(record.file, label, record.boxes, *given, drawn_on=frame.drawn_on)
            position += opened.write(_to_line(entry))
            if number % _PART_ENTRIES == 0:
                parts.append((start, position - start))
                start = position
    return [*parts, (start, position - start)] if position > start else parts


def _read_part(part: tuple[int, int], file: StorePath) -> Iterator[SourceEntry]:
    return map(_parse_line, file.read_range(*part).splitlines())


def _list_images(folder: StorePath, names: Sequence[str]) -> Listing:
    """The files of images. Each image was digested when it was stored, and no whole file is."""
    place = folder.local if folder.is_local else RemoteFolder(str(folder))
    files: Sequence[RawFile] = ()
    if names:
        files = view_folder(place).files if isinstance(place, Path) else place.list_files()
    wanted = {f"{name}.images" for name in names}
    return Listing(place, tuple(file for file in files if file.key in wanted))


def _read_entries(
    folder: StorePath, names: Sequence[str], listing: Listing, transform: str, *_: object
) -> Iterator[SourceEntry]:
    """Reads the result of a transform, like the function of a source."""
    images = {file.key: file for file in listing.files}
    files = [folder / f"{name}.jsonl" for name in names]
    contents = map_requests(lambda file: b"".join(file.read_blocks()), files)
    for name, content in zip(names, contents, strict=True):
        own = images.get(f"{name}.images")
        for line in content.splitlines():
            entry = _parse_line(line, own)
            if images and (own is None or getattr(entry.path, "container", None) is not own):
                fault = f"gave the bytes of some images, and not of {entry.path!r:.80}"
                cure = "Give those of all, or of none."
                raise SourceFailed(f"the transform {transform} {fault}", cure)
            yield entry
