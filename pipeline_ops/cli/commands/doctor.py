"""`trainyard doctor [CONFIG]`: what keeps jobs from running here, and what to do about it.

It checks the host, Airflow, the store, the data, and the places of jobs.
"""

from __future__ import annotations

import configparser
import contextlib
import dataclasses
import importlib.metadata
import json
import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from packaging.requirements import Requirement
from pydantic import TypeAdapter, ValidationError

from pipeline_ops.cli.arguments import OptionalConfigFile
from pipeline_ops.config.hosts import Hosts, parse_hosts
from pipeline_ops.config.pipeline import TASKS, PipelineConfig, load_config
from pipeline_ops.contract.layout import work_folder
from pipeline_ops.errors import ConfigError, ExitCode, TrainyardError
from pipeline_ops.job.job_code import digest_code
from pipeline_ops.job.workspace import find_jobs_folder
from pipeline_ops.launch.train import choose_isolation
from pipeline_ops.places.open_place import make_place
from pipeline_ops.places.remote_host import HostRequest, HostResponse
from pipeline_ops.places.slurm import SlurmHosts
from pipeline_ops.places.source_download import is_to_be_downloaded
from pipeline_ops.places.ssh import SshHosts, SshPlace, build_ssh_command
from pipeline_ops.planning.bucket_check import check_bucket
from pipeline_ops.planning.job_kinds import KINDS
from pipeline_ops.planning.plan import plan_job
from pipeline_ops.raw_data.folder import check_folder, find_raw_folder, read_folder_state
from pipeline_ops.system.gpus import find_gpu_problem, find_package_problem
from pipeline_ops.system.host import (
    OPEN_PORTS,
    Finding,
    check_host,
    find_isolation_problem,
)
from pipeline_ops.user_code.interpreter import read_versions

_MAX_SKEW_SECONDS = 120.0
_DISTRIBUTION = "airflow-provider-trainyard"
_DEVICE_CHECK, _DEVICE_SECONDS, _LOG_TAIL = "pipeline_ops.training.device_check", 300, 2000
_EQUIVALENTS = {"tensorflow": "tensorflow-cpu", "tensorflow-cpu": "tensorflow"}
"""Packages of which a host has either one: the first with GPUs, the second without."""


