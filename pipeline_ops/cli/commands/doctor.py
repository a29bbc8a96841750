"""`trainyard doctor [CONFIG]`: what keeps jobs from running here, and what to do about it.

It checks the host, Airflow, the store, the data, and the places of jobs.
"""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import secrets
import shlex
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from pipeline_ops.cli.arguments import OptionalConfigFile
from pipeline_ops.cli.place_checks import check_place, find_uses
from pipeline_ops.config.hosts import parse_hosts
from pipeline_ops.config.pipeline import TASKS, PipelineConfig, load_config
from pipeline_ops.contract.layout import work_folder
from pipeline_ops.errors import ConfigError, ExitCode, TrainyardError
from pipeline_ops.job.workspace import find_jobs_folder
from pipeline_ops.launch.train import choose_isolation
from pipeline_ops.places.source_download import is_to_be_downloaded
from pipeline_ops.planning.bucket_check import check_bucket
from pipeline_ops.planning.plan import plan_job
from pipeline_ops.raw_data.folder import check_folder, find_raw_folder, read_folder_state
from pipeline_ops.system.gpus import find_gpu_problem, find_package_problem
from pipeline_ops.system.host import (
    OPEN_PORTS,
    Finding,
    check_host,
    find_isolation_problem,
)

_MAX_SKEW_SECONDS = 120.0
_DEVICE_CHECK, _DEVICE_SECONDS, _LOG_TAIL = "pipeline_ops.training.device_check", 300, 2000


def doctor(
    config_file: OptionalConfigFile = None,
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Also compute on the GPUs of this host, for a minute.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> int:
    """Check this machine, and all that a pipeline needs.

    Checks Python, disks, limits and GPUs. With a config, also the store and the raw
    data, and starts a job that only checks in each place that the config names: on
    this host, on each host over ssh, in a container, a pod or a Slurm job, and with
    the agents of a gang on its hosts. If it passes, a job starts there. Prints each
    problem with its cure. The exit status is 0 if there is none, and 75 if there is
    one. Warnings do not count. Writes files to the store and removes them, and runs a
    small job on Flink or Spark. With --gpu, names the devices, adds over all of them,
    and compares a short training on one with one on all.
    """
    findings = []
    for finding in find_all(config_file, has_gpus=gpu):
        findings.append(finding)
        if not as_json:
            _print_finding(finding)
    problems = [each for each in findings if each.problem and not each.is_warning]
    if as_json:
        values = [each.model_dump(mode="json") for each in findings]
        print(json.dumps({"is_healthy": not problems, "findings": values}, indent=2))
    else:
        num_passed = sum(not each.problem for each in findings)
        print(
            f"{len(findings)} checks: {num_passed} passed, {len(problems)} with a problem, "
            f"{len(findings) - num_passed - len(problems)} with a warning."
        )
    return ExitCode.RETRY if problems else ExitCode.SUCCESS


def _print_finding(finding: Finding) -> None:
    if not finding.problem:
        print(f"ok       {finding.check}", flush=True)
        return
    kind = "warning" if finding.is_warning else "PROBLEM"
    text = f"{finding.problem}\n{finding.cure}".strip().replace("\n", "\n         ")
    print(f"{kind:<9}{finding.check}: {text}", flush=True)


def find_all(file: Path | None, has_gpus: bool) -> Iterator[Finding]:
    """Yields the findings of all checks, each once it is there."""
    yield from find_problems(file)
    if has_gpus:
        yield from check_gpus()


def find_problems(file: Path | None) -> Iterator[Finding]:
    """Yields the findings of all checks but those of the GPUs' results."""
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
    yield from check_executor(config)
    cure = f"Correct `storage` in {config.file}, or give this user the right to write there."
    store = list(_examine("storage.root", _check_store(config), cure))
    yield from store
    cure = f"Correct preprocess.source in {config.file}."
    yield from _examine("preprocess.source", _check_raw_data(config), cure)
    yield from check_engine(config)
    yield from check_gang_ports(config)
    if not any(each.problem and not each.is_warning for each in store):
        yield from check_places(config)


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
    except Exception as error:  # of a place from another package
        frame = traceback.extract_tb(error.__traceback__)[-1]
        problem = f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
        yield Finding(check=check, problem=problem, cure="Correct the class of the launcher.")
        return
    if is_empty:
        yield Finding(check=check)


def _check_store(config: PipelineConfig) -> Iterator[Finding]:
    """Writes, reads and removes a file, tries a conditional write, and compares the clocks."""
    check, root = "storage.root", config.root
    if root.is_local and not root.local.exists():
        # The first run makes it. If hosts share it, its file system is not mounted here.
        places = [config.hosts, *map(config.find_job_hosts, TASKS)]
        is_shared = any(hosts and not hosts.is_this_host for hosts in places)
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


def check_places(config: PipelineConfig) -> Iterator[Finding]:
    """Starts a job that only checks in each place that the config names, one after the other."""
    for use in find_uses(config):
        cure = f"Start what {use.name} names, or correct that file."
        yield from _examine(use.name, check_place(config, use), cure)


def check_gang_ports(config: PipelineConfig) -> Iterator[Finding]:
    """Checks whether others can reach the ports of a gang on this host."""
    hosts = config.hosts or parse_hosts({"launcher": "local"})
    isolation = choose_isolation(config.train, hosts)
    train = config.find_job_hosts("train")
    if not (train is None or train.is_this_host) or not hosts.is_this_host or isolation == "never":
        return
    problem = find_isolation_problem()
    yield Finding(
        check="ports of the gang",
        problem=f"{OPEN_PORTS}, because {problem.reason}" if problem else "",
        cure=f"{problem.cure}." if problem else "",
        is_warning=bool(problem) and isolation != "always",
    )
