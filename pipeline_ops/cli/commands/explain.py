"""`trainyard explain CONFIG`: the actions of a run, task by task, with reasons. Starts no job."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator

from pipeline_ops.artifacts.manifest import read_manifest
from pipeline_ops.artifacts.results import EvaluationFigures
from pipeline_ops.cli.arguments import (
    Commands,
    add_command,
    add_config,
    add_overrides,
    load_checked,
    parse_overrides,
)
from pipeline_ops.config.evaluate import Approval
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.planning.job_kinds import JOBS, KINDS
from pipeline_ops.planning.plan import plan_job
from pipeline_ops.planning.trials import (
    Trial,
    build_trial_config,
    choose_best_trial,
    get_monitor,
    plan_pruning,
    plan_trials,
    read_trial_result,
)
from pipeline_ops.storage.open_store import open_near

_PLACEHOLDER_RUN_ID = "explain"  # the run id takes no part in a fingerprint


@dataclasses.dataclass(frozen=True)
class Forecast:
    """The action of one task: `runs`, `cached` or `skipped`; for `approve`, `asks` or `skipped`."""

    task: str
    action: str
    reason: str


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "explain",
        explain,
        "Show which tasks a run would execute, which are cached, and why.",
        "Starts no job.",
    )
    add_config(parser)
    add_overrides(parser)


def explain(arguments: argparse.Namespace) -> int:
    overrides = parse_overrides(arguments.overrides)
    for forecast in forecast_run(load_checked(arguments.config, overrides)):
        print(f"{forecast.task:<11}{forecast.action:<8}{forecast.reason}")
    return 0


def forecast_run(config: PipelineConfig) -> Iterator[Forecast]:
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
        forecast = _forecast_job(job, config, manifests, runs)
        if job == "export" and config.evaluate.approval:
            yield _forecast_approval(config.evaluate.approval, forecast, "evaluate" in runs)
        if forecast.action == "runs":
            runs.append(job)
        yield forecast


def _forecast_approval(approval: Approval, export: Forecast, is_gate_pending: bool) -> Forecast:
    """Forecasts the approval. A person is asked only if there is a model to publish."""
    if export.action == "cached":
        return Forecast("approve", "skipped", "no approval needed: this model is already published")
    if export.action == "skipped":
        return Forecast("approve", "skipped", export.reason)
    condition = ", if the gate passes" if is_gate_pending else ""
    asks = f"a person for {approval.timeout_seconds} s{condition}"
    return Forecast("approve", "asks", f"{asks} (without an answer: {approval.on_timeout})")


def _forecast_trials(
    config: PipelineConfig, manifests: dict[str, str], runs: list[str]
) -> Iterator[Forecast]:
    """Yields a forecast for each trial, and one for the choice between them."""
    trials, monitor, trained = plan_trials(config), get_monitor(config), dict[int, str]()
    pruned = _find_pruned(config, trials, manifests)
    for trial in trials:
        trial_manifests = dict(manifests)
        forecast = _forecast_job("train", build_trial_config(config, trial), trial_manifests, runs)
        if "train" in trial_manifests:
            trained[trial.number] = trial_manifests["train"]
        elif trial.number in pruned:
            forecast = Forecast(trial.name, "skipped", pruned[trial.number])
        yield Forecast(trial.name, forecast.action, f"{forecast.reason} ({trial})")
    results = [
        read_trial_result(trial, open_near(config.root, trained[trial.number]), monitor)
        for trial in trials
        if trial.number in trained
    ]
    found = (
        choose_best_trial(results, monitor)
        if trained.keys() | pruned.keys() == set(range(len(trials)))
        else None
    )
    if found is None:
        runs.append("train")
        yield Forecast("train", "runs", f"uses the trial with the best {monitor}")
    else:
        manifests["train"] = trained[found.best]
        best = found.winner
        yield Forecast("train", "cached", f"uses {best.trial.name}, {monitor} {best.figure:.4f}")


def _find_pruned(
    config: PipelineConfig, trials: list[Trial], manifests: dict[str, str]
) -> dict[int, str]:
    """Finds the trials that an unchanged run has pruned, by number, with the reasons."""
    search = config.search
    if search is None or search.pruner == "none" or "preprocess" not in manifests:
        return {}
    from pipeline_ops.jobs.study import find_pruned

    first = build_trial_config(config, trials[0])
    fingerprint = plan_job("train", first, _PLACEHOLDER_RUN_ID, manifests).request.fingerprint
    return find_pruned(plan_pruning(config, search, 0, fingerprint))


def _forecast_job(
    job: str, config: PipelineConfig, manifests: dict[str, str], runs: list[str]
) -> Forecast:
    if upstream := [name for name in KINDS[job].reads if name in runs]:
        verb = "runs" if len(upstream) == 1 else "run"
        return Forecast(job, "runs", f"because {' and '.join(upstream)} {verb}")
    if job == "export" and (failed := _list_failed_rules(config, manifests["evaluate"])):
        return Forecast(job, "skipped", f"the gate did not pass: {'; '.join(failed)}")
    plan = plan_job(job, config, _PLACEHOLDER_RUN_ID, manifests)
    if plan.is_cached:
        manifests[job] = str(plan.manifest)
    return Forecast(job, "cached" if plan.is_cached else "runs", plan.reason)


def _list_failed_rules(config: PipelineConfig, uri: str) -> list[str]:
    manifest = read_manifest(open_near(config.root, uri))
    evaluation = EvaluationFigures.model_validate(manifest.figures)
    failed = [rule.text for rule in evaluation.rules if not rule.passed]
    return [] if evaluation.gate_passed else failed
