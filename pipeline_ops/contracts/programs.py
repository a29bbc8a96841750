"""What of a config runs as a program: interpreters, functions and classes of somebody's own, Beam's options, and who is told.

All that is for the author of the YAML. Who may start a run may change its numbers, and may not make its hosts run something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipeline_ops.contracts.config import PipelineConfig, load_config
from pipeline_ops.contracts.config_search import Range
from pipeline_ops.contracts.errors import ConfigError
from pipeline_ops.contracts.plan import JOBS


def refuse_other_programs(config: PipelineConfig) -> None:
    """Raises ConfigError for a program that a run's overrides have brought. To leave one out that the YAML has is no harm."""
    plain = load_config(config.file)
    settings = _settings(plain)
    changed = [key for key, value in _settings(config).items() if value != settings[key]]
    known = {name for _, name in _own_code(plain)}
    changed += [f"{key}: {name}" for key, name in _own_code(config) if name not in known]
    if changed:
        raise ConfigError(f"{changed[0]} can't be chosen for a run; it is for the author of {config.file}")


def _settings(config: PipelineConfig) -> dict[str, Any]:
    interpreters = {f"{job}.python": config.interpreter(job) for job in JOBS}
    return interpreters | {"preprocess.runner.options": config.preprocess.runner.options, "notify": config.notify}


def _own_code(config: PipelineConfig) -> Iterator[tuple[str, str]]:
    """Keys, and the names that are imported for them: `module:function`, or the class of a TensorFlow Datasets builder."""
    train, source = config.train, config.preprocess.source
    yield from ((f"preprocess.stages.{number}", stage.name) for number, stage in enumerate(config.preprocess.stages) if ":" in stage.name)
    if source.type == "tfds" and "." in (builder := source.builder.partition("/")[0].partition(":")[0]):
        yield "preprocess.source.builder", builder
    yield from ((f"train.{key}", name) for key in ("model", "loss") if ":" in (name := getattr(train, key) or ""))
    yield from ((f"train.{key}.{number}", name) for key in ("metrics", "callbacks") for number, name in enumerate(getattr(train, key)))
    for key, values in config.search.parameters.items() if config.search else ():
        if not isinstance(values, Range):
            yield from ((f"search.parameters.{key}", name) for value in values for name in _texts(value) if ":" in name)


def _texts(value: Any) -> Iterator[str]:
    """A value of a search may be a whole list, as of metrics."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
