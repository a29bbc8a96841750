"""The catalogue of stages, and the checks of the stages of a config.

A stage is a file in this folder and a line here. `docs/add-a-stage.md` shows how to add one. This
module imports neither Beam nor numpy nor OpenCV, because the DAG file uses it to check the stages
of every config.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import time
import types
import typing
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from beam_jobs.stages import clip_boxes, decode, encode, equalize, filter, map_classes, resize, tile
from beam_jobs.stages.stage import Example, Reject, Rejected, Skip, Stage
from pipeline_ops.config.preprocess import Preprocess, StageConfig
from pipeline_ops.config.reading import locate_in_file, suggest_name
from pipeline_ops.config.validation import describe_problem
from pipeline_ops.contract.dataset import StageFigures
from pipeline_ops.contract.source_code import digest_file
from pipeline_ops.errors import ConfigError, TrainyardError
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.user_code import stages as user_stages
from pipeline_ops.user_code.modules import import_module, locate_error

_Problem = tuple[tuple[str | int, ...], str]
"""The location of a value in the config, and the rule that it breaks."""

CATALOGUE: dict[str, Stage] = {
    # The key is the name in the YAML and of the file. The value holds parameters and function.
    "decode": Stage(decode.Decode, decode.decode, serve=decode.serve),
    "filter": Stage(filter.Filter, filter.filter, map_class=filter.map_class, check=filter.check),
    "map_classes": Stage(
        map_classes.MapClasses,
        map_classes.map_classes,
        map_class=map_classes.map_class,
        check=map_classes.check,
    ),
    "clip_boxes": Stage(clip_boxes.ClipBoxes, clip_boxes.clip_boxes, check=clip_boxes.check),
    "tile": Stage(tile.Tile, tile.tile, serve=tile.serve, splits=True),
    "resize": Stage(resize.Resize, resize.resize, serve=resize.serve),
    "equalize": Stage(equalize.Equalize, equalize.equalize, serve=equalize.serve),
    "encode": Stage(encode.Encode, encode.encode),
}

BUILT_IN = frozenset(
    ("decode", "filter", "map_classes", "clip_boxes", "tile", "resize", "equalize", "encode")
)
"""The stages that come with Trainyard. Those that are added to the catalogue are a user's."""


def find_stage(name: str) -> Stage:
    """Returns the stage with this name, of the catalogue, an installed package or a module path."""
    if stage := CATALOGUE.get(name) or load_stage(name):
        return stage
    rule = f"unknown stage; {suggest_name(name, [*CATALOGUE, *user_stages.list_published_names()])}"
    if name == "augment":
        rule += ". Random changes of training images are train.input.augment"
    raise ConfigError(rule)


@functools.lru_cache
def load_stage(name: str) -> Stage | None:
    """The stage behind a module path or an entry point, or None if the name is neither."""
    path = user_stages.find_module_path(name)
    if path is None:
        return None
    module_name, _, attribute = path.partition(":")
    cure = (
        f"Install its package, or add the folder that contains {module_name.partition('.')[0]} to "
        "PYTHONPATH, for both Airflow and the job. A stage is not looked for beside the YAML."
    )
    module = import_module(module_name, cure)
    found = getattr(module, attribute, None)
    if isinstance(found, Stage):
        return found
    if not inspect.isfunction(found):
        fault = f"the module {module_name} has no function {attribute!r}"
        raise ConfigError(f"{fault}. Name a stage as `module:function`.")
    parameters = find_parameters_class(found)
    if parameters is None:
        fault = f"{path} must take an Example and its parameters"
        example = "`def stage(example: Example, parameters: MyParameters)`"
        known = "is a class with the decorator @parameters of beam_jobs.stages.stage"
        raise ConfigError(f"{fault}, {example}, where MyParameters {known}")
    return Stage(parameters, found, serve=_find_serve(module, parameters))


def find_parameters_class(function: Any) -> Any:
    """The class with @parameters that the second argument is annotated with, or None."""
    try:
        annotation = list(inspect.signature(function).parameters.values())[1].annotation
        # The other annotations may have names that only a type checker knows.
        alone = types.SimpleNamespace(__annotations__={"it": annotation})
        names = vars(sys.modules[inspect.unwrap(function).__module__])
        parameters = typing.get_type_hints(alone, names)["it"]
    except (AttributeError, IndexError, KeyError, NameError, TypeError, ValueError):
        parameters = None
    return parameters if hasattr(parameters, "__pydantic_config__") else None


def _find_serve(module: types.ModuleType, parameters: Any) -> Any:
    """The function `serve` of the module of a stage, if it takes the parameters of that stage."""
    serve = getattr(module, "serve", None)
    if not callable(serve):
        return None
    taken = find_parameters_class(serve)
    if taken is None:
        fault = (
            f"{module.__name__}.serve, by which a published model applies a stage, must have the "
            "class of the stage's parameters as the annotation of its second argument"
        )
        example = f"`def serve(image, parameters: {parameters.__name__})`"
        raise ConfigError(f"{fault}: {example}. Give it another name if it serves no stage.")
    return serve if taken is parameters else None


