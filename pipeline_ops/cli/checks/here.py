"""Checks of the host on which the command runs: its packages and Airflow's settings."""

from __future__ import annotations

import configparser
import importlib.metadata
import os
import re
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.runs_on import TASKS
from pipeline_ops.errors import ConfigError
from pipeline_ops.jobs.workspace import find_jobs_folder
from pipeline_ops.system.host_check import Finding, check_host
from pipeline_ops.user_code.interpreter import read_versions

_DISTRIBUTION = "airflow-provider-trainyard"
_EXTRAS = {
    "preprocess": ("preprocess",),
    "train": ("train",),
    "evaluate": ("train",),
    "export": ("train",),
}
"""The extras that a job needs, by task."""


def check_this_host(config: PipelineConfig | None) -> Iterator[Finding]:
    """Checks Python, disks, shared memory, limits and GPUs."""
    folders = {"the local folder of jobs": find_jobs_folder()}
    if config and config.root.is_local:
        folders["storage.root"] = config.root.local
    yield from check_host(folders)


def check_packages(config: PipelineConfig | None) -> Iterator[Finding]:
    """Compares the installed packages with what Trainyard declares, for each local job."""
    yield _compare("packages of Airflow's side", (), None)
    if config is None:
        return
    interpreters = {
        (config.resolve_interpreter(task), _EXTRAS[task])
        for task in TASKS
        if config.find_job_hosts(task) is None
    }
    for python, extras in sorted(interpreters, key=str):
        check = f"packages of {', '.join(extras)} jobs"
        try:
            yield _compare(check, extras, python)
        except ConfigError as error:
            yield Finding(check=check, problem=str(error))


def _compare(check: str, extras: tuple[str, ...], python: Path | None) -> Finding:
    wanted = {
        requirement.name: requirement
        for requirement in _list_requirements(extras)
        if bool(extras) == ("extra" in str(requirement.marker or ""))
    }
    found = read_versions(python, wanted)
    problems = [
        f"{name} is not installed"
        if name not in found
        else f"{name} is {found[name]}, and {requirement.specifier} is needed"
        for name, requirement in sorted(wanted.items())
        if name not in found
        or not requirement.specifier.contains(Version(found[name]), prereleases=True)
    ]
    if not problems:
        return Finding(check=check)
    names = f"[{','.join(extras)}]" if extras else ""
    return Finding(
        check=check,
        problem="; ".join(problems),
        cure=f"Install {_DISTRIBUTION}{names} into {python or 'this environment'}, or let the task "
        "run elsewhere (runs_on).",
    )


def _list_requirements(extras: tuple[str, ...]) -> Iterator[Requirement]:
    try:
        lines = importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            yield requirement


def find_executors() -> str:
    """Airflow's executors, from its environment or its settings file. Empty if there is none."""
    if variable := os.environ.get("AIRFLOW__CORE__EXECUTOR"):
        return variable
    home = Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser()
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read(home / "airflow.cfg")
    except configparser.Error:
        return ""
    return parser.get("core", "executor", fallback="")


def find_executor_problems(config: PipelineConfig) -> Iterator[str]:
    """Tasks whose job would die with the pod of its Airflow task."""
    default = find_executors().partition(",")[0].strip()
    for task in TASKS:
        section = getattr(config, task)
        executor = section.executor or default
        if re.search(r"KubernetesExecutor$", executor) and config.find_job_hosts(task) is None:
            yield (
                f"{config.locate((task,))}: {task} runs with Airflow's KubernetesExecutor, whose "
                "pod ends when the task defers, and takes a job along that runs in it. Write "
                f"`runs_on: NAME` into `{task}`, where hosts/NAME.yaml has `launcher: kubernetes` "
                "(docs/where-jobs-run.md)."
            )


def check_executor(config: PipelineConfig) -> Iterator[Finding]:
    """Checks that jobs outlive the tasks that start them."""
    problems = list(find_executor_problems(config))
    for problem in problems:
        what, _, cure = problem.partition(". Write ")
        yield Finding(check="Airflow's executor", problem=what, cure=f"Write {cure}")
    if not problems:
        yield Finding(check="Airflow's executor")
