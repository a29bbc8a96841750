"""Checks of the host on which the command runs: its packages and Airflow's settings."""

from __future__ import annotations

import configparser
import importlib.metadata
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from pipeline_ops.cli.checks.errors import make_finding
from pipeline_ops.config.hosts import TASKS
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.errors import ConfigError
from pipeline_ops.jobs.workspace import find_jobs_folder
from pipeline_ops.system.host_check import Finding, check_host
from pipeline_ops.user_code.interpreter import read_versions

_DISTRIBUTION = "airflow-provider-trainyard"
EXTRAS = {
    "preprocess": ("preprocess",),
    "train": ("train",),
    "evaluate": ("train",),
    "export": ("train",),
}
"""The extras that a job needs, by task."""
_EQUIVALENTS = {"tensorflow": "tensorflow-cpu", "tensorflow-cpu": "tensorflow"}
"""Packages of which a host has either one: the first with GPUs, the second without."""


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
        (config.resolve_interpreter(task), EXTRAS[task])
        for task in TASKS
        if config.find_job_hosts(task) is None
    }
    for python, extras in sorted(interpreters, key=str):
        check = f"packages of {', '.join(extras)} jobs"
        try:
            yield _compare(check, extras, python)
        except ConfigError as error:
            cure = f"Correct `python` in {config.file}."
            yield make_finding(check, error, cure)


def _compare(check: str, extras: tuple[str, ...], python: Path | None) -> Finding:
    names = list_packages(extras)
    place = f"{python or 'this environment'}, or let the task run elsewhere (runs_on)"
    return compare_packages(check, extras, read_versions(python, names), place)


def list_packages(extras: Sequence[str]) -> list[str]:
    """The packages that jobs with these extras need. Without extras, those of Airflow's side."""
    wanted = _find_requirements(extras)
    return sorted({*wanted, *(_EQUIVALENTS[name] for name in wanted if name in _EQUIVALENTS)})


def compare_packages(
    check: str, extras: Sequence[str], found: Mapping[str, str], place: str
) -> Finding:
    """Compares versions with those that Trainyard declares. `place` is for the cure."""
    problems = []
    for name, requirement in sorted(_find_requirements(extras).items()):
        version = found.get(name, found.get(_EQUIVALENTS.get(name, "")))
        if version is None:
            problems.append(f"{name} is not installed")
        elif not requirement.specifier.contains(Version(version), prereleases=True):
            problems.append(f"{name} is {version}, and {requirement.specifier} is needed")
    if not problems:
        return Finding(check=check)
    names = f".[{','.join(extras)}]" if extras else "."
    cure = f"Install Trainyard from a clone (pip install '{names}') into {place}."
    return Finding(check=check, problem="; ".join(problems), cure=cure)


def _find_requirements(extras: Sequence[str]) -> dict[str, Requirement]:
    return {
        requirement.name: requirement
        for requirement in _list_requirements(extras)
        if bool(extras) == ("extra" in str(requirement.marker or ""))
    }


def _list_requirements(extras: Sequence[str]) -> Iterator[Requirement]:
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
                f"`runs_on: NAME` into `{task}`, where hosts/NAME.yaml says where its job runs "
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
