"""Starts a job `check` in each place that a config names, for `trainyard doctor`."""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from packaging.requirements import Requirement

from pipeline_ops.config.pipeline import TASKS, PipelineConfig
from pipeline_ops.contract.fingerprint import Fingerprint
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.request import Request
from pipeline_ops.errors import ExitCode, TrainyardError
from pipeline_ops.launch.place_check import MODULE, PlaceCheck, PlaceReport
from pipeline_ops.orchestration.job_handle import JobHandle
from pipeline_ops.orchestration.job_start import launch_job, write_attempt
from pipeline_ops.places.open_place import as_section, make_place
from pipeline_ops.places.place import PlaceSection, make_hosts_variable
from pipeline_ops.planning.job_kinds import KINDS
from pipeline_ops.storage.open_store import open_near, open_root
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.host import Finding

_SECONDS = 300
"""The longest time that a check may take, with its wait in a queue."""
_MAX_SKEW_SECONDS = 120.0
_POLL_SECONDS = 0.3
_MISSING = re.compile("No module named .*")
_DISTRIBUTION = "airflow-provider-trainyard"


class PlaceUse(NamedTuple):
    """One host, container, pod or batch job, and the tasks whose jobs may run there."""

    name: str
    hosts: PlaceSection | None
    """None is this host."""
    tasks: Sequence[str]


def find_uses(config: PipelineConfig) -> Iterator[PlaceUse]:
    """Yields the places of a config's jobs. Of hosts among which a job may choose, each one."""
    tasks: dict[str | None, list[str]] = {}
    for task in TASKS:
        tasks.setdefault(getattr(config, task).runs_on, []).append(task)
    for file, users in tasks.items():
        hosts = config.find_job_hosts(users[0])
        if hosts is None:
            yield PlaceUse("jobs on this host", None, users)
            continue
        for host, section in as_section(hosts).split().items():
            name = f"hosts/{file}.yaml{f': {host}' if host else ''}"
            yield PlaceUse(name, section, users)


def check_place(config: PipelineConfig, use: PlaceUse) -> Iterator[Finding]:
    """Runs a job that does nothing, and yields what it finds.

    Raises TrainyardError if the job can't be started, or ends without a report.
    """
    with contextlib.ExitStack() as stack:
        root = config.root
        if root.is_local and not root.local.exists():  # the first run makes it
            root = open_root(stack.enter_context(tempfile.TemporaryDirectory(prefix="trainyard-")))
        layout, run_id = Layout(root, config.pipeline), f"doctor-{uuid.uuid4().hex[:8]}"
        stack.callback(layout.run_folder(run_id).remove_tree)
        request, handle = _write_request(config, layout, run_id, use)
        try:  # also what a start has left that failed
            variables = make_hosts_variable(config.hosts if request.hosts else None)
            launch_job(request, MODULE, variables, handle)
            report = PlaceReport.model_validate(read_manifest(_wait(handle)).figures)
        finally:
            handle.end("trainyard doctor has ended")
    for finding in report.findings:
        yield finding.model_copy(update={"check": f"{use.name}: {finding.check}"})
    skew_seconds = report.time - time.time()
    if abs(skew_seconds) > _MAX_SKEW_SECONDS:
        yield Finding(
            check=f"{use.name}: clock",
            problem=f"its clock differs by {skew_seconds:.0f} s",
            cure="Set its clock, as with chrony.",
        )


def _write_request(
    config: PipelineConfig, layout: Layout, run_id: str, use: PlaceUse
) -> tuple[Request, JobHandle]:
    hosts = config.hosts if "train" in use.tasks else None
    extras, place = find_extras(use.tasks), make_place(use.hosts)
    check = PlaceCheck(
        requirements=[str(each) for each in list_requirements(extras)],
        extras=extras,
        train=config.train.model_dump(mode="json") if hosts else None,
    )
    packages = sorted({package for task in use.tasks for package in KINDS[task].packages})
    request = Request(
        job="check",
        pipeline=config.pipeline,
        run_id=run_id,
        config_file=str(config.file),
        config=check.model_dump(mode="json"),
        hosts=hosts and hosts.model_dump(mode="json", exclude={"environment"}),
        root=str(layout.root),
        artifact=str(layout.attempts(run_id, "check") / "report"),
        fingerprint=Fingerprint(
            config={}, inputs={}, code={}, versions=place.find_versions(packages)
        ),
        deadline_seconds=_SECONDS,
    )
    return request, write_attempt(request, layout, "check", place)


def _wait(handle: JobHandle) -> StorePath:
    """Returns the job's manifest."""
    deadline = time.monotonic() + _SECONDS
    while (status := handle.read_outcome()) is None:
        if time.monotonic() > deadline:
            state = handle.place.find(handle.attempt).message or "it runs"
            raise TrainyardError(f"a job that only checks has not ended in {_SECONDS} s: {state}")
        time.sleep(_POLL_SECONDS)
    if status.exit_code is not ExitCode.SUCCESS or status.manifest is None:
        message = status.message or f"the job ended with {status.exit_code.name}"
        if missing := _MISSING.search(message):
            raise TrainyardError(
                f"a job can't start there: {missing[0]}",
                "In a clone of Trainyard, run: PYTHON -m pip install --no-deps --require-hashes "
                "-r docker/locks/jobs.txt, with the Python of the jobs.",
            )
        raise TrainyardError(message)
    return open_near(handle.attempt.folder.root, status.manifest)


def find_extras(tasks: Iterable[str]) -> list[str]:
    """The extras that the jobs of tasks need. All but the first one use TensorFlow."""
    return sorted({task if task == "preprocess" else "train" for task in tasks})


def list_requirements(extras: Iterable[str]) -> list[Requirement]:
    """The packages that Trainyard declares for extras, without their markers."""
    found = []
    for each in map(Requirement, importlib.metadata.requires(_DISTRIBUTION) or []):
        if each.marker and any(each.marker.evaluate({"extra": extra}) for extra in extras):
            each.marker = None
            found.append(each)
    return found
