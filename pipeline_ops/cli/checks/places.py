"""Checks of the places where jobs and gangs run: hosts files, hosts, images, rights."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterable, Iterator

from pydantic import ValidationError

from pipeline_ops.config.hosts import SshHosts
from pipeline_ops.config.hosts_base import Hosts
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.runs_on import TASKS
from pipeline_ops.errors import TrainyardError
from pipeline_ops.jobs.environment_check import digest_code
from pipeline_ops.jobs.places.environment import build_python_command
from pipeline_ops.jobs.places.open_place import make_place
from pipeline_ops.jobs.places.ssh import SshPlace, build_ssh_command
from pipeline_ops.jobs.remote_host import Answer, Question
from pipeline_ops.launch.messages import get_pipes
from pipeline_ops.planning.job_kinds import KINDS
from pipeline_ops.system.host_check import Finding

_MAX_SKEW_SECONDS = 120.0
_LISTEN_SECONDS = 60.0
_REMOTE_MODULE = "pipeline_ops.jobs.remote_host"


def check_places(config: PipelineConfig) -> Iterator[Finding]:
    """Checks each hosts file that the config names. A check that fails is a finding."""
    named: dict[str, tuple[Hosts, str | None]] = {}
    if config.hosts and config.train.hosts:
        named[config.train.hosts] = (config.hosts, None)
    for task in TASKS:
        if hosts := config.find_job_hosts(task):
            named[getattr(config, task).runs_on] = (hosts, task)
    for name, (hosts, user) in named.items():
        check, packages = f"hosts/{name}.yaml", KINDS[user or "train"].packages
        if isinstance(hosts, SshHosts):
            yield from _catch(check, _check_ssh_hosts(check, hosts, packages))
            if config.root.is_local:
                yield from _catch(check, _check_shared_folder(check, hosts, config))
        elif hosts.launcher != "local":
            yield from _check_place(check, hosts, packages if user else None)


def _catch(check: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    try:
        yield from findings
    except (TrainyardError, OSError, subprocess.SubprocessError, ValidationError) as error:
        yield Finding(check=check, problem=f"the check could not be made: {error}")


def _check_place(check: str, hosts: Hosts, packages: Iterable[str] | None) -> Iterator[Finding]:
    """Checks a container engine, a cluster or Slurm by the questions that a plan asks.

    For the hosts of a gang only, `packages` is None: their supervisor compares the packages.
    """
    try:
        place = make_place(hosts)
        if packages is not None:
            place.find_versions(packages)
        problems = list(place.check())
    except TrainyardError as error:
        yield Finding(check=check, problem=str(error))
        return
    yield from (finding.model_copy(update={"check": check}) for finding in problems)
    if not problems:
        yield Finding(check=check)


def _check_ssh_hosts(check: str, hosts: SshHosts, packages: Iterable[str]) -> Iterator[Finding]:
    place, question = SshPlace(hosts), Question(packages=list(packages))
    answers: dict[str, Answer] = {}
    for host in hosts.hosts:
        where = f"{check}: {host.name}"
        try:
            answers[host.name] = place.ask(host.name, "check", question)
        except TrainyardError as error:
            yield Finding(check=where, problem=str(error))
            continue
        yield from _judge_host(where, answers[host.name], answers)
    yield from _check_connections(check, hosts, list(answers))


def _judge_host(where: str, answer: Answer, answers: dict[str, Answer]) -> Iterator[Finding]:
    first = next(iter(answers.values()))
    findings = [finding for finding in answer.findings if finding.problem]
    yield from (f.model_copy(update={"check": f"{where}: {f.check}"}) for f in findings)
    if answer.code != digest_code():
        yield Finding(
            check=f"{where}: code",
            problem=f"its copy of Trainyard (digest {answer.code}) differs from this one",
            cure="Install the same version there, and correct `code` in the hosts file.",
        )
    elif abs(answer.time - time.time()) > _MAX_SKEW_SECONDS:
        yield Finding(
            check=f"{where}: clock",
            problem=f"its clock differs by {answer.time - time.time():.0f} s",
            cure="Set its clock, as with chrony.",
        )
    elif answer.versions != first.versions:
        differing = sorted(set(answer.versions.items()) ^ set(first.versions.items()))
        yield Finding(
            check=f"{where}: packages",
            problem="its packages differ from those of the first host: "
            + ", ".join(f"{name} {version}" for name, version in differing),
            cure="Install the same requirements on all hosts.",
        )
    elif not findings:
        yield Finding(check=where)


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
        ) as listener:
            questions, answers = get_pipes(listener)
            questions.write(Question(ports=ports).model_dump_json().encode() + b"\n")
            questions.flush()
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
