"""The job `check`: what each job does before its work, and no work. For `trainyard doctor`.

It is started in the same place and in the same way as any other job, so the place, the copy of the
code, the packages of the fingerprint and the store have been tried once it runs. It then looks at
its host, and allocates and connects the hosts of a gang, as a training does. Its artifact has the
findings.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from packaging.requirements import Requirement

from pipeline_ops.config.train import Train
from pipeline_ops.errors import ExitCode
from pipeline_ops.job.runner import INIT_VARIABLE, Job, run_job
from pipeline_ops.job.workspace import find_jobs_folder
from pipeline_ops.launch.train import open_host_pool
from pipeline_ops.storage.parsing import JsonModel
from pipeline_ops.system.host import Finding, check_host

MODULE = "pipeline_ops.launch.place_check"
_LIBRARIES = {"preprocess": ("apache_beam", "cv2"), "train": ("tensorflow",)}
_EQUIVALENTS = {"tensorflow": "tensorflow-cpu", "tensorflow-cpu": "tensorflow"}
"""Packages of which a host has either one: the first with GPUs, the second without."""


class PlaceCheck(JsonModel):
    """The section of the request."""

    requirements: list[str] = []
    """The packages that the jobs need, as in `pyproject.toml`."""
    extras: list[str] = []
    """The extras that have these packages."""
    train: dict[str, Any] | None = None
    """The training whose gang is tried. Null is none."""


class PlaceReport(JsonModel):
    """The figures of the artifact."""

    findings: list[Finding] = []
    time: float = 0.0
    """The clock of the host at the end of the check, in seconds since 1970."""


def check(job: Job) -> ExitCode:
    request = PlaceCheck.model_validate(job.request.config)
    findings = list(check_packages(request.requirements, request.extras))
    if not findings[0].problem:
        findings += check_imports(request.extras)
    if INIT_VARIABLE in os.environ:
        findings += check_host({"jobs on a bucket": find_jobs_folder()})
    if request.train is not None:
        findings += check_gang(job, Train.model_validate(request.train))
    with job.artifact() as draft:
        draft.figures = PlaceReport(findings=findings, time=time.time()).model_dump(mode="json")
    return ExitCode.SUCCESS


def check_packages(requirements: Sequence[str], extras: Sequence[str]) -> Iterator[Finding]:
    """Compares the packages of this interpreter with those that Trainyard declares."""
    problems = []
    for requirement in map(Requirement, sorted(requirements)):
        name = requirement.name
        version = _find_version(name) or _find_version(_EQUIVALENTS.get(name, name))
        if version is None:
            problems.append(f"{name} is not installed")
        elif not requirement.specifier.contains(version, prereleases=True):
            problems.append(f"{name} is {version}, and {requirement.specifier} is needed")
    cure = (
        f"In a clone of Trainyard, run there: {sys.executable} -m pip install --no-deps "
        f"--require-hashes -r docker/locks/jobs.txt, or install the extras {', '.join(extras)}."
    )
    yield Finding(check="packages", problem="; ".join(problems), cure=cure if problems else "")


def check_imports(extras: Sequence[str]) -> Iterator[Finding]:
    """Imports the large libraries of the jobs, which an installation may have without a part."""
    for name in (name for extra in extras for name in _LIBRARIES[extra]):
        try:
            importlib.import_module(name)
        except Exception as error:  # such as a shared library that is missing
            yield Finding(
                check=f"import {name}",
                problem=f"{name} can't be imported: {type(error).__name__}: {error}",
                cure=f"Run `{sys.executable} -c 'import {name}'` there, and repair its package.",
            )
        else:
            yield Finding(check=f"import {name}")


def _find_version(name: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def check_gang(job: Job, config: Train) -> Iterator[Finding]:
    """Allocates the hosts of a gang, and starts the agent of each. Yields a finding for each host.

    Raises MachineError or ConfigError if there are no hosts.
    """
    with contextlib.closing(open_host_pool(job, config)) as pool:
        pool.allocate(lambda: None)
        deadline = time.monotonic() + min(config.start_timeout_seconds, job.seconds_left / 2)
        waiting = {*pool.hosts}
        while waiting and time.monotonic() < deadline:
            pool.poll()
            waiting = {
                name
                for name, host in pool.hosts.items()
                if not (host.is_ready or host.is_permanent_failure)
            }
        for name, host in pool.hosts.items():
            problem = "" if host.is_ready else host.problem or f"host {name}: it was not ready"
            cure = "Start it, or correct the hosts file." if problem else ""
            yield Finding(check=f"gang: {name}", problem=problem, cure=cure)


if __name__ == "__main__":
    run_job(check)
