"""The checks of `trainyard doctor`: host, Airflow, store, data, and the places of jobs."""

from __future__ import annotations

import configparser
import contextlib
import dataclasses
import importlib.metadata
import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from pydantic import ValidationError

from pipeline_ops.artifacts.layout import work_folder
from pipeline_ops.config.hosts import Hosts, SlurmHosts, SshHosts, parse_hosts
from pipeline_ops.config.pipeline import TASKS, PipelineConfig
from pipeline_ops.errors import ConfigError, TrainyardError
from pipeline_ops.jobs.job_code import digest_code
from pipeline_ops.jobs.places.open_place import make_place
from pipeline_ops.jobs.places.ssh import SshPlace, build_ssh_command
from pipeline_ops.jobs.remote_host import HostRequest, HostResponse
from pipeline_ops.launch.train import choose_isolation
from pipeline_ops.planning.job_kinds import KINDS
from pipeline_ops.planning.plan import plan_job
from pipeline_ops.planning.storage_probe import check_storage
from pipeline_ops.raw_data.folder import find_raw_folder, read_folder_state, validate_folder
from pipeline_ops.system.host import (
    CLOSE_PORTS,
    OPEN_PORTS,
    Finding,
    find_isolation_problem,
)
from pipeline_ops.user_code.interpreter import read_versions


def make_finding(check: str, error: Exception, cure: str) -> Finding:
    """Makes the finding for an error. `cure` is for an error that has none of its own."""
    if isinstance(error, TrainyardError) and error.cure:
        return Finding(check=check, problem=error.problem, cure=error.cure)
    return Finding(check=check, problem=str(error), cure=cure)


_MAX_SKEW_SECONDS = 120.0


def check_store(config: PipelineConfig) -> Iterator[Finding]:
    """Writes, reads and removes a file, tries a conditional write, and compares the clocks."""
    check, root = "storage.root", config.root
    if root.is_local and not root.local.exists():
        # The first run makes it. If hosts share it, its file system is not mounted here.
        places = [config.hosts, *map(config.find_job_hosts, TASKS)]
        is_shared = any(hosts and hosts.launcher != "local" for hosts in places)
        yield Finding(
            check=check,
            problem=f"{root.local} does not exist",
            cure=f"Mount its file system, or make it: mkdir -p {shlex.quote(str(root.local))}"
            if is_shared
            else "If it belongs to a file system, mount that. Otherwise the first run makes it.",
            is_warning=not is_shared,
        )
        return
    probe, content = root / f".probe.{secrets.token_hex(8)}", secrets.token_bytes(64)
    try:
        check_storage(config)
        try:
            before = time.time()
            probe.write(content)
            entry = probe.stat()
            if entry is None or probe.read() != content:
                raise TrainyardError(
                    f"{root}: a file that was just written is missing or has another content"
                )
            skew_seconds = entry.modified - before
        finally:
            probe.remove()
    except (TrainyardError, OSError) as error:
        cure = f"Correct `storage` in {config.file}, or give this user the right to write there."
        yield make_finding(check, error, cure)
        return
    yield Finding(check=check)
    if abs(skew_seconds) <= _MAX_SKEW_SECONDS:
        yield Finding(check="clock")
        return
    yield Finding(
        check="clock",
        problem=f"the store's clock differs from this host's by {skew_seconds:.0f} s, and stores "
        "refuse signed requests with a wrong time",
        cure="Set this host's clock, as with chrony.",
    )


def check_raw_data(config: PipelineConfig) -> Iterator[Finding]:
    """Looks whether the raw data are there."""
    check, folder, source = "preprocess.source", find_raw_folder(config), config.preprocess.source
    try:
        validate_folder(config)
        num_files = 1 if source.has_interval else read_folder_state(folder, source.file_patterns)[1]
    except (TrainyardError, OSError) as error:
        yield make_finding(check, error, f"Correct preprocess.source in {config.file}.")
        return
    if num_files:
        yield Finding(check=check)
        return
    yield Finding(
        check=check,
        problem=f"{folder} has no files",
        cure="Put the raw data there, or correct preprocess.source.path.",
    )


