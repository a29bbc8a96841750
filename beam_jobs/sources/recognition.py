"""Recognises the kind of a data set in a folder, for `trainyard init`.

Each source has a recogniser, `recognise` beside its reader. It yields a match for each place where
the source fits, with a reason and a certainty. If files are of its kind, but the source cannot read
them as they are, it yields the reason in plain words, with the cure, and a question if it can read
them in several ways. The best match wins. No job uses this module.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import posixpath
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from beam_jobs.sources import CATALOGUE
from beam_jobs.sources.folder_view import MAX_CANDIDATES, FolderView, Question, SourceMatch
from beam_jobs.sources.parsing import decode_text
from beam_jobs.sources.wording import count
from pipeline_ops.config.reading import parse_value
from pipeline_ops.config.sources import ENTRY_POINT_GROUP
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.raw_data.raw_file import RawFile

Recogniser = Callable[[FolderView], Iterator[SourceMatch | Question | str]]
_MAX_SHOWN = 5
_NAME = "Name the folder or the file that you mean."
_DATUM = "Convert it: datum convert -if {} -i {{}} -f coco -o {{}}-coco -- --save-media"
_FIFTYONE = (
    "Convert it: fiftyone convert --input-dir {} --input-type fiftyone.types.FiftyOneDataset "
    "--output-dir {}-coco --output-type fiftyone.types.COCODetectionDataset"
)
_OWN = "Write a source of your own: trainyard new source my_source (docs/add-a-source.md)"
_OTHER_TOOLS: Mapping[str, tuple[set[str], str]] = {
    # The keys of a file of JSON, or of its first item or line, and the cure for a folder.
    "Supervisely": ({"size", "tags", "objects"}, 'Export it with Supervisely\'s "Export to COCO"'),
    "Datumaro": ({"categories", "items"}, _DATUM.format("datumaro")),
    "FiftyOne": ({"samples"}, _FIFTYONE),
    "Cityscapes": ({"imgHeight", "imgWidth", "objects"}, _DATUM.format("cityscapes")),
    "Edge Impulse": ({"version", "boundingBoxes"}, _OWN),
    "SageMaker Ground Truth": ({"source-ref"}, _OWN),
    "Labelbox": ({"data_row", "projects"}, _OWN),
}
_TEXTS: Mapping[str, tuple[re.Pattern[str], str]] = {
    "KITTI": (re.compile(r"[A-Za-z]\w*( -?[\d.]+){14,15}\s"), _DATUM.format("kitti_detection")),
    "DOTA": (re.compile(r"(imagesource:.*\n)?(gsd:.*\n)?([\d.]+ ){8}[\w-]+ [012]\s"), _OWN),
}
_ARCHIVES = {".zip": "unzip {0} -d {1}", ".tar.gz": "mkdir -p {1} && tar -xzf {0} -C {1}"}


def list_recognisers() -> dict[str, tuple[Recogniser, str]]:
    """The recognisers by the type of their source, each with the content of a folder that fits.

    A source of the user's own that is published as an entry point takes part if its module has a
    function `recognise`. Raises DataError if the module cannot be imported.
    """
    found: dict[str, tuple[Recogniser, str]] = {
        name: (entry.module.recognise, entry.needs)
        for name, entry in CATALOGUE.items()
        if entry.needs
    }
    for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            module = importlib.import_module(point.module)
        except Exception as error:  # code of the user's own raises anything
            package = point.dist.name if point.dist else point.module
            raise DataError(
                f"the source {point.name} of the installed package {package} cannot be imported: "
                f"{type(error).__name__}: {error}. Correct or remove the package."
            ) from None
        if look := getattr(module, "recognise", None):
            lines = (module.__doc__ or "").strip().splitlines()
            found[point.name] = look, lines[0].rstrip(".") if lines else "a source of your own"
    return found


def recognise(view: FolderView, only: str | None = None) -> SourceMatch:
    """Finds the kind of a data set. `only` is one of `list_recognisers`, if the user chose it.

    The keys that the user has given are in the match. Raises DataError if no kind fits, or several
    fit equally. It says what the folder holds.
    """
    place = str(view.folder / (view.named_file or ""))
    if not view.files:
        found = f" ({view.rejected[0].key}: {view.rejected[0].detail})" if view.rejected else ""
        raise DataError(
            f"{place}: there are no files{found}. Name a folder with images and their labels or "
            "boxes."
        )
    kinds = list_recognisers()
    kinds = {only: kinds[only]} if only else kinds
    looks = [(name, look) for name, (find, _) in kinds.items() for look in find(view)]
    matches = [look for _, look in looks if isinstance(look, SourceMatch)]
    certain = [match for match in matches if match.is_certain]
    questions = [look for _, look in looks if isinstance(look, Question)]
    if questions and not certain:  # a likely match does not answer it
        raise make_question_error(place, questions[0], view.chosen)
    if not matches:
        needs = {name: text for name, (_, text) in kinds.items()}
        raise DataError("\n".join(_describe_folder(view, place, looks, needs)))
    winners = certain or matches
    if len(winners) > 1:
        is_same_type = len({each.type for each in winners}) < len(winners)
        lines = (
            f"  {each.type:<14}{f'in {each.below}: ' if each.below else ''}{each.reason}\n"
            for each in winners
        )
        raise DataError(
            f"{place}: {len(winners)} kinds of data fit equally.\n{''.join(lines)}"
            + (_NAME if is_same_type else "Choose one of them with --type.")
        )
    return winners[0]._replace(keys=merge_keys(winners[0].keys, view.chosen))


def make_question_error(place: str, question: Question, given: Mapping[str, Any]) -> DataError:
    """The question about the data in a place, with a command for each of its answers.

    `given` are answers to earlier questions.
    """
    lines = [f"{place}: {question.reason}. Say which one it is:"]
    for choice in question.choices:
        words = ["trainyard", "init", place, "--type", question.type]
        for key, value in {**given, **choice}.items():
            words += ["--source", f"{key}={_to_yaml(value)}"]
        lines.append(f"  {shlex.join(words)}")
    return DataError("\n".join(lines))


def _to_yaml(value: Any) -> str:
    """The value as YAML in one line, in quotes where it would be read as something else."""
    try:
        is_plain = isinstance(value, str) and parse_value(value) == value
    except ConfigError:
        is_plain = False
    return value if is_plain else json.dumps(value, ensure_ascii=False)


def _recognise_other_tools(view: FolderView) -> Iterator[str]:
    """The layouts that no source reads, once each, with the command that makes them readable."""
    folder = shlex.quote(str(view.folder))
    for file in view.list_candidates(*_ARCHIVES)[:MAX_CANDIDATES]:
        suffix = next(each for each in _ARCHIVES if file.key.lower().endswith(each))
        path = str(view.folder / file.key)
        names = shlex.quote(path), shlex.quote(path[: -len(suffix)])
        yield f"{file.key} is an archive. Unpack it: {_ARCHIVES[suffix].format(*names)}"
    found = dict[str, tuple[str, str]]()
    suffixes = (".json", ".ndjson", ".jsonl", ".manifest", ".labels")
    for file in view.list_candidates(*suffixes)[:MAX_CANDIDATES]:
        keys = _read_keys(view, file)
        fits = {name: cure for name, (needed, cure) in _OTHER_TOOLS.items() if needed <= keys}
        found.update((name, (file.key, cure)) for name, cure in fits.items())
    for file, start in view.iterate_starts(".txt"):
        text = decode_text(start, "replace")
        fits = {name: cure for name, (line, cure) in _TEXTS.items() if line.match(text)}
        found.update((name, (file.key, cure)) for name, cure in fits.items())
    for name, (key, cure) in found.items():
        yield f"{key} is of {name}, which no source reads. {cure.format(folder, folder)}"


def _read_keys(view: FolderView, file: RawFile) -> set[str]:
    """The keys of a file of JSON, or of the first item of its list, or of its first line."""
    try:
        value = json.loads(decode_text(view.read_start(file)).partition("\n")[0])
    except (ValueError, RecursionError):
        value = view.read_json(file)
    value = value[0] if isinstance(value, list) and value else value
    return set(value) if isinstance(value, dict) else set()


def _describe_folder(
    view: FolderView, place: str, looks: list[tuple[str, Any]], needs: Mapping[str, str]
) -> Iterator[str]:
    """The lines of the message for a folder that no source can read."""
    suffixes = Counter(
        posixpath.splitext(file.key)[1].lower() or "without suffix" for file in view.files
    )
    shown = ", ".join(f"{number:,} {name}" for name, number in suffixes.most_common(_MAX_SHOWN))
    number = ("" if view.is_complete else "more than ") + count(len(view.files), "file")
    first = ", ".join(file.key for file in view.files[:_MAX_SHOWN])
    yield (
        f"{place}: this is no data set that can be used as it is. It has {number} ({shown}), for "
        f"example {first}."
    )
    near = [f"  {tool}." for tool in _recognise_other_tools(view)]
    near += [f"  {name:<14}{look}." for name, look in looks]
    yield from ["What comes near:", *near] if near else []
    yield "What each source needs:"
    yield from (f"  {name:<14}{text}" for name, text in needs.items())
    yield "docs/data-sources.md describes the sources."


def merge_keys(keys: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The keys with those that the user has given, `columns.label` in the section `columns`."""
    merged = dict(keys)
    for name, value in chosen.items():
        section, _, inner = name.partition(".")
        before = merged.get(section, {})
        before = {"field": before} if isinstance(before, str) else before  # of boxes, in short
        merged[section] = {**before, inner: value} if inner else value
    return merged
