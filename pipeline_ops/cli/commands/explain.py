"""`trainyard explain CONFIG`: the actions of a run, task by task, with reasons. Starts no job."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator

from pipeline_ops.artifacts.manifest import read_manifest
from pipeline_ops.artifacts.results import EvaluationFigures
from pipeline_ops.cli.arguments import add_config, add_overrides, load_checked, parse_overrides
from pipeline_ops.config.evaluate import Approval
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.planning.job_kinds import JOBS, KINDS
from pipeline_ops.planning.plan import plan_job
from pipeline_ops.planning.trials import choose, monitor_of, plan_trials, result_of, trial_config

_NO_RUN = "explain"  # the run id takes no part in a fingerprint


@dataclasses.dataclass(frozen=True)
class Forecast:
    """The action of one task: `runs`, `cached` or `skipped`; for `approve`, `asks` or `skipped`."""

    task: str
    verdict: str
    reason: str


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "explain",
        help="say what a run would do, what is cached, and why",
        description=(
            "Says for each task whether a run would start its job or take the result that "
            "is there, and why."
        ),
    )
    add_config(parser)
    add_overrides(parser)
    parser.set_defaults(command=explain)


def explain(arguments: argparse.Namespace) -> int:
    overrides = parse_overrides(arguments.overrides)
    for forecast in forecasts(load_checked(arguments.config, overrides)):
        print(f"{forecast.task:<11}{forecast.verdict:<8}{forecast.reason}")
    return 0


def forecasts(config: PipelineConfig) -> Iterator[Forecast]:
    """Yields a forecast for each task, in order.

    A task whose inputs do not exist yet cannot be planned. Its forecast is `runs`, though it may
    find its result cached if the inputs turn out to be unchanged.

    Raises:
      DataError: the raw data, or an artifact, is missing.
    """
    manifests: dict[str, str] = {}
    runs: list[str] = []
    for job in JOBS:
        if job == "train" and config.search:
            yield from _forecast_trials(config, manifests, runs)
            continue
        forecast = _forecast(job, config, manifests, runs)
        if job == "export" and config.evaluate.approval:
            yield _forecast_approval(config.evaluate.approval, forecast, "evaluate" in runs)
        if forecast.verdict == "runs":
            runs.append(job)
        yield forecast


def _forecast_approval(approval: Approval, export: Forecast, if_passed: bool) -> Forecast:
    """Forecasts the approval. A person is asked only if there is a model to publish."""
    if export.verdict == "cached":
        return Forecast("approve", "skipped", "nothing to ask: this model is published already")
    if export.verdict == "skipped":
        return Forecast("approve", "skipped", export.reason)
    asks = (
        f"a person, for {approval.timeout_seconds} s; without an answer: {approval.without_answer}"
    )
    return Forecast("approve", "asks", f"{asks}; only if the gate is passed" if if_passed else asks)


def _forecast_trials(
    config: PipelineConfig, manifests: dict[str, str], runs: list[str]
) -> Iterator[Forecast]:
    """Yields a forecast for each trial, and one for the choice between them."""
    trials, monitor, made = plan_trials(config), monitor_of(config), []
    for trial in trials:
        of_trial = dict(manifests)
        forecast = _forecast("train", trial_config(config, trial), of_trial, runs)
        if "train" in of_trial:
            made.append(result_of(trial, of_trial["train"], monitor))
        yield Forecast(trial.name, forecast.verdict, f"{forecast.reason} ({trial})")
    if len(made) < len(trials):
        runs.append("train")
        yield Forecast("train", "runs", f"takes the trial with the best {monitor}")
    else:
        found = choose(made, monitor)
        manifests["train"] = found.winner.manifest
        yield Forecast(
            "train",
            "cached",
            f"takes {found.winner.trial.name}, {monitor} {found.winner.figure:.4f}",
        )


def _forecast(
    job: str, config: PipelineConfig, manifests: dict[str, str], runs: list[str]
) -> Forecast:
    if upstream := [name for name in KINDS[job].reads if name in runs]:
        return Forecast(
            job,
            "runs",
            f"because {' and '.join(upstream)} {'runs' if len(upstream) == 1 else 'run'}",
        )
    if job == "export" and (failed := _failed_rules(manifests["evaluate"])):
        return Forecast(job, "skipped", f"the gate was not passed: {'; '.join(failed)}")
    plan = plan_job(job, config, _NO_RUN, manifests)
    if plan.is_cached:
        manifests[job] = str(plan.manifest)
    return Forecast(job, "cached" if plan.is_cached else "runs", plan.reason)


def _failed_rules(manifest: str) -> list[str]:
    evaluation = EvaluationFigures.model_validate(read_manifest(manifest).figures)
    return (
        []
        if evaluation.gate_passed
        else [rule.text for rule in evaluation.rules if not rule.passed]
    )
