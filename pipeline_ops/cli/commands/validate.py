"""`trainyard validate CONFIG...`: all errors in some configs, or their pipelines in short."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline_ops.cli.arguments import (
    Overrides,
    list_config_files,
    load_runnable,
    make_configs_argument,
    parse_overrides,
    read_source,
)
from pipeline_ops.cli.commands.doctor import check_executor
from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.config.schedule import Schedule
from pipeline_ops.config.train import Train
from pipeline_ops.contract.remarks import describe_small_splits
from pipeline_ops.contract.results import Trial
from pipeline_ops.errors import ConfigError, ExitCode, MachineError, TrainyardError
from pipeline_ops.job.model_check import plan_training
from pipeline_ops.planning.bucket_check import check_bucket
from pipeline_ops.planning.inputs import check_warm_start, find_champion
from pipeline_ops.planning.trials import build_trial_config, check_trials, get_monitor
from pipeline_ops.raw_data.folder import check_interval, find_raw_folder


def validate(
    config_paths: Annotated[list[Path], make_configs_argument()],
    overrides: Overrides,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep",
            help="Also read the data source, run some images through the stages, and build the "
            "model on one batch, with loss, metrics, callbacks, initial weights and frozen layers.",
        ),
    ] = False,
) -> int:
    """Check configs.

    Prints all errors. The exit status is that of the first error, and 78 stands for an invalid
    config.
    """
    values, status = parse_overrides(overrides), ExitCode.SUCCESS
    for file in list_config_files(config_paths):
        try:
            _validate_file(file, values, deep)
        except TrainyardError as error:
            print(error, file=sys.stderr)
            status = status or error.exit_code
    for problem in _find_shared_models(list_config_files(config_paths), values):
        print(problem, file=sys.stderr)
        status = status or ExitCode.CONFIG
    return status


def _find_shared_models(files: Iterable[Path], overrides: Mapping[str, Any]) -> Iterator[str]:
    """Names each two pipelines that publish one model without naming each other."""
    by_registry: dict[str, list[PipelineConfig]] = defaultdict(list)
    for file in files:
        with contextlib.suppress(ConfigError):  # reported already
            config = load_config(file, overrides)
            by_registry[str(config.registry)].append(config)
    for registry, configs in by_registry.items():
        for first, second in itertools.combinations(configs, 2):
            names = first.pipeline, second.pipeline
            lacking = [
                (config, other)
                for config, other in ((first, names[1]), (second, names[0]))
                if other not in (config.pipeline, *config.export.shared_with)
            ]
            if lacking:
                shares = " and ".join(
                    f"export.shared_with: [{', '.join((*each.export.shared_with, other))}] in "
                    f"{each.file.name}"
                    for each, other in lacking
                )
                yield (
                    f"{first.locate(('export', 'model'))} and "
                    f"{second.locate(('export', 'model'))}: export.model: the pipelines "
                    f"{' and '.join(names)} publish the same model, {registry}, and would replace "
                    f"each other's. Give one of them another model, or set {shares}."
                )


def _validate_file(file: Path, overrides: Mapping[str, Any], is_deep: bool) -> None:
    config = load_runnable(file, dict(overrides))
    check_bucket(config)
    if problems := [each for each in check_executor(config) if each.problem]:
        raise ConfigError("\n".join(f"{each.problem}. {each.cure}" for each in problems))
    trials = _draw_trials(config)
    check_trials(config, trials)
    lines = list(summarize_pipeline(config).items())
    if config.search and not trials:
        text = "not checked, because Optuna is not installed here. The task search checks them"
        lines.append(("trials", text))
    try:
        find_champion(config)
    except MachineError as error:  # an author's host may lack the access that a run has
        lines.append(("registry", f"its champion could not be checked: {error}"))
    check_warm_start(config)
    if is_deep:
        lines += _check_data(config)
    print(f"{file}: ok")
    for name, text in lines:
        print(f"  {name:<11}{text}")


def _check_data(config: PipelineConfig) -> list[tuple[str, str]]:
    """Reads the raw data as the preprocess job would, and checks them with the model.

    Returns the title and the text of each line to print. It writes only the indexes of listings.
    Raises the errors that the preprocess job would raise before its work.
    """
    from beam_jobs.checks import check_enough_images, check_model, check_plan, try_stages
    from beam_jobs.planning.duplicates import decide_collection
    from pipeline_ops.cli.record_remarks import describe_records

    check_interval(config)
    preprocess, source = config.preprocess, read_source(config)
    decision = decide_collection(preprocess, source.found.records, {})
    notes = [source.found.describe_rejects()] if source.found.rejected else []
    notes += check_plan(preprocess, source, decision)
    check_enough_images(_find_smallest_batch(config), preprocess, source, decision)
    training = plan_training(config, sys.executable)
    try_stages(source, preprocess, config.file, training)
    check_model(training, preprocess, source)
    counts = {name: len(members) for name, members in decision.by_split.items()}
    images = ", ".join(f"{count} {name}" for name, count in counts.items())
    max_detections = config.train.model_parameters.get("max_detections")
    notes += describe_records(decision.by_split, max_detections) + describe_small_splits(counts)
    return [
        *(("look at", note) for note in notes),
        ("checked", f"{images} images; the model {config.train.model} accepts them"),
    ]


def _find_smallest_batch(config: PipelineConfig) -> Train:
    """Returns the training that needs the fewest examples, of a search that of a trial."""
    trials = _draw_trials(config)
    trains = [build_trial_config(config, trial).train for trial in trials] or [config.train]
    return min(trains, key=lambda train: train.batch_size)


def _draw_trials(config: PipelineConfig) -> list[Trial]:
    """Draws the trials as the job `search` will. Empty without a search, and without Optuna here.

    Airflow's own environment does not need Optuna.
    """
    if config.search is None:
        return []
    try:
        from pipeline_ops.job.study import draw_trials
    except ModuleNotFoundError:
        return []
    return draw_trials(config.search)


def summarize_pipeline(config: PipelineConfig) -> dict[str, str]:
    """Describes the pipeline in a line for each task."""
    train, search, more = config.train, config.search, {}
    if train.batch_description:
        more["batch"] = train.batch_description
    if search:
        pruner = ", asha" if search.pruner == "asha" else ""
        more["search"] = (
            f"{'up to ' if search.method == 'random' else ''}{search.max_trials} trials "
            f"({search.method}{pruner}) "
            f"over {', '.join(search.parameters)}; {search.max_parallel} at a time; "
            f"the trial with the best {get_monitor(config)} is used"
        )
    return {
        "pipeline": f"{config.pipeline}; runs start {describe_schedule(config.schedule)}",
        "preprocess": (
            f"{' > '.join(stage.name for stage in config.preprocess.stages)}; "
            f"{config.preprocess.shards} shards of each split, from {find_raw_folder(config)}"
        ),
        "train": (
            f"{train.model}; {train.length} of batch {train.batch_size} "
            f"on {train.workers} worker{'s' * (train.workers > 1)}, {train.strategy}; "
            f"{train.optimizer.name}, learning rate {train.learning_rate:g}"
        ),
        **more,
        "evaluate": f"gate on {', '.join(rule.metric for rule in config.evaluate.gate)}",
        "export": f"to the model {config.export.model} below {config.root}",
    }


def describe_schedule(schedule: Schedule) -> str:
    """Describes the triggers of runs in plain words."""
    triggers = []
    if schedule.cron:
        triggers.append(f"on the schedule {schedule.cron} ({schedule.timezone})")
    if schedule.assets:
        triggers.append(
            f"on an event of the asset {' or '.join(asset.name for asset in schedule.assets)}"
        )
    if schedule.watch_seconds:
        triggers.append(f"when the raw files change (checked every {schedule.watch_seconds} s)")
    return " or ".join(triggers) or "manually only"
