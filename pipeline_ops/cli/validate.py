"""`trainyard validate CONFIG`: everything that is wrong with a config, or what it will do."""

from __future__ import annotations

import argparse

from pipeline_ops.cli.arguments import add_config, add_overrides, load_checked, parse_overrides
from pipeline_ops.contracts.config import PipelineConfig
from pipeline_ops.contracts.search import check_trials, monitor_of, plan_trials


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("validate", help="check a config", description="Checks a config. Exit status 78 if something is wrong with it.")
    add_config(parser)
    add_overrides(parser)
    parser.set_defaults(command=validate)


def validate(arguments: argparse.Namespace) -> int:
    overrides = parse_overrides(arguments.overrides)
    config = load_checked(arguments.config, overrides)
    if config.search:
        check_trials(config.file, overrides, plan_trials(config))
    print(f"{arguments.config}: ok")
    for name, text in describe(config).items():
        print(f"  {name:<11}{text}")
    return 0


def describe(config: PipelineConfig) -> dict[str, str]:
    """The pipeline in a line for each task."""
    train = config.train
    searched = {"search": _search(config)} if config.search else {}
    return {
        "pipeline": f"{config.pipeline}, {config.schedule or 'by hand only'}",
        "preprocess": f"{' > '.join(stage.name for stage in config.preprocess.stages)}; {config.preprocess.shards} shards of each split, "
                      f"from {config.raw_folder}",
        "train": f"{train.model}; {train.epochs} epochs of batch {train.global_batch} on {train.workers} workers, {train.strategy}; "
                 f"{train.optimizer.name}, learning rate {train.optimizer.learning_rate:g}",
        **searched,
        "evaluate": f"gate on {', '.join(rule.metric for rule in config.evaluate.gate)}",
        "export": f"to the model {config.export.model} below {config.root}",
    }


def _search(config: PipelineConfig) -> str:
    trials = plan_trials(config)
    return (f"{len(trials)} trials ({config.search.method}) over {', '.join(config.search.parameters)}; {config.search.max_parallel} at a time; "
            f"the best {monitor_of(config)} goes on")
