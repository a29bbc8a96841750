"""Checks of the places where jobs and gangs run: hosts files, hosts, images, rights."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from pydantic import ValidationError

from pipeline_ops.cli.checks.errors import make_finding
from pipeline_ops.cli.checks.here import EXTRAS, compare_packages, list_packages
from pipeline_ops.config.hosts import TASKS, Hosts, SlurmHosts, SshHosts, parse_hosts
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.errors import TrainyardError
from pipeline_ops.jobs.environment_check import digest_code
from pipeline_ops.jobs.places.environment import build_python_command
from pipeline_ops.jobs.places.open_place import make_place
from pipeline_ops.jobs.places.ssh import SshPlace, build_ssh_command
from pipeline_ops.jobs.remote_host import Answer, Question
from pipeline_ops.launch.agent import get_pipes
from pipeline_ops.launch.train import choose_isolation
from pipeline_ops.planning.job_kinds import KINDS
from pipeline_ops.system.host_check import Finding
from pipeline_ops.system.network_namespace import (
    CLOSE_PORTS,
    OPEN_PORTS,
    find_isolation_problem,
)

_MAX_SKEW_SECONDS = 120.0
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
