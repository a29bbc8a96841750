"""Runs the jobs of a config for a test: the real jobs, each in a process of its own, without
Airflow."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.contract.request import read_status, write_request
from pipeline_ops.errors import ExitCode
from pipeline_ops.planning.job_kinds import JOBS, KINDS
from pipeline_ops.planning.plan import plan_job
from pipeline_ops.storage.open_store import open_root

REPOSITORY = Path(__file__).resolve().parents[2]


def run_jobs(
    file: Path,
    folder: Path,
    last: str = "train",
    given: Mapping[str, str] | None = None,
    **overrides: Any,
) -> dict[str, str]:
    """The URIs of the manifests that the jobs up to the last one leave, by job.

    Args:
      file: the config.
      folder: for the attempts and the storage.
      last: of the jobs.
      given: manifests that exist already, by job. These jobs are left out.
      overrides: `train__epochs=1` and the like.
    """
    config = load_config(
        file,
        {"storage.root": str(folder / "root")}
        | {name.replace("__", "."): value for name, value in overrides.items()},
    )
    manifests = dict(given or {})
    for job in JOBS[len(manifests) : JOBS.index(last) + 1]:
        plan = plan_job(job, config, "run", manifests)
        attempt = Attempt(open_root(folder / f"attempt-{job}"))
        write_request(attempt, plan.request)
        with open(folder / f"{job}.log", "wb") as log:
            argv = [sys.executable, "-m", KINDS[job].module, "--request", str(attempt.request)]
            subprocess.run(argv, stdout=log, stderr=log, cwd=REPOSITORY, check=False)
        status = read_status(attempt)
        assert status is not None and status.exit_code is ExitCode.SUCCESS, (
            f"{job}: {status}\n{(folder / f'{job}.log').read_text()[-3000:]}"
        )
        manifests[job] = str(plan.manifest)
    return manifests
