"""Checks the engine that a pipeline preprocesses on."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from pipeline_ops.artifacts.layout import work_folder
from pipeline_ops.cli.checks.errors import make_finding
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.errors import TrainyardError
from pipeline_ops.planning.plan import plan_job
from pipeline_ops.system.host_check import Finding


def check_engine(config: PipelineConfig) -> Iterator[Finding]:
    """Asks Beam's job server and Flink, as a run does before it starts a job, and then a worker."""
    runner = config.preprocess.runner
    if not runner.has_job_server:
        return
    from beam_jobs.engine_job import EngineJob

    name = f"{runner.name} at {runner.endpoint}"
    try:
        warning = EngineJob(runner, "doctor").check()
    except TrainyardError as error:
        yield make_finding(name, error, "Correct preprocess.runner.")
    else:
        yield Finding(check=name, problem=warning, is_warning=bool(warning))
        if not warning:
            yield _check_workers(config)


def _check_workers(config: PipelineConfig) -> Finding:
    from beam_jobs.engine import check_workers
    from beam_jobs.exchange import Exchange

    runner = config.preprocess.runner
    name = f"the workers of {runner.name} at {runner.worker_pool}"
    try:
        plan = plan_job("preprocess", config, "doctor", {})
        folder = work_folder(plan.manifest.parent) / f"doctor-{secrets.token_hex(4)}"
        check_workers(plan.request, runner, Exchange(folder))
    except TrainyardError as error:
        return make_finding(name, error, "Correct preprocess.runner, or the workers.")
    return Finding(check=name)
