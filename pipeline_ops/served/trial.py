"""Tries `serve` of a user's stages: `python -m pipeline_ops.served.trial ANSWER`.

`job/model_check.py` writes the request to its stdin before any work. Otherwise the export would be
the first to find a `serve` that does something else than its stage, after a whole training. The
process has TensorFlow, and needs none of the packages of the stages' Python functions.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from beam_jobs.stages import BoundStage, bind_stages
from pipeline_ops.config.preprocess import StageConfig
from pipeline_ops.errors import ConfigError
from pipeline_ops.job.model_check import StageTrial, StageTrials
from pipeline_ops.served.preprocessing import serve_stage
from pipeline_ops.served.references import MAX_MEAN, MAX_TAIL, TAIL_PERCENT, compare_pixels
from pipeline_ops.storage.local_files import write_json
from pipeline_ops.storage.read_errors import summarize_error

if TYPE_CHECKING:
    import tensorflow as tf

_PYTHON_OPERATIONS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
_MAX_BOX_DIFFERENCE = 0.02
"""Of a side of the image."""


def try_stage(trial: StageTrial) -> None:
    """Raises ConfigError if `serve` of the stage fails, or does something else than the stage."""
    import tensorflow as tf

    [stage] = bind_stages([StageConfig(name=trial.name, parameters=trial.parameters)])
    with np.load(trial.arrays, allow_pickle=False) as arrays:
        names = itertools.takewhile(arrays.__contains__, (f"after_{i}" for i in itertools.count()))
        before, after = arrays["before"], [arrays[name] for name in names]
        boxes = [arrays[name] for name in ("boxes_before", "boxes_after")]
    channels = after[0].shape[2]
    run = tf.function(lambda image: serve_stage(stage, image, channels), autograph=False)
    traced = run.get_concrete_function(tf.TensorSpec([None, None, before.shape[2]], tf.uint8))
    if _list_operations(traced) & _PYTHON_OPERATIONS:
        raise ConfigError(
            "calls Python while it runs (tf.numpy_function or tf.py_function), which a server "
            "cannot do. Use operations of TensorFlow"
        )
    try:
        image, window = traced(tf.constant(before))
    except tf.errors.OpError as error:
        raise ConfigError(f"failed on {trial.key}: {summarize_error(error)}") from error
    _check_pixels(trial, stage, image.numpy(), after)
    if len(boxes[0]) and not stage.stage.splits:
        _check_window(trial, window, before.shape == after[0].shape, *boxes)


def _list_operations(traced: tf.types.experimental.ConcreteFunction) -> set[str]:
    graph = traced.graph.as_graph_def()
    nodes = itertools.chain(graph.node, *(each.node_def for each in graph.library.function))
    return {node.op for node in nodes}


def _check_pixels(
    trial: StageTrial, stage: BoundStage, made: np.ndarray, after: list[np.ndarray]
) -> None:
    served = made if stage.stage.splits else made[np.newaxis]
    if len(served) != len(after):
        raise ConfigError(
            f"makes {len(served)} images of {trial.key}, the stage makes {len(after)}"
        )
    for one, other in zip(served, after, strict=True):
        if one.shape != other.shape:
            raise ConfigError(f"makes {one.shape} of {trial.key}, the stage makes {other.shape}")
        found = compare_pixels(one, other)
        if not found.is_allowed:
            raise ConfigError(
                f"makes other pixels of {trial.key} than the stage: they differ by "
                f"{found.mean:.2f} of 255 in the mean, at most {MAX_MEAN:g} are allowed, and by "
                f"{found.tail:.0f} in the {TAIL_PERCENT}th percentile, at most {MAX_TAIL:g}"
            )


def _check_window(
    trial: StageTrial,
    window: tf.Tensor | None,
    has_same_size: bool,
    before_B4: np.ndarray,
    after_B4: np.ndarray,
) -> None:
    if window is None and not has_same_size:
        raise ConfigError("must return the image and its window, see docs/add-a-stage.md")
    low, high = np.split(np.array([0, 0, 1, 1]) if window is None else window.numpy(), 2)
    mapped_B4 = np.tile(low, 2) + after_B4 * np.tile(high - low, 2)
    if np.abs(mapped_B4 - before_B4).max() > _MAX_BOX_DIFFERENCE:
        raise ConfigError(
            f"returns a window that maps boxes of {trial.key} to other places than the stage "
            "took them from, see docs/add-a-stage.md"
        )


def main() -> None:
    trials = StageTrials.model_validate_json(sys.stdin.buffer.read()).trials
    answer: dict[str, Any] = {}
    try:
        import pipeline_ops.input.tensorflow_start  # noqa: F401  (before other imports of it)
    except ImportError as error:
        answer = {"missing": f"{sys.executable} has no TensorFlow ({error})"}
        trials = []
    for trial in trials:
        try:
            try_stage(trial)
        except ConfigError as error:
            fault = str(error)
            if not fault.startswith("`serve`"):
                fault = f"`serve` of the stage {trial.name} {fault}"
            answer = {"fault": fault, "position": trial.position}
            break
    write_json(Path(sys.argv[1]), answer)


if __name__ == "__main__":
    main()