def check_signing_key(config: PipelineConfig) -> Iterator[Finding]:
    """Looks whether the key of the export can be read."""
    if config.export.signing_key is None or config.export.runs_on:
        return
    file = config.resolve_path(config.export.signing_key)
    if os.access(file, os.R_OK):
        yield Finding(check="export.signing_key")
        return
    yield Finding(
        check="export.signing_key",
        problem=f"{file} is missing, or this user may not read it",
        cure="Make a key (docs/publish-and-serve.md), or correct export.signing_key.",
    )


def check_engine(config: PipelineConfig) -> Iterator[Finding]:
    """Asks Beam's job server and Flink, as a run does before it starts a job, and then a worker."""
    runner = config.preprocess.runner
    if not runner.has_job_server:
        return
    from beam_jobs.engine import check_workers
    from beam_jobs.engine_job import EngineJob
    from beam_jobs.exchange import Exchange

    name = f"{runner.name} at {runner.endpoint}"
    try:
        warning = EngineJob(runner, "doctor").check()
    except TrainyardError as error:
        yield make_finding(name, error, "Correct preprocess.runner.")
    else:
        yield Finding(check=name, problem=warning, is_warning=bool(warning))
        if warning:
            return
        name = f"the workers of {runner.name} at {runner.worker_pool}"
        try:
            plan = plan_job("preprocess", config, "doctor", {})
            folder = work_folder(plan.manifest.parent) / f"doctor-{secrets.token_hex(4)}"
            check_workers(plan.request, runner, Exchange(folder))
        except TrainyardError as error:
            yield make_finding(name, error, "Correct preprocess.runner, or the workers.")
        else:
            yield Finding(check=name)


_DISTRIBUTION = "airflow-provider-trainyard"
_EQUIVALENTS = {"tensorflow": "tensorflow-cpu", "tensorflow-cpu": "tensorflow"}
"""Packages of which a host has either one: the first with GPUs, the second without."""


def check_packages(config: PipelineConfig) -> Iterator[Finding]:
    """Compares the installed packages with what Trainyard declares, for each local job."""
    jobs = [task for task in TASKS if config.find_job_hosts(task) is None]
    interpreters = {(config.resolve_interpreter(task), _find_extras([task])[0]) for task in jobs}
    for python, extra in sorted(interpreters, key=str):
        check = f"packages of {extra} jobs"
        place = f"{python or 'this environment'}, or let the task run elsewhere (runs_on)"
        try:
            versions = read_versions(python, list_packages([extra]))
            yield _compare_packages(check, [extra], versions, place)
        except ConfigError as error:
            yield make_finding(check, error, f"Correct `python` in {config.file}.")


def _find_extras(tasks: Iterable[str]) -> list[str]:
    """The extras that the jobs of tasks need. All but the first one use TensorFlow."""
    return sorted({task if task == "preprocess" else "train" for task in tasks})


def list_packages(extras: Sequence[str]) -> list[str]:
    """Lists the packages that jobs with these extras need."""
    wanted = _find_requirements(extras)
    return sorted({*wanted, *(_EQUIVALENTS[name] for name in wanted if name in _EQUIVALENTS)})


def _find_requirements(extras: Sequence[str]) -> dict[str, Requirement]:
    declared = map(Requirement, importlib.metadata.requires(_DISTRIBUTION) or [])
    return {
        each.name: each
        for each in declared
        if (marker := each.marker) and any(marker.evaluate({"extra": extra}) for extra in extras)
    }


def _compare_packages(
    check: str, extras: Sequence[str], found: Mapping[str, str], place: str
) -> Finding:
    problems = []
    for name, requirement in sorted(_find_requirements(extras).items()):
        version = found.get(name, found.get(_EQUIVALENTS.get(name, "")))
        if version is None:
            problems.append(f"{name} is not installed")
        elif not requirement.specifier.contains(version, prereleases=True):
            problems.append(f"{name} is {version}, and {requirement.specifier} is needed")
    if not problems:
        return Finding(check=check)
    cure = f"Install Trainyard from a clone (pip install '.[{','.join(extras)}]') into {place}."
    return Finding(check=check, problem="; ".join(problems), cure=cure)