def bind_stages(stages: Iterable[StageConfig], config_file: Path | None = None) -> list[BoundStage]:
    """The stages of a checked config, ready to run.

    With the file of the config, they check that they are served: one that is not may not change
    pixels of examples for validation and test.
    """
    bound = []
    for position, config in enumerate(stages):
        stage = find_stage(config.name)
        parameters = stage.parameters(**config.parameters)
        unserved_in = None if stage.serve or config.served == "by_client" else config_file
        bound.append(BoundStage(config.name, stage, parameters, position, unserved_in))
    return bound


def describe_stages(config: Preprocess) -> list[StageFigures]:
    """The stages of a checked config, with the way in which a published model applies each."""
    return [
        StageFigures(
            name=stage.name,
            parameters=stage.model_dump(mode="json")["parameters"],
            served=stage.served or ("in_graph" if find_stage(stage.name).serve else "unchanged"),
            code=digest_code(stage.name),
        )
        for stage in config.stages
    ]


def digest_code(name: str) -> str:
    """A digest of the source files of a stage. Comments and docstrings do not count."""
    if stage := CATALOGUE.get(name):
        return digest_file(Path(inspect.getfile(stage.function)))
    return compute_digest(user_stages.digest_stage_code([name]))


def check_stages(config: Preprocess, config_file: Path) -> None:
    """Checks names, parameters and order of the stages of a config. The error has all problems."""
    problems = list(_check_order([stage.name for stage in config.stages]))
    for index, stage in enumerate(config.stages):
        location = ("preprocess", "stages", index, stage.name)
        try:
            parameters = find_stage(stage.name).parameters
        except ConfigError as error:
            problems.append((location, str(error)))
        else:
            problems += find_parameter_problems(parameters, stage.parameters, location)
    raise_problems(problems, config_file)


def _check_order(names: Sequence[str]) -> Iterator[_Problem]:
    location = ("preprocess", "stages")
    if names[0] != "decode" and "decode" in names:
        yield (*location, 0), f"the first stage must be decode, got {names[0]}"
    elif names.count("decode") != 1:
        rule = "must have the stage decode exactly once, as the first"
        yield location, f"{rule}, got {', '.join(names)}"
    if "encode" in names[:-1]:
        rule = "encode must be the last stage: what comes after it would change the pixels again"
        yield (*location, names.index("encode")), rule


def check_data(
    config: Preprocess, task: str, class_names: Sequence[str], config_file: Path
) -> None:
    """Checks that stages with valid parameters can work on the task and the classes of a source."""
    stages, problems = bind_stages(config.stages, config_file), []
    is_by_client = any(each.served for each in config.stages)
    for bound in stages:
        names = map_class_names(stages[: bound.position], class_names)
        check = bound.stage.check
        if check and (problem := check(bound.parameters, task, names)):
            problems.append((bound.location, problem))
        if bound.stage.splits and task == "classification" and not is_by_client:
            fault = (
                "makes several images of one, for which a served classifier has no single answer"
            )
            cure = "Leave it to the client: write served: by_client beside its name"
            problems.append((bound.location, f"{fault}. {cure}"))
    raise_problems(problems, config_file)


def find_parameter_problems(
    parameters: Any, values: Mapping[str, Any], location: tuple[str | int, ...]
) -> Iterator[_Problem]:
    """Yields a problem for each value of a stage or a source that its class does not take."""
    try:
        parameters(**values)
    except pydantic.ValidationError as error:
        for problem in error.errors(include_url=False):
            yield (*location, *problem["loc"]), _describe_rule(problem, parameters)


def _describe_rule(problem: Mapping[str, Any], parameters: Any) -> str:
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    if problem["type"] != "unexpected_keyword_argument":
        return describe_problem(problem)
    known, name = [field.name for field in dataclasses.fields(parameters)], problem["loc"][-1]
    return f"unknown parameter; {suggest_name(str(name), known) if known else 'there are none'}"


def raise_problems(problems: Sequence[_Problem], config_file: Path) -> None:
    """Raises ConfigError with a line for each problem, if there is one."""
    lines = [
        f"{locate_in_file(config_file, location)}: {'.'.join(map(str, location))}: {rule}"
        for location, rule in problems
    ]
    if lines:
        raise ConfigError("\n".join(lines))


class StageFailed(TrainyardError):
    """A bug in a stage: it raised an unexpected exception, or returned no example."""