def doctor(
    config_file: OptionalConfigFile = None,
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Also compute on the GPUs of this host, for a minute.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> int:
    """Check this machine, and all that a pipeline needs.

    Checks Python, disks, limits and GPUs. With a config, also the packages of the
    jobs, the store, the raw data, the keys, and the hosts, images and clusters that it
    names. Prints each problem with its cure. The exit status is 0 if there is none,
    and 75 if there is one. Warnings do not count. Writes files to the store and
    removes them, and runs a small job on Flink or Spark. Pulls no image. With --gpu,
    names the devices, adds over all of them, and compares a short training on one with
    one on all.
    """
    findings = list(find_all(config_file))
    if gpu:
        findings += check_gpus()
    problems = [each for each in findings if each.problem and not each.is_warning]
    if as_json:
        values = [each.model_dump(mode="json") for each in findings]
        print(json.dumps({"is_healthy": not problems, "findings": values}, indent=2))
    else:
        for finding in findings:
            if not finding.problem:
                print(f"ok       {finding.check}")
                continue
            kind = "warning" if finding.is_warning else "PROBLEM"
            text = f"{finding.problem}\n{finding.cure}".strip().replace("\n", "\n         ")
            print(f"{kind:<9}{finding.check}: {text}")
        num_passed = sum(not each.problem for each in findings)
        print(
            f"{len(findings)} checks: {num_passed} passed, {len(problems)} with a problem, "
            f"{len(findings) - num_passed - len(problems)} with a warning."
        )
    return ExitCode.RETRY if problems else ExitCode.SUCCESS


def find_all(file: Path | None) -> Iterator[Finding]:
    """Yields the findings of all checks."""
    config = None
    if file is not None:
        try:
            config = load_config(file)
            yield Finding(check=str(file))
        except ConfigError as error:
            cure = f"Correct {file}. `trainyard validate {file}` shows whether it is right."
            yield _make_finding(str(file), error, cure)
    folders = {"the local folder of jobs": find_jobs_folder()}
    if config and config.root.is_local:
        folders["storage.root"] = config.root.local
    yield from check_host(folders)
    if config is None:
        return
    yield from check_packages(config)
    yield from check_executor(config)
    cure = f"Correct `storage` in {config.file}, or give this user the right to write there."
    yield from _examine("storage.root", _check_store(config), cure)
    cure = f"Correct preprocess.source in {config.file}."
    yield from _examine("preprocess.source", _check_raw_data(config), cure)
    yield from check_engine(config)
    yield from check_places(config)
    yield from check_gang_ports(config)


def check_gpus() -> list[Finding]:
    """Checks the GPUs of this host in a process of its own, which frees them when it ends."""
    if problem := find_package_problem() or find_gpu_problem():
        return [Finding(check="GPUs", problem=problem[0], cure=problem[1])]
    command = [sys.executable, "-m", _DEVICE_CHECK, "gpu"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_DEVICE_SECONDS
        )
        return TypeAdapter(list[Finding]).validate_json(done.stdout.splitlines()[-1])
    except subprocess.SubprocessError as error:
        log = str(getattr(error, "stderr", "") or "").strip()[-_LOG_TAIL:]
        cure = f"{' '.join(command)} shows the whole log."
        return [Finding(check="GPUs", problem=f"{error}\n{log}", cure=cure)]


def _make_finding(check: str, error: Exception, cure: str) -> Finding:
    """Makes the finding for an error. `cure` is for an error that has none of its own."""
    if isinstance(error, TrainyardError) and error.cure:
        return Finding(check=check, problem=error.problem, cure=error.cure)
    return Finding(check=check, problem=str(error), cure=cure)


def _examine(check: str, findings: Iterator[Finding], cure: str) -> Iterator[Finding]:
    """Yields the findings, one for an error of the check, or one without a problem."""
    is_empty = True
    try:
        for finding in findings:
            yield finding
            is_empty = False
    except (TrainyardError, OSError, subprocess.SubprocessError, ValidationError) as error:
        yield _make_finding(check, error, cure)
        return
    if is_empty:
        yield Finding(check=check)


def _check_store(config: PipelineConfig) -> Iterator[Finding]:
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
    check_bucket(config)
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


def _check_raw_data(config: PipelineConfig) -> Iterator[Finding]:
    folder, source = find_raw_folder(config), config.preprocess.source
    if is_to_be_downloaded(config):
        return
    check_folder(config)
    if not (source.has_interval or read_folder_state(folder, source.file_patterns)[1]):
        yield Finding(
            check="preprocess.source",
            problem=f"{folder} has no files",
            cure="Put the raw data there, or correct preprocess.source.path.",
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
        yield Finding(check=name, problem=warning, is_warning=bool(warning))
        if warning:
            return
        name = f"the workers of {runner.name} at {runner.worker_pool}"
        plan = plan_job("preprocess", config, "doctor", {})
        folder = work_folder(plan.manifest.parent) / f"doctor-{secrets.token_hex(4)}"
        check_workers(plan.request, runner, Exchange(folder))
        yield Finding(check=name)
    except TrainyardError as error:
        workers = ", or the workers" if name.startswith("the workers") else ""
        yield _make_finding(name, error, f"Correct preprocess.runner{workers}.")


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
            yield _make_finding(check, error, f"Correct `python` in {config.file}.")


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
    is_pod = executors.partition(",")[0].strip().endswith("KubernetesExecutor")
    problems = [
        Finding(
            check="Airflow's executor",
            problem=f"{config.locate((task,))}: {task} runs with Airflow's KubernetesExecutor, "
            "whose pod ends when the task defers, and takes a job along that runs in it",
            cure=f"Write `runs_on: NAME` into `{task}`, where hosts/NAME.yaml says where its "
            "job runs (docs/where-jobs-run.md).",
        )
        for task in TASKS
        if is_pod and config.find_job_hosts(task) is None
    ]
    yield from problems or [Finding(check="Airflow's executor")]


@dataclasses.dataclass
class _Use:
    """The use of a hosts file by a pipeline: the tasks whose jobs run there, and the gang.

    `has_gang` says whether the gang of the train job works there, and `starts_gang` whether the
    Airflow worker starts it.
    """

    hosts: Hosts
    tasks: list[str] = dataclasses.field(default_factory=list)
    has_gang: bool = False
    starts_gang: bool = False

    @property
    def users(self) -> list[str]:
        return [*self.tasks, *(["train"] if self.has_gang else [])]


def check_places(config: PipelineConfig) -> Iterator[Finding]:
    """Checks each hosts file that the config names. A check that fails is a finding.

    The gang of a train job with `runs_on` is left to that job, which alone needs to reach it.
    """
    uses: dict[str, _Use] = {}
    for task in TASKS:
        if hosts := config.find_job_hosts(task):
            uses.setdefault(getattr(config, task).runs_on, _Use(hosts)).tasks.append(task)
    if config.hosts and config.train.hosts:
        starts_gang = config.train.runs_on is None
        if starts_gang or config.train.hosts in uses:
            use = uses.setdefault(config.train.hosts, _Use(config.hosts))
            use.has_gang, use.starts_gang = True, starts_gang
        else:
            yield Finding(check=f"hosts/{config.train.hosts}.yaml (left to the train job)")
    for name, use in uses.items():
        check = f"hosts/{name}.yaml"
        cure = f"Start what {check} names, or correct that file."
        if isinstance(use.hosts, SshHosts):
            yield from _examine(check, _check_ssh_hosts(check, use.hosts, use, config), cure)
        elif use.hosts.launcher not in ("local", "tf_config"):
            yield from _examine(check, _check_place(check, use), cure)


def check_gang_ports(config: PipelineConfig) -> Iterator[Finding]:
    """Checks whether others can reach the ports of a gang on this host."""
    hosts = config.hosts or parse_hosts({"launcher": "local"})
    isolation = choose_isolation(config.train, hosts)
    if config.find_job_hosts("train") or hosts.launcher != "local" or isolation == "never":
        return
    problem = find_isolation_problem()
    yield Finding(
        check="ports of the gang",
        problem=f"{OPEN_PORTS}, because {problem.reason}" if problem else "",
        cure=f"{problem.cure}." if problem else "",
        is_warning=bool(problem) and isolation != "always",
    )


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
    yield from (each.model_copy(update={"check": check}) for each in findings if each.problem)


def _check_ssh_hosts(
    check: str, hosts: SshHosts, use: _Use, config: PipelineConfig
) -> Iterator[Finding]:
    place, first = SshPlace(hosts), None
    # Those whose versions can change a result, and those that the jobs need.
    packages = {package for task in use.users for package in KINDS[task].packages}
    request = HostRequest(packages=sorted({*packages, *list_packages(_find_extras(use.users))}))
    for host in hosts.hosts:
        where = f"{check}: {host.name}"
        try:
            response = place.ask(host.name, "check", request)
        except TrainyardError as error:
            cure = f"Start {host.name}, or correct its name and the login in {check}. "
            cure += f"`ssh {host.name} true` must end without a question."
            yield _make_finding(where, error, cure)
            continue
        first = first or response
        findings = list(_check_host(where, response, use))
        pairs = set(response.versions.items()) ^ set(first.versions.items())
        differing = sorted(f"{name} {version}" for name, version in pairs if name in packages)
        if differing:
            problem = f"its packages differ from those of the first host: {', '.join(differing)}"
            cure = "Install the same requirements on all hosts."
            findings.append(Finding(check=f"{where}: packages", problem=problem, cure=cure))
        yield from [each for each in findings if each.problem] or [Finding(check=where)]
    if config.root.is_local and config.root.local.exists():
        yield from _check_shared_folder(check, hosts, config)


def _check_host(where: str, response: HostResponse, use: _Use) -> Iterator[Finding]:
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