def check_executor(config: PipelineConfig) -> Iterator[Finding]:
    """Finds the tasks whose jobs would die with the pods of their Airflow tasks."""
    executors = os.environ.get("AIRFLOW__CORE__EXECUTOR", "")
    if not executors:
        home = Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser()
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        with contextlib.suppress(configparser.Error):
            parser.read(home / "airflow.cfg")
        executors = parser.get("core", "executor", fallback="")
    executor, is_fine = executors.partition(",")[0].strip(), True
    for task in TASKS:
        if executor.endswith("KubernetesExecutor") and config.find_job_hosts(task) is None:
            is_fine = False
            yield Finding(
                check="Airflow's executor",
                problem=f"{config.locate((task,))}: {task} runs with Airflow's KubernetesExecutor, "
                "whose pod ends when the task defers, and takes a job along that runs in it",
                cure=f"Write `runs_on: NAME` into `{task}`, where hosts/NAME.yaml says where its "
                "job runs (docs/where-jobs-run.md).",
            )
    if is_fine:
        yield Finding(check="Airflow's executor")


@dataclasses.dataclass
class _Use:
    """The use of a hosts file by a pipeline.

    `tasks` are those whose jobs run there, and `users` those that work there, also as a gang.
    `starts_gang` says whether the Airflow worker starts a gang there.
    """

    hosts: Hosts
    tasks: list[str] = dataclasses.field(default_factory=list)
    users: list[str] = dataclasses.field(default_factory=list)
    starts_gang: bool = False

    @property
    def packages(self) -> set[str]:
        """The packages whose versions can change a result."""
        return {package for task in self.users for package in KINDS[task].packages}


def check_places(config: PipelineConfig) -> Iterator[Finding]:
    """Checks each hosts file that the config names. A check that fails is a finding.

    The gang of a train job with `runs_on` is left to that job, which alone needs to reach it.
    """
    uses: dict[str, _Use] = {}
    for task in TASKS:
        if hosts := config.find_job_hosts(task):
            use = uses.setdefault(getattr(config, task).runs_on, _Use(hosts))
            use.tasks.append(task)
            use.users.append(task)
    if config.hosts and config.train.hosts:
        starts_gang = config.train.runs_on is None
        if starts_gang or config.train.hosts in uses:
            use = uses.setdefault(config.train.hosts, _Use(config.hosts))
            use.users.append("train")
            use.starts_gang = starts_gang
        else:
            yield Finding(check=f"hosts/{config.train.hosts}.yaml (left to the train job)")
    for name, use in uses.items():
        check = f"hosts/{name}.yaml"
        if isinstance(use.hosts, SshHosts):
            yield from _catch(check, _check_ssh_hosts(check, use.hosts, use))
            if config.root.is_local and config.root.local.exists():
                yield from _catch(check, _check_shared_folder(check, use.hosts, config))
        elif use.hosts.launcher != "local":
            yield from _catch(check, _check_place(check, use))


def check_gang_ports(config: PipelineConfig) -> Iterator[Finding]:
    """Checks whether others can reach the ports of a gang on this host."""
    hosts = config.hosts or parse_hosts({"launcher": "local"})
    isolation = choose_isolation(config.train, hosts)
    if config.find_job_hosts("train") or hosts.launcher != "local" or isolation == "never":
        return
    problem = find_isolation_problem("" if config.root.is_local else str(config.root))
    yield Finding(
        check="ports of the gang",
        problem=f"{OPEN_PORTS}, because {problem}" if problem else "",
        cure=f"{CLOSE_PORTS}." if problem else "",
        is_warning=bool(problem) and isolation != "always",
    )


