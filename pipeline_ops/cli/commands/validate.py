"""`trainyard validate CONFIG...`: all errors in some configs, or their pipelines in short."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline_ops.cli.arguments import add_overrides, load_runnable, parse_overrides
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.pipeline_files import config_files
from pipeline_ops.config.schedule import Schedule
from pipeline_ops.errors import ConfigError, ExitCode, TrainyardError
from pipeline_ops.planning.storage_probe import check_storage
from pipeline_ops.planning.trials import check_trials, monitor_of, plan_trials
from pipeline_ops.raw_data.folder import find_raw_folder


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "validate",
        help="check configs",
        description="Checks configs. Exit status 78 if something is wrong with one of them.",
    )
    parser.add_argument(
        "configs",
        metavar="CONFIG",
        nargs="+",
        type=Path,
        help="YAML files of pipelines, or folders of them",
    )
    add_overrides(parser)
    parser.add_argument(
        "--deep",
        action="store_true",
        help=(
            "also read the source, run one image through the stages, "
            "and build the model on one batch"
        ),
    )
    parser.set_defaults(command=validate)


def validate(arguments: argparse.Namespace) -> int:
    """Checks each of the files, even after an error. Returns the exit status of the first error."""
    overrides, status = parse_overrides(arguments.overrides), ExitCode.SUCCESS
    files = list(config_files(arguments.configs))
    if not files:
        raise ConfigError(
            f"{', '.join(map(str, arguments.configs))}: no file *.yaml in it; "
            "name a config, or a folder of configs"
        )
    for file in files:
        try:
            _validate_file(file, overrides, arguments.deep)
        except TrainyardError as error:
            print(error, file=sys.stderr)
            status = status or error.exit_code
    return status


def _validate_file(file: Path, overrides: Mapping[str, Any], is_deep: bool) -> None:
    config = load_runnable(file, dict(overrides))
    check_storage(config)
    if config.search:
        check_trials(config, plan_trials(config))
    lines = describe(config) | (_validate_deeply(config) if is_deep else {})
    print(f"{file}: ok")
    for name, text in lines.items():
        print(f"  {name:<11}{text}")


def _validate_deeply(config: PipelineConfig) -> dict[str, str]:
    """Reads the source and builds the model. Returns a line about both."""
    from beam_jobs.trial import validate_deeply

    counts = validate_deeply(config, sys.executable)
    images = ", ".join(f"{count} {split}" for split, count in counts.items())
    return {"checked": f"{images} images; the model {config.train.model} can be trained on them"}


def describe(config: PipelineConfig) -> dict[str, str]:
    """Describes the pipeline in a line for each task."""
    train = config.train
    searched = {"search": _search(config)} if config.search else {}
    return {
        "pipeline": f"{config.pipeline}; runs start {start_of(config.schedule)}",
        "preprocess": (
            f"{' > '.join(stage.name for stage in config.preprocess.stages)}; "
            f"{config.preprocess.shards} shards of each split, from {find_raw_folder(config)}"
        ),
        "train": (
            f"{train.model}; {train.epochs} epochs of batch {train.global_batch} "
            f"on {train.workers} workers, {train.strategy}; "
            f"{train.optimizer.name}, learning rate {train.optimizer.learning_rate:g}"
        ),
        **searched,
        "evaluate": f"gate on {', '.join(rule.metric for rule in config.evaluate.gate)}",
        "export": f"to the model {config.export.model} below {config.root}",
    }


def start_of(schedule: Schedule) -> str:
    """Describes the triggers of runs in plain words."""
    starts = []
    if schedule.cron:
        starts.append(f"by the clock, {schedule.cron} ({schedule.timezone})")
    if schedule.assets:
        starts.append(
            f"when there is an event of {' or '.join(asset.name for asset in schedule.assets)}"
        )
    if schedule.watch_seconds:
        starts.append(f"when the raw files change (looked at every {schedule.watch_seconds} s)")
    return " or ".join(starts) or "by hand only"


def _search(config: PipelineConfig) -> str:
    trials = plan_trials(config)
    return (
        f"{len(trials)} trials ({config.search.method}) "
        f"over {', '.join(config.search.parameters)}; {config.search.max_parallel} at a time; "
        f"the best {monitor_of(config)} goes on"
    )