@dataclasses.dataclass(frozen=True)
class BoundStage:
    """A stage with its parameters, ready to run.

    `position` is its own in the config. `unserved_in` is the file of the config, for a stage that
    may not change pixels of examples for validation and test, or None.
    """

    name: str
    stage: Stage
    parameters: Any
    position: int = 0
    unserved_in: Path | None = None

    @property
    def location(self) -> tuple[str | int, ...]:
        """The place of the stage in the config."""
        return "preprocess", "stages", self.position, self.name

    def __call__(self, example: Example) -> list[Example]:
        """Runs the stage on one example.

        Raises StageFailed if the stage has a bug, and ConfigError if it changes pixels that it may
        not change.
        """
        try:
            result = self.stage.function(example, self.parameters)
        except (Reject, Skip, ConfigError, MemoryError):
            raise
        except Exception as error:
            place = f"stage {self.name} failed on {example.key}, in {locate_error(error)}"
            problem = f"{place}: {type(error).__name__}: {error}"
            raise StageFailed(problem, "Correct the stage, then retry.") from error
        examples = result if isinstance(result, list) else [result]
        if fault := _find_fault(examples):
            cure = "it must return an Example whose image is uint8 [height, width, 1 or 3]"
            raise StageFailed(f"stage {self.name} returned {fault} for {example.key}; {cure}")
        for each in examples:
            each.image.flags.writeable = False  # a later stage may not write into it
        self.check_pixels(example, examples)
        return examples

    def check_pixels(self, before: Example, after: Sequence[Example]) -> None:
        """Raises ConfigError if the stage has made a change that it may not make."""
        if self.unserved_in is None or before.split == "train" or before.pixels is None:
            return
        import numpy as np

        image = after[0].image
        if len(after) > 1:
            change = f"makes {len(after)} examples of {before.key}"
        elif image is before.image or np.array_equal(image, before.image):
            return
        else:
            change = f"changes pixels of {before.key}"
        leave = "write `served: by_client` beside its name if clients of the model run the stages"
        cures = f"Remove it, or {leave}"
        if self.name not in BUILT_IN:
            unchanged = "leave the pixels of examples for validation and test as they are"
            file = inspect.getfile(self.stage.function)
            cures = f"Write a function `serve` beside it in {file}, or {leave}, or {unchanged}"
        fault = f"{change}, but a published model would not do this to a raw image"
        page = "docs/add-a-stage.md describes how a stage is served"
        raise_problems([(self.location, f"{fault}. {cures}. {page}.")], self.unserved_in)


def _find_fault(examples: list[Any]) -> str | None:
    if not examples:
        return "an empty list (to leave an example out, raise Skip)"
    for example in examples:
        if not isinstance(example, Example):
            return f"a {type(example).__name__}"
        image: Any = example.pixels
        dtype = getattr(image, "dtype", type(image).__name__)
        shape: Any = getattr(image, "shape", ())
        if dtype != "uint8" or len(shape) != 3 or shape[2] not in (1, 3) or 0 in shape:
            return f"an image of {dtype} {list(shape)}"
    has_copies = len({example.key for example in examples}) < len(examples)
    return "two examples with one key" if has_copies else None


def run_stages(
    stages: Sequence[BoundStage],
    example: Example,
    nanoseconds: Counter[str],
    skipped: Counter[str] | None = None,
    passed: Counter[str] | None = None,
) -> list[Example]:
    """Runs one record through all stages.

    If a stage makes several examples of one, each passes all later stages before the next one
    starts: only finished examples are held. Adds the time of each stage to `nanoseconds`, and
    counts the examples that leave it in `passed`, and skipped ones in `skipped`, by
    `<stage>: <reason>`. If all examples were skipped, the list is empty. Raises Rejected: a stage
    has rejected an example, and so the record, and all examples that were made of it.
    """
    for position, stage in enumerate(stages, start=1):
        start = time.perf_counter_ns()
        try:
            examples = stage(example)
        except Reject as reject:
            raise Rejected(stage.name, reject.reason, reject.detail) from reject
        except Skip as skip:
            if skipped is not None:
                skipped[f"{stage.name}: {skip.reason}"] += 1
            return []
        finally:
            nanoseconds[stage.name] += time.perf_counter_ns() - start
        if passed is not None:
            passed[stage.name] += len(examples)
        if len(examples) > 1:
            rest = stages[position:]
            return [
                finished
                for each in examples
                for finished in run_stages(rest, each, nanoseconds, skipped, passed)
            ]
        example = examples[0]
    return [example]


def map_class_names(stages: Iterable[BoundStage], class_names: Iterable[str]) -> list[str]:
    """The class names after all stages, in the order in which they first come."""
    names = list(class_names)
    for stage in stages:
        if map_class := stage.stage.map_class:
            renamed = [map_class(name, stage.parameters) for name in names]
            names = list(dict.fromkeys(name for name in renamed if name is not None))
    return names
