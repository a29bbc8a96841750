"""`trainyard explain CONFIG`: the actions of a run, task by task, with reasons. Starts no job.

With `--hosts`, it shows instead where each task runs, and the host and role of each process of the
training. It reaches no host for that.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from pipeline_ops.cli.arguments import (
    ConfigFile,
    Overrides,
    load_checked,
    parse_overrides,
)
from pipeline_ops.config.evaluate import Approval
from pipeline_ops.config.pipeline import TASKS, PipelineConfig
from pipeline_ops.contract.layout import Attempt, Layout
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.pruning import find_pruned
from pipeline_ops.contract.results import EvaluationFigures
from pipeline_ops.places.source_download import is_to_be_downloaded
from pipeline_ops.planning.job_kinds import JOBS, KINDS
from pipeline_ops.planning.plan import JobPlan, plan_job
from pipeline_ops.planning.trials import (
    build_trial_config,
    check_trials,
    choose_best_trial,
    get_monitor,
    plan_pruning,
    read_trial_result,
    read_trials,
)
from pipeline_ops.storage.open_store import open_near

_PLACEHOLDER_RUN_ID = "explain"  # the run id takes no part in a fingerprint


class Forecast(NamedTuple):
    """The action of one task: `runs`, `cached` or `skipped`; for `approve`, `asks` or `skipped`."""

    task: str
    action: str
    reason: str


def explain(
    config_file: ConfigFile,
    overrides: Overrides,
    hosts: Annotated[
        bool,
        typer.Option(
            "--hosts",
            help="Show instead where each task runs, the host and the role of each training "
            "process, and the request to Slurm or Kubernetes. Contacts no host.",
        ),
    ] = False,
) -> int:
    """Show which tasks a run would execute, which are cached, and why.

    Starts no job.
    """
    config = load_checked(config_file, parse_overrides(overrides))
    if hosts:
        print("\n\n".join(_describe_hosts(config)))
        return 0
    for task, action, reason in _forecast_run(config):
        print(f"{task:<11}{action:<8}{reason}")
        if task == "train" and config.train.batch_description:
            print(f"{'':<19}{config.train.batch_description}")
    return 0


def _forecast_run(config: PipelineConfig) -> Iterator[Forecast]:
    """Yields a forecast for each task, in order.

    A task whose inputs do not exist yet cannot be planned. Its forecast is `runs`, though it may
    find its result cached if the inputs turn out to be unchanged. Raises DataError if the raw data,
    or an artifact, is missing.
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
    """Yields a forecast for the search, for each of its trials, and for the choice of the best.

    The trials are only known once the search has drawn them.
    """
    monitor = get_monitor(config)
    search = plan_job("search", config, _PLACEHOLDER_RUN_ID, manifests)
    yield _forecast_plan(search)
    if not search.is_cached:
        runs.append("train")
        yield Forecast("trial", "runs", "because search runs")
        yield Forecast("train", "runs", f"uses the trial with the best {monitor}")
        return
    trials, results, has_unfinished = read_trials(config, search.manifest), [], False
    check_trials(config, trials)
    for trial in trials:
        forecast = _forecast_upstream("train", runs)
        if forecast is None:
            trial_config = build_trial_config(config, trial)
            plan = plan_job("train", trial_config, _PLACEHOLDER_RUN_ID, manifests)
            planned = plan_pruning(config, plan.request.fingerprint)
            forecast = _forecast_plan(plan)
            if plan.is_cached:
                results.append(read_trial_result(trial, plan.manifest, monitor))
            elif planned and (pruned := find_pruned(planned)):
                forecast = Forecast("train", "skipped", pruned)
        has_unfinished |= forecast.action == "runs"
        yield Forecast(trial.name, forecast.action, f"{forecast.reason} ({trial})")
    found = None
    if results and not has_unfinished:
        found = choose_best_trial(results, monitor, config.train.find_mode(monitor))
    if found is None:
        runs.append("train")
        yield Forecast("train", "runs", f"uses the trial with the best {monitor}")
    else:
        best = found.winner
        manifests["train"] = str(best.manifest)
        yield Forecast("train", "cached", f"uses {best.trial.name}, {monitor} {best.figure:.4f}")


def _forecast_job(
    job: str, config: PipelineConfig, manifests: dict[str, str], runs: list[str]
) -> Forecast:
    if forecast := _forecast_upstream(job, runs):
        return forecast
    if job == "export":
        manifest = read_manifest(open_near(config.root, manifests["evaluate"]))
        evaluation = EvaluationFigures.model_validate(manifest.figures)
        failed = "; ".join(rule.text for rule in evaluation.rules if not rule.passed)
        if failed and not evaluation.gate_passed:
            return Forecast(job, "skipped", f"the gate did not pass: {failed}")
    if job == "preprocess" and is_to_be_downloaded(config):
        return Forecast(job, "runs", "downloads the data set of preprocess.source first")
    plan = plan_job(job, config, _PLACEHOLDER_RUN_ID, manifests)
    if plan.is_cached:
        manifests[job] = str(plan.manifest)
    return _forecast_plan(plan)


def _forecast_upstream(job: str, runs: list[str]) -> Forecast | None:
    """Returns the forecast of a job whose inputs an earlier one makes, or else None."""
    upstream = [name for name in KINDS[job].reads if name in runs]
    if not upstream:
        return None
    verb = "runs" if len(upstream) == 1 else "run"
    return Forecast(job, "runs", f"because {' and '.join(upstream)} {verb}")


def _forecast_plan(plan: JobPlan) -> Forecast:
    return Forecast(plan.request.job, "cached" if plan.is_cached else "runs", plan.reason)


def _describe_hosts(config: PipelineConfig) -> Iterator[str]:
    """Yields the tasks that run elsewhere, the processes of the gang, and a cluster's requests.

    Without `train.hosts`, the gang is where its task is. All hosts are taken to be available, and
    values that a host determines itself, its ports and its number of cores, are named.
    """
    from pipeline_ops.launch.plan import build_launch_plan
    from pipeline_ops.places.local import LocalLauncher
    from pipeline_ops.places.open_place import as_section

    places = [
        f"{task:<12}{hosts.launcher:<12}hosts/{getattr(config, task).runs_on}.yaml"
        if (hosts := config.find_job_hosts(task))
        else f"{task:<12}the host and the interpreter of Airflow's worker"
        for task in TASKS
    ]
    yield "\n".join(["task        runs on", *places])
    hosts = as_section(config.hosts) if config.hosts else None
    gang = hosts.list_hosts() if hosts else LocalLauncher().allocate(lambda: None)
    attempt: Attempt = Attempt(Layout(config.root, config.pipeline).attempts("RUN", "train"))
    plan = build_launch_plan(config.train, gang, attempt, Path("WORK"))
    if plan.needs_ports:
        first = hosts.ports[0] if hosts and hosts.ports else 0
        ports = (itertools.count(first) if first else itertools.repeat(0) for _ in gang)
        plan = plan.with_ports(dict(zip((host.name for host in gang), ports, strict=True)))
    yield "\n".join(filter(None, [str(plan), config.train.batch_description]))
    if hosts:
        run, deadline_seconds = Path(str(attempt.folder)), config.train.timeout_seconds
        yield from hosts.describe_gang(config.pipeline, run, deadline_seconds)
