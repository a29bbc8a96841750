"""Runs the stages of a config on one example, and maps the class names through them."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from beam_jobs.stages.stage import Example, LazyImage, Reject, Rejected, Skip, Stage
from pipeline_ops.errors import ConfigError, TrainyardError
from pipeline_ops.user_code.modules import locate_error


class StageFailed(TrainyardError):
    """A bug in a stage: it raised an unexpected exception, or returned no example."""


@dataclasses.dataclass(frozen=True)
class BoundStage:
    """A stage with its parameters, ready to run."""

    name: str
    stage: Stage
    parameters: Any

    def __call__(self, example: Example) -> list[Example]:
        """Runs the stage on one example. Raises StageFailed if the stage has a bug."""
        try:
            result = self.stage.function(example, self.parameters)
        except (Reject, Rejected, Skip, ConfigError, MemoryError):
            raise
        except Exception as error:
            raise StageFailed(
                f"stage {self.name} failed on {example.key}, in {locate_error(error)}: "
                f"{type(error).__name__}: {error}"
            ) from error
        examples = result if isinstance(result, list) else [result]
        if (fault := _find_fault(examples)) is not None:
            raise StageFailed(
                f"stage {self.name} returned {fault} for {example.key}; "
                "it must return an Example whose image is uint8 [height, width, 1 or 3]"
            )
        return examples


def _find_fault(examples: list[Any]) -> str | None:
    if not examples:
        return "an empty list (to leave an example out, raise Skip)"
    for example in examples:
        if not isinstance(example, Example):
            return f"a {type(example).__name__}"
        image = example.pixels
        if not isinstance(image, LazyImage) and (
            getattr(image, "ndim", 0) != 3
            or image.dtype != "uint8"
            or image.shape[2] not in (1, 3)
            or not image.size
        ):
            return (
                f"an image of {getattr(image, 'dtype', type(image).__name__)} "
                f"{list(getattr(image, 'shape', ()))}"
            )
    if len(examples) > 1 and len({example.key for example in examples}) < len(examples):
        return "two examples with one key"
    return None


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
    """The class names after all stages, in the order in which they first come.

    Dropped classes are left out, and renamed classes have their new names.
    """
    names = list(class_names)
    for stage in stages:
        if map_class := stage.stage.map_class:
            renamed = [map_class(name, stage.parameters) for name in names]
            names = list(dict.fromkeys(name for name in renamed if name is not None))
    return names
