"""The checks of `trainyard doctor`: host, Airflow, store, data, and the places of jobs."""

from __future__ import annotations

import configparser
import contextlib
import dataclasses
import importlib.metadata
import os
import re
import secrets
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version
from pydantic import ValidationError

from pipeline_ops.artifacts.layout import work_folder
from pipeline_ops.config.hosts import Hosts, SlurmHosts, SshHosts, parse_hosts
from pipeline_ops.config.pipeline import TASKS, PipelineConfig
from pipeline_ops.errors import ConfigError, TrainyardError
from pipeline_ops.jobs.job_code import digest_code
from pipeline_ops.jobs.places.open_place import make_place
from pipeline_ops.jobs.places.place import build_python_command
from pipeline_ops.jobs.places.ssh import SshPlace, build_ssh_command
from pipeline_ops.jobs.remote_host import Answer, Question
from pipeline_ops.jobs.workspace import find_jobs_folder
from pipeline_ops.launch.agent import get_pipes
from pipeline_ops.launch.train import choose_isolation
from pipeline_ops.planning.job_kinds import KINDS
from pipeline_ops.planning.plan import plan_job
from pipeline_ops.planning.storage_probe import check_storage
from pipeline_ops.raw_data.folder import find_raw_folder, read_folder_state, validate_folder
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.host import (
    CLOSE_PORTS,
    OPEN_PORTS,
    Finding,
    check_host,
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
    check = "storage.root"
    if config.root.is_local and not config.root.local.exists():
        yield _describe_missing_root(config)
        return
    try:
        check_storage(config)
        skew_seconds = _try_file(config.root)
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


def _describe_missing_root(config: PipelineConfig) -> Finding:
    """A missing folder is a warning before the first run, which makes it on this host.

    If other hosts share it, it is a problem: its file system is not mounted here.
    """
    root = config.root.local
    places = [config.hosts, *map(config.find_job_hosts, TASKS)]
    is_shared = any(hosts and hosts.launcher != "local" for hosts in places)
    return Finding(
        check="storage.root",
        problem=f"{root} does not exist",
        cure=f"Mount its file system, or make it: mkdir -p {shlex.quote(str(root))}"
        if is_shared
        else "If it belongs to a file system, mount that. Otherwise the first run makes it.",
        is_warning=not is_shared,
    )


def _try_file(root: StorePath) -> float:
    """Returns by how many seconds the store's clock is ahead. Raises TrainyardError."""
    probe, content = root / f".probe.{secrets.token_hex(8)}", secrets.token_bytes(64)
    try:
        before = time.time()
        probe.write(content)
        entry = probe.stat()
        if entry is None or probe.read() != content:
            raise TrainyardError(
                f"{root}: a file that was just written is missing or has another content"
            )
        return entry.modified - before
    finally:
        probe.remove()


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


_LISTEN_SECONDS = 60.0
_REMOTE_MODULE = "pipeline_ops.jobs.remote_host"
_LOGIN_CURE = (
    "Start {host}, or correct its name and the login in {file}. `ssh {host} true` must end without "
    "a question."
)


@dataclasses.dataclass
class _Use:
    """The use of a hosts file by a pipeline.

    Attributes:
      hosts: the content of the file.
      tasks: the tasks whose jobs run there.
      has_gang: whether the gang of the training is there.
      starts_gang: whether the Airflow worker starts that gang.
    """

    hosts: Hosts
    tasks: list[str] = dataclasses.field(default_factory=list)
    has_gang: bool = False
    starts_gang: bool = False

    @property
    def users(self) -> list[str]:
        return [*self.tasks, *(["train"] if self.has_gang else [])]

    @property
    def packages(self) -> set[str]:
        """The packages whose versions can change a result."""
        return {package for task in self.users for package in KINDS[task].packages}

    @property
    def extras(self) -> list[str]:
        return sorted({extra for task in self.users for extra in EXTRAS[task]})


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
        versions = place.find_versions(list_packages(use.extras))
        findings.append(compare_packages(check, use.extras, versions, _locate_python(use.hosts)))
    findings = [each for each in findings if each.problem]
    yield from (each.model_copy(update={"check": check}) for each in findings)
    if not findings:
        yield Finding(check=check)


def _locate_python(hosts: Hosts) -> str:
    return f"{hosts.python or sys.executable} there"


def _check_ssh_hosts(check: str, hosts: SshHosts, use: _Use) -> Iterator[Finding]:
    place = SshPlace(hosts)
    question = Question(packages=sorted({*use.packages, *list_packages(use.extras)}))
    answers: dict[str, Answer] = {}
    for host in hosts.hosts:
        where = f"{check}: {host.name}"
        try:
            answers[host.name] = place.ask(host.name, "check", question)
        except TrainyardError as error:
            yield make_finding(where, error, _LOGIN_CURE.format(host=host.name, file=check))
            continue
        findings = _judge_host(where, answers[host.name], next(iter(answers.values())), use)
        yield from [each for each in findings if each.problem] or [Finding(check=where)]
    if use.has_gang:
        yield from _check_connections(check, hosts, list(answers))


def _judge_host(where: str, answer: Answer, first: Answer, use: _Use) -> Iterator[Finding]:
    for each in answer.findings:
        yield each.model_copy(update={"check": f"{where}: {each.check}"})
    if answer.code != digest_code():
        yield Finding(
            check=f"{where}: code",
            problem=f"its copy of Trainyard (digest {answer.code}) differs from this one",
            cure="Install the same version there, and correct `code` in the hosts file.",
        )
    if abs(answer.time - time.time()) > _MAX_SKEW_SECONDS:
        yield Finding(
            check=f"{where}: clock",
            problem=f"its clock differs by {answer.time - time.time():.0f} s",
            cure="Set its clock, as with chrony.",
        )
    packages = f"{where}: packages"
    yield compare_packages(packages, use.extras, answer.versions, _locate_python(use.hosts))
    pairs = set(answer.versions.items()) ^ set(first.versions.items())
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


def _check_connections(check: str, hosts: SshHosts, names: list[str]) -> Iterator[Finding]:
    """Lets each host connect to each other one, at a port that a gang would use."""
    place = SshPlace(hosts)
    ports = list(range(hosts.ports[0], hosts.ports[1] + 1)) if hosts.ports else []
    for host in hosts.hosts:
        others = [name for name in names if name != host.name]
        if host.name not in names or not others:
            continue
        where = f"{check}: {host.name}: port"
        command = build_python_command(hosts, _REMOTE_MODULE, "listen")
        with subprocess.Popen(
            build_ssh_command(hosts, host.name, command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        ) as listener:
            questions, answers = get_pipes(listener)
            with contextlib.suppress(BrokenPipeError):  # ssh has ended, and so has its output
                questions.write(Question(ports=ports).model_dump_json().encode() + b"\n")
            timer = threading.Timer(_LISTEN_SECONDS, listener.kill)
            timer.start()
            answer = Answer.model_validate_json(answers.readline() or b'{"error": "no answer"}')
            timer.cancel()
            if answer.error:
                yield Finding(
                    check=where,
                    problem=answer.error,
                    cure="Widen first_port and last_port, or end what uses these ports.",
                )
                continue
            target = Question(addresses=[f"{host.address or host.name}:{answer.port}"])
            unreachable = [n for n in others if place.ask(n, "connect", target).output]
        if unreachable:
            yield Finding(
                check=where,
                problem=f"{', '.join(unreachable)} can't connect to {target.addresses[0]}",
                cure="Open the ports between the hosts, set first_port and last_port to what the "
                "firewall lets through, or correct `address`.",
            )
