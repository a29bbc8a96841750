"""`trainyard init PATH`: looks at a data set and writes the YAML of a pipeline for it."""

from __future__ import annotations

import math
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
import yaml
from pydantic import ValidationError

from pipeline_ops.cli.arguments import load_text, parse_overrides
from pipeline_ops.cli.commands.schema import FILE_NAME, render_schema
from pipeline_ops.cli.first_config.settings import (
    Budget,
    FirstSettings,
    choose_settings,
    fit_to_budget,
)
from pipeline_ops.cli.templates import render_template
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.contract.remarks import describe_small_splits
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.job.model_check import (
    ModelCheckRequest,
    check_training,
    measure_steps,
    plan_training,
)
from pipeline_ops.registry.weights import make_path_input
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.system.gpus import find_gpu_problem, find_gpus

if TYPE_CHECKING:
    from beam_jobs.sources.folder_view import FolderView, Question, SourceMatch
    from pipeline_ops.cli.first_config.data_summary import DataSummary

_MAX_REJECTS_SHOWN = 10
_GENERIC_NAMES = ("data", "dataset", "images", "img")
_NAMING_SOURCES = ("voc", "csv", "jsonl", "cvat")
"""The sources whose annotations name the classes and do not number them."""
_SOURCES_WITH_UNITS = ("csv", "jsonl", "parquet", "webdataset")
_MAX_NAME_LENGTH = 63
_DUMP_OPTIONS: dict[str, Any] = {"allow_unicode": True, "sort_keys": False, "width": math.inf}
_COMMENTED = re.compile("^([^\t\n]*)\t", re.MULTILINE)
_COMMENT_COLUMN, _MAX_HEAD_COLUMNS = 50, 145


def init(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="Local folder with the data, or the file in it that names the images.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.yaml",
            help="Config file to write. Default: configs/NAME.yaml, by the folder.",
        ),
    ] = None,
    source_type: Annotated[
        str | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="Type of the source, if PATH can be read in several ways.",
        ),
    ] = None,
    source_keys: Annotated[
        list[str] | None,
        typer.Option(
            "--source",
            metavar="KEY=VALUE",
            help="A key of preprocess.source, such as columns.label=breed, if the data do not "
            "tell. May be repeated.",
        ),
    ] = None,
    minutes: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Time for the whole run on this machine, to which the training is fitted.",
        ),
    ] = 20,
    no_measure: Annotated[
        bool,
        typer.Option(
            "--no-measure",
            help="Take no training steps to measure the time, for a config that another machine "
            "runs.",
        ),
    ] = False,
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Weights to begin with: a SavedModel's folder, or a file (.npz, .h5 or .keras).",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the config file.")] = False,
) -> int:
    """Look at a data set, and write the YAML of a pipeline for it.

    Finds out the kind of the data, the classes, the task and the sizes of the
    images. Reads names, annotations and a sample of the images. Writes one YAML file
    with a comment for each key. Overwrites no existing file without --force.
    """
    chosen = parse_overrides(source_keys or (), "--source", "columns.label=breed")
    found = _look(path, source_type, chosen, output)
    exists = ConfigError(
        f"{found.output}: already exists. Add --force, or choose another --output."
    )
    if found.output.exists() and not force:
        raise exists
    if weights and not weights.exists():
        raise ConfigError(f"--weights {weights}: there is no such file or folder.")
    source, data = _describe_source(found, path, chosen)
    has_gpu = bool(find_gpus()) and find_gpu_problem() is None
    settings = choose_settings(data, has_gpu, weights.name if weights else "")
    own = _make_config_path(weights, weights, found.output) if weights else ""
    values = {"pipeline": found.pipeline, "source": source, "weights": own}
    render = partial(_render_config, found.match.reason, data, **values)
    text = render(settings=settings, budget=None)
    config = _check(text, found.output, data, settings, weights)
    budget = None if no_measure else _measure(config, data, settings, minutes)
    if budget:
        text = render(settings=budget.settings, budget=budget)
    try:
        file = open_path(found.output)
        (file.write if force else file.create)(text.encode())
    except FileExistsError:
        raise exists from None
    _print_findings(found, data, budget)
    return 0


class _Found(NamedTuple):
    """The data set at the path that was given, and the config for it."""

    match: SourceMatch
    view: FolderView
    folder: Path
    """The folder of the source, which may be below the path."""
    pipeline: str
    output: Path