def _catch(check: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    try:
        yield from findings
    except (TrainyardError, OSError, subprocess.SubprocessError, ValidationError) as error:
        yield make_finding(check, error, f"Start what {check} names, or correct that file.")


def _check_place(check: str, use: _Use) -> Iterator[Finding]:
    """Checks a container engine, a cluster or Slurm. The packages in an image are not looked at."""
    place = make_place(use.hosts)
    findings = list(place.check()) if use.tasks else []
    if use.starts_gang:
        findings += [each for each in place.check_for_gang() if each not in findings]
    if use.tasks and isinstance(use.hosts, SlurmHosts):
        extras = _find_extras(use.users)
        versions = place.find_versions(list_packages(extras))
        python = f"{use.hosts.python or sys.executable} there"
        findings.append(_compare_packages(check, extras, versions, python))
    findings = [each for each in findings if each.problem]
    yield from (each.model_copy(update={"check": check}) for each in findings)
    if not findings:
        yield Finding(check=check)


def _check_ssh_hosts(check: str, hosts: SshHosts, use: _Use) -> Iterator[Finding]:
    place = SshPlace(hosts)
    packages = {*use.packages, *list_packages(_find_extras(use.users))}
    request = HostRequest(packages=sorted(packages))
    responses: dict[str, HostResponse] = {}
    for host in hosts.hosts:
        where = f"{check}: {host.name}"
        try:
            responses[host.name] = place.ask(host.name, "check", request)
        except TrainyardError as error:
            cure = f"Start {host.name}, or correct its name and the login in {check}. "
            cure += f"`ssh {host.name} true` must end without a question."
            yield make_finding(where, error, cure)
            continue
        findings = _check_host(where, responses[host.name], next(iter(responses.values())), use)
        yield from [each for each in findings if each.problem] or [Finding(check=where)]


def _check_host(
    where: str, response: HostResponse, first: HostResponse, use: _Use
) -> Iterator[Finding]:
    for each in response.findings:
        yield each.model_copy(update={"check": f"{where}: {each.check}"})
    if response.code != digest_code():
        yield Finding(
            check=f"{where}: code",
            problem=f"its copy of Trainyard (digest {response.code}) differs from this one",
            cure="Install the same version there, and correct `code` in the hosts file.",
        )
    if abs(response.time - time.time()) > _MAX_SKEW_SECONDS:
        yield Finding(
            check=f"{where}: clock",
            problem=f"its clock differs by {response.time - time.time():.0f} s",
            cure="Set its clock, as with chrony.",
        )
    packages, python = f"{where}: packages", f"{use.hosts.python or sys.executable} there"
    yield _compare_packages(packages, _find_extras(use.users), response.versions, python)
    pairs = set(response.versions.items()) ^ set(first.versions.items())
    differing = sorted(f"{name} {version}" for name, version in pairs if name in use.packages)
    if differing:
        yield Finding(
            check=packages,
            problem=f"its packages differ from those of the first host: {', '.join(differing)}",
            cure="Install the same requirements on all hosts.",
        )


def _check_shared_folder(check: str, hosts: SshHosts, config: PipelineConfig) -> Iterator[Finding]:
    """Looks whether the hosts see a file of the storage root, if that is a folder."""
    probe = config.root / ".probe.shared"
    try:
        probe.write(b"")
        for host in hosts.hosts:
            command = build_ssh_command(hosts, host.name, ["test", "-e", str(probe)])
            done = subprocess.run(command, capture_output=True, timeout=60)
            if done.returncode == 1:
                yield Finding(
                    check=f"{check}: {host.name}: storage.root",
                    problem=f"it does not see {config.root}",
                    cure="Mount the same file system there, or keep the storage root in a bucket.",
                )
    finally:
        probe.remove()


def check_all(config: PipelineConfig) -> Iterator[Finding]:
    """Makes all checks of a pipeline besides those of this host."""
    yield from check_packages(config)
    yield from check_executor(config)
    yield from check_store(config)
    yield from check_raw_data(config)
    yield from check_engine(config)
    yield from check_signing_key(config)
    yield from check_places(config)
    yield from check_gang_ports(config)
