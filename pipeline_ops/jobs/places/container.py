"""Containers: each job is a container of a Docker daemon, on this host or on another one.

The name of the container follows from the attempt. A second container of that name is refused by
the daemon, so of two starters at the same time one starts the job. The daemon never starts a job
again by itself: Airflow's next try does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pipeline_ops.artifacts.layout import Attempt
from pipeline_ops.config.hosts import ContainerHosts
from pipeline_ops.errors import ExitCode, MachineError
from pipeline_ops.jobs.cancellation import GRACE_SECONDS, read_cancellation_reason
from pipeline_ops.jobs.environment_check import IMAGE
from pipeline_ops.jobs.places.container_body import (
    ATTEMPT_LABEL,
    OWNER,
    OWNER_LABEL,
    PIPELINE_LABEL,
    ContainerUse,
    build_body,
    build_labels,
)
from pipeline_ops.jobs.places.container_daemon import Daemon, ignore_missing
from pipeline_ops.jobs.places.environment import build_python_command, collect_store_environment
from pipeline_ops.jobs.places.place import JobLaunch, JobState, Place, name_job
from pipeline_ops.jobs.remote_host import INIT_MODULE
from pipeline_ops.jobs.request import read_request
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.host_check import Finding

_TAIL_LINES, _TAIL_BYTES = 50, 2000
_KEEP = timedelta(days=1)
_CREATE_SECONDS, _POLL_SECONDS = 60.0, 0.2
_ENDED = ("created", "exited", "dead")
_KILLED, _STOPPED = 137, 143
_NO_PROGRAM = (126, 127)


class ContainerPlace(Place):
    """See `Place`.

    Args:
      hosts: the hosts file.
    """

    check_seconds = 2.0

    def __init__(self, hosts: ContainerHosts):
        self._hosts, self._daemon = hosts, Daemon(hosts.daemon)

    def start(self, launch: JobLaunch) -> None:
        """Creates and starts the container.

        A container that was created and not started is that of a killed starter, or of one at the
        same time. Its start is then repeated, which has no effect on a running one. If it has ended
        in this very moment, its init process finds the traces of its first life.
        """
        name = name_job(launch.attempt)
        deadline = time.monotonic() + _CREATE_SECONDS
        while (found := self._daemon.inspect(name)) is None:
            # A name is taken a moment before the container of that name can be seen.
            if self._daemon.create(name, self._build_body(launch)):
                continue
            time.sleep(_POLL_SECONDS)
            if time.monotonic() > deadline:
                raise MachineError(f"the container {name} can't be created, and is not there")
        if found["State"]["Status"] == "created":
            self._daemon.start(name)

    def _build_body(self, launch: JobLaunch) -> dict[str, Any]:
        attempt, hosts = launch.attempt, self._hosts
        command = build_python_command(hosts, INIT_MODULE, launch.module, str(attempt.request))
        access = {**collect_store_environment(os.environ), **launch.environment}
        use = ContainerUse(
            command=command,
            labels=build_labels(launch.pipeline, launch.job, str(attempt.folder)),
            environment=access | hosts.environment,
            network=hosts.docker_network,
        )
        return build_body(hosts, self._find_planned_image(attempt), use)

    def _find_planned_image(self, attempt: Attempt[StorePath]) -> str:
        """The id of the image that the fingerprint names.

        Raises:
          MachineError: the hosts file now names another image. The next try plans with it.
        """
        planned = read_request(attempt.request).fingerprint.versions.get(IMAGE)
        if planned and self._daemon.inspect_image(planned):
            return planned
        image = self._daemon.find_image(self._hosts)
        if planned and image != planned:
            raise MachineError(
                f"the image {self._hosts.image} is now {image}. When the job was planned, it was "
                f"{planned}, which the daemon no longer has"
            )
        return image

    def find(self, attempt: Attempt[StorePath]) -> JobState:
        name = name_job(attempt)
        found = self._daemon.inspect(name)
        if found is None:
            return self._judge_missing(attempt, name)
        state = found["State"]
        match state["Status"]:
            case "running" | "paused":
                return JobState("running")
            case "created" if not state.get("Error"):
                return JobState("absent", f"the container {name} was created and not started")
            case "restarting" | "removing" if state.get("Running"):
                return JobState("running")
        exit_code, cause = self._explain_end(attempt, state)
        return JobState("ended", f"the job ended without a status: {cause}", exit_code)

    def _judge_missing(self, attempt: Attempt[StorePath], name: str) -> JobState:
        """The state of a job without a container.

        Raises:
          MachineError: the job has begun. Without `daemon` in the hosts file, each host of Airflow
            may have a daemon of its own, and the job may run at another one.
        """
        problem = f"there is no container {name} on {self._daemon.address}"
        is_known_to_all = self._hosts.daemon is not None
        if is_known_to_all or not attempt.process.exists():
            return JobState("absent", problem)
        if read_cancellation_reason(attempt) is not None:
            return JobState("absent", problem)
        raise MachineError(
            f"{problem}. If Airflow has several hosts, name one daemon for all of them: `daemon` "
            "in the hosts file"
        )

    def _explain_end(
        self, attempt: Attempt[StorePath], state: Mapping[str, Any]
    ) -> tuple[ExitCode, str]:
        code, error = state["ExitCode"], state.get("Error", "")
        if state.get("OOMKilled"):
            limit = f" of {self._hosts.memory}" if self._hosts.memory else ""
            return ExitCode.RETRY, (
                f"out of memory: it needed more than the limit{limit}. Give it more `memory` in "
                "the hosts file, or lower the batch size"
            )
        if error or code in _NO_PROGRAM:
            problem = error or self.read_output(attempt) or f"exit code {code}"
            return ExitCode.CONFIG, (
                f"its container could not run it: {problem}. Correct `image`, `python` or `code` "
                "in the hosts file"
            )
        if code in (_KILLED, _STOPPED):
            return ExitCode.RETRY, (
                f"its container was killed by signal {code - 128}, by a person, by its daemon, or "
                "with its host"
            )
        last_line = self.read_output(attempt).rpartition("\n")[2]
        if code == 1 and "No module named" in last_line:
            return ExitCode.CONFIG, (
                f"the image {self._hosts.image} lacks this project or one of its packages. Build "
                "it with docker/jobs.Dockerfile, or set `python` and `code` in the hosts file"
            )
        is_known = code in (ExitCode.CONFIG, ExitCode.DATA)
        return ExitCode(code) if is_known else ExitCode.RETRY, f"its exit code is {code}"

    def read_output(self, attempt: Attempt[StorePath]) -> str:
        name = name_job(attempt)
        with self._daemon.connect() as api:
            output = ignore_missing(lambda: api.logs(name, tail=_TAIL_LINES)) or b""
        return str(output[-_TAIL_BYTES:].decode(errors="replace").strip())

    def cancel(self, attempt: Attempt[StorePath]) -> None:
        """Stops the container. One that was not started is removed, and can't start later.

        The kernel ends all processes of a container with its first one.
        """
        name = name_job(attempt)
        with self._daemon.connect() as api:
            ignore_missing(lambda: api.stop(name, timeout=int(GRACE_SECONDS)))
        if (found := self._daemon.inspect(name)) and found["State"]["Status"] == "created":
            self._daemon.remove(name)

    def clean(self, attempt: Attempt[StorePath]) -> bool:
        """Removes the container with its volume, and forgotten ones of the same pipeline."""
        name = name_job(attempt)
        if found := self._daemon.inspect(name):
            self._daemon.remove(name)
            pipeline = (found["Config"].get("Labels") or {}).get(PIPELINE_LABEL, "")
            for forgotten in self._find_forgotten(pipeline):
                self._daemon.remove(forgotten)
        return self._daemon.inspect(name) is None

    def _find_forgotten(self, pipeline: str) -> Iterator[str]:
        """The containers that have ended a day ago. Their Airflow was killed, or is gone."""
        limit = datetime.now(UTC) - _KEEP
        labels = [f"{OWNER_LABEL}={OWNER}", f"{PIPELINE_LABEL}={pipeline}", ATTEMPT_LABEL]
        filters = {"label": labels, "status": list(_ENDED)}
        with self._daemon.connect() as api:
            found = api.containers(all=True, filters=filters)
        for container in found:
            if container["Created"] < limit.timestamp():
                description = self._daemon.inspect(container["Id"])
                if description and _parse_end(description) < limit:
                    yield container["Id"]

    def check(self) -> Iterator[Finding]:
        """Asks the daemon for the image, and pulls nothing."""
        image = self._hosts.image
        if self._hosts.pull == "never" or self._daemon.inspect_image(image):
            self._daemon.find_image(self._hosts)
            return
        yield Finding(
            check="image",
            problem=f"the Docker daemon {self._daemon.address} does not have the image {image} yet",
            cure="The first job pulls it. `docker pull` there does so now, and shows whether the "
            "registry can be reached.",
            is_warning=True,
        )

    def find_versions(self, packages: Iterable[str]) -> dict[str, str]:
        """The image's id, which stands for the versions of all packages in it."""
        return {IMAGE: self._daemon.find_image(self._hosts)}


def _parse_end(container: Mapping[str, Any]) -> datetime:
    """The time when a container ended, or was created if it never ran."""
    ended = container["State"]["FinishedAt"]
    when = container["Created"] if ended.startswith("0001") else ended
    return datetime.fromisoformat(when[:19]).replace(tzinfo=UTC)