def _look(
    path: Path, source_type: str | None, chosen: dict[str, Any], output: Path | None
) -> _Found:
    """Recognises the data set at a path, and names its pipeline and its config."""
    from beam_jobs.sources.folder_view import view_folder
    from beam_jobs.sources.recognition import list_recognisers, recognise

    if source_type and source_type not in (kinds := list_recognisers()):
        raise ConfigError(f"--type {source_type}: must be one of {', '.join(kinds)}.")
    view = view_folder(path, chosen=chosen)
    match = recognise(view, source_type)
    named = Path(os.path.abspath(path))
    folder = (named.parent if view.named_file else named) / match.below
    is_generic = match.below.lower() in _GENERIC_NAMES
    pipeline = make_name(output.stem if output else (named if is_generic else folder).name)
    return _Found(match, view, folder, pipeline, output or Path("configs") / f"{pipeline}.yaml")


def _describe_source(
    found: _Found, path: Path, chosen: Mapping[str, Any]
) -> tuple[dict[str, Any], DataSummary]:
    """Returns the section `preprocess.source`, and what a sample of the data has.

    Raises ConfigError with a question that the data leave open.
    """
    from beam_jobs.sources.recognition import make_question_error
    from beam_jobs.sources.tfrecord import find_class_order

    match = found.match
    in_config = _make_config_path(found.folder, path, found.output)
    source = {"type": match.type, "path": in_config, **match.keys}
    data = _read_data({**source, "path": str(found.folder)}, match, found.view, found.output)
    if question := _find_question(match, data, chosen):
        raise make_question_error(str(path), question, found.view.chosen)
    if match.type in _NAMING_SOURCES and (order := find_class_order(found.view, data.labels)):
        source["class_names"] = order
    return source, data


def _check(
    text: str, output: Path, data: DataSummary, settings: FirstSettings, weights: Path | None
) -> PipelineConfig:
    """Reads the config that is to be written, and tries the weights with its model."""
    problem = f"{output}: was not written, because the config would be invalid"
    config = load_text(text, output.name, problem)
    if weights:
        make_path_input(weights.absolute())
        training = plan_training(config, sys.executable).model_copy(
            update={"config_file": str(output), "weights": str(weights.absolute())}
        )
        check_training(training, **_list_data_facts(data, settings))
    return config


def _measure(
    config: PipelineConfig, data: DataSummary, settings: FirstSettings, minutes: int
) -> Budget:
    """Takes some training steps, and fits the training to the time."""
    print("Taking a few training steps to measure the time (10 to 20 s) ...", flush=True)
    train, facts = config.train.model_dump(mode="json"), _list_data_facts(data, settings)
    request = ModelCheckRequest(config_file=str(config.file), train=train, **facts)
    return fit_to_budget(settings, data, measure_steps(request), minutes)


def _list_data_facts(data: DataSummary, settings: FirstSettings) -> dict[str, Any]:
    """The facts about a data set that a model is built for."""
    shape = (settings.height, settings.width, settings.channels)
    return {"task": data.task, "num_classes": len(data.labels), "image_shape": shape}


def _print_findings(found: _Found, data: DataSummary, budget: Budget | None) -> None:
    written = [str(found.output), *_write_schema(found.output.parent / FILE_NAME)]
    print(_make_printable(str(found.folder)))
    for name, fact in _list_facts(found.match, data, budget, found.view.is_complete):
        print(f"  {name:<10}{_make_printable(fact)}")
    command = f"trainyard {{}} {found.output}"
    print(f"\nWrote {', '.join(written)}\n\nNext:  {command.format('validate')} --deep")
    print(f"       {command.format('preview')}\n       {command.format('run')}")


def _write_schema(file: Path) -> Iterator[str]:
    """Writes the JSON schema that the config names, if it is missing or another one.

    Yields the words about it.
    """
    text = render_schema()
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        open_path(file).write(text.encode())
        yield f"and {file}, by which editors check and explain it"


def _find_question(
    match: SourceMatch, data: DataSummary, chosen: Mapping[str, Any]
) -> Question | None:
    """A doubt about the pictures that boxes are for."""
    from beam_jobs.sources.folder_view import Question
    from beam_jobs.sources.wording import count

    if data.num_unclear:
        text = (
            f"{count(data.num_unclear, 'image')} of {data.total:,} are turned by EXIF, and the "
            "annotations do not tell whether their boxes were drawn on the turned picture "
            "(upright, as most tools show it) or on the stored one"
        )
        choices = [{"boxes.drawn_on": each} for each in ("upright", "stored")]
        return Question(text, choices, match.type)
    has_units = match.type in _SOURCES_WITH_UNITS and "units" not in chosen
    if has_units and (text := data.sample.describe_corner()):
        return Question(f"{text}, or say that they are right", [{"units": "pixels"}], match.type)
    return None


def _render_config(reason: str, data: DataSummary, **values: Any) -> str:
    """Returns the YAML, with the comments in one column."""
    text = render_template(
        "first_config.yaml",
        reason=textwrap.wrap(_make_printable(f"{reason}."), _MAX_HEAD_COLUMNS - 2),
        data=data,
        schema_name=FILE_NAME,
        number="{:,}".format,
        make_printable=_make_printable,
        dump=partial(yaml.safe_dump, default_flow_style=True, **_DUMP_OPTIONS),
        **values,
    )
    return _COMMENTED.sub(lambda line: f"{line[1]:<{_COMMENT_COLUMN}} ", text)


def _make_config_path(target: Path, given: Path, output: Path) -> str:
    """The path for the config: relative to its folder if it was given as a relative one."""
    return str(target) if given.is_absolute() else os.path.relpath(target, output.parent.absolute())


def make_name(folder: str) -> str:
    """The name of a pipeline for the data in a folder of this name."""
    name = re.sub(r"[^a-z0-9]+", "_", folder.lower()).strip("_")[:_MAX_NAME_LENGTH].strip("_")
    return name or "my_data"


def _read_data(
    source: dict[str, Any], match: SourceMatch, view: FolderView, output: Path
) -> DataSummary:
    """Reads the data set as the job would. Raises DataError for values that no source may have."""
    from beam_jobs.sources.parsing import escape_surrogates
    from pipeline_ops.cli.first_config.data_summary import summarise

    place = str(source["path"])
    if "{" in place or "}" in place:
        raise DataError(
            f"{place}: a bracket in the path of a source stands for the data interval of a run. "
            "Rename the folder."
        )
    if (shown := escape_surrogates(place)) != place:
        raise DataError(f"{shown}: a path in a YAML file must be UTF-8. Rename the folder.")
    try:
        return summarise(source, view.enter(match.below), output)
    except ValidationError as error:
        found = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        raise DataError(
            f"{place}: this is data for `type: {match.type}` ({match.reason}), but a config "
            f"for it cannot be made: {'; '.join(found)}. Write preprocess.source by hand "
            "(docs/data-sources.md)."
        ) from None


def _list_facts(
    match: SourceMatch, data: DataSummary, budget: Budget | None, is_complete: bool
) -> Iterator[tuple[str, str]]:
    """The lines about a data set and the training, each with the word before it."""
    from beam_jobs.sources.wording import join_names

    certainty = "certain" if match.is_certain else "likely"
    yield "source", f"{match.type} ({certainty}): {match.reason}"
    yield from (("inferred", note) for note in match.notes)
    yield "task", data.task
    yield "classes", f"{len(data.labels):,}: {data.describe_classes()}"
    yield "images", f"{data.describe_splits()}; {data.sample.describe_sizes()}"
    yield from (("sampled", remark) for remark in data.remarks)
    yield from (("look at", note) for note in data.notes)
    yield from (("too few", warning) for warning in describe_small_splits(data.num_images))
    if data.untested:
        names = join_names(data.untested, 3) + (" classes" if len(data.untested) > 3 else "")
        tests = f"no test image of {names} (the first image of a class is for training), so no"
        yield "too few", f"{tests} figure says how well these are recognised. Add images"
    if not is_complete:
        yield "sampled", "only a part of the names in the folder was listed"
    if data.found.rejected:
        yield "rejected", data.found.describe_rejects()
    for each in data.sample.rejected[:_MAX_REJECTS_SHOWN]:
        yield "rejected", f"{each.key}: {each.reason}, {each.detail}"
    if (hidden := len(data.sample.rejected) - _MAX_REJECTS_SHOWN) > 0:
        yield "rejected", f"{hidden:,} more images that `decode` rejects"
    if budget:
        yield "time", budget.describe()
    if budget and budget.shortage:
        yield "too short", budget.shortage


def _make_printable(text: str) -> str:
    """Escapes control characters, which would end a comment or move a cursor."""
    escape = "unicode_escape"
    return "".join(one if one.isprintable() else one.encode(escape).decode() for one in text)
