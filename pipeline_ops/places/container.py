"""Containers: each job is a container of a Docker daemon, on this host or on another one.

The name of the container follows from the attempt. A second container of that name is refused by
the daemon, so of two starters at the same time one starts the job. The daemon never starts a job
again by itself: Airflow's next try does.

A container has no right that it does not need, and shares nothing: what its job writes is in a
volume of its own, which is removed with the container. The library `docker` is imported nowhere
else.
"""

from __future__ import annotations

import functools
import json
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipeline_ops.config.fields import Section, config_field
from pipeline_ops.config.train import Train
from pipeline_ops.contract.cancellation import GRACE_SECONDS, read_cancellation_reason
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.errors import ConfigError, ExitCode, MachineError, TrainyardError
from pipeline_ops.job.job_code import IMAGE
from pipeline_ops.job.workspace import LOCAL_FOLDER_VARIABLE
from pipeline_ops.places.place import (
    JobLaunch,
    JobState,
    Place,
    PlaceSection,
    build_init_command,
    collect_store_environment,
    name_job,
)
from pipeline_ops.places.resources import Resources, describe_volume_cure, match_pattern
from pipeline_ops.storage.store_path import StorePath

WORK = "/work"
"""The only folder of a container that holds files. Its volume is removed with the container."""
_DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
_MISSING, _IN_CONFLICT = (404,), (409,)
"""Status codes of the daemon."""
_SECONDS = 60
_PULL_SECONDS = 3600
_NOT_PULLED = re.compile(
    r"not found|manifest unknown|denied|unauthorized|authentication required|no basic auth"
    r"|invalid reference|no matching manifest|repository does not exist",
    re.IGNORECASE,
)
_REFUSED = re.compile(
    r"could not select device driver|executable file not found|exec: |bind source path"
    r"|unknown device|nvidia-container-cli|network \S+ not found|not a directory"
)
_GPU_CURE = (
    "Install the NVIDIA container toolkit on the daemon's host, or correct `gpus` in the hosts file"
)
_TLS_CURE = (
    "It asks for TLS. Let DOCKER_CERT_PATH name a folder with ca.pem, cert.pem and key.pem for it"
)


class Daemon:
    """A Docker daemon, given by an address, by DOCKER_HOST, or the local one."""

    def __init__(self, address: str | None = None):
        self.address = address or os.environ.get("DOCKER_HOST") or _DEFAULT_ADDRESS
        if self.address.startswith("ssh://"):
            raise ConfigError(f"DOCKER_HOST is {self.address}", SSH_DAEMON)

    @functools.cached_property
    def _api(self) -> Any:
        """The client. It asks no proxy, and always checks the daemon's certificate."""
        docker = _import_docker()
        environment, folder = {"DOCKER_HOST": self.address}, os.environ.get("DOCKER_CERT_PATH", "")
        has_tls = folder or os.environ.get("DOCKER_TLS_VERIFY")
        if has_tls and not self.address.startswith("unix://"):
            environment |= {"DOCKER_CERT_PATH": folder, "DOCKER_TLS_VERIFY": "1"}
        options = docker.utils.kwargs_from_env(environment)

        def make_client(version: str) -> Any:
            client = docker.APIClient(**options, version=version, timeout=_SECONDS)
            client.trust_env = False
            return client

        least = make_client(docker.constants.MINIMUM_DOCKER_API_VERSION)
        return make_client(least.version(api_version=False)["ApiVersion"])

    def call(
        self, method: str, *arguments: Any, ignored: tuple[int, ...] = (), **options: Any
    ) -> Any:
        """Calls a method of docker's APIClient. Returns None after an `ignored` status code.

        Raises MachineError if the daemon does not answer or has failed, and ConfigError if it
        refuses the request or this user, or if a library is missing.
        """
        docker = _import_docker()
        try:
            return getattr(self._api, method)(*arguments, **options)
        except docker.errors.APIError as error:
            if error.status_code in ignored:
                return None
            raise self._to_error(error.status_code or 500, api_error_text(error)) from None
        except docker.errors.TLSParameterError as error:
            raise ConfigError(f"the Docker daemon {self.address}: {error}") from None
        except (docker.errors.DockerException, OSError) as error:  # OSError: those of `requests`
            raise self._describe_silence(error) from None

    def inspect(self, container: str) -> dict[str, Any] | None:
        """The description of a container. None if there is no such container."""
        found: dict[str, Any] | None = self.call("inspect_container", container, ignored=_MISSING)
        return found

    def start(self, container: str) -> None:
        """Starts a created container. A refused one is removed."""
        try:
            self.call("start", container)
        except ConfigError:
            self.remove(container)
            raise

    def remove(self, container: str) -> None:
        """Ends a container, and removes it with its volume. A missing one is ignored."""
        ignored = (*_MISSING, *_IN_CONFLICT)  # its removal may be in progress
        self.call("remove_container", container, v=True, force=True, ignored=ignored)

    def ensure_image(self, hosts: ContainerHosts) -> str:
        """The id of the image, which is pulled if it is missing. It must not run as root."""
        found = self.inspect_image(hosts.image)
        if found is None and hosts.pull == "missing":
            self._pull(hosts.image)
            found = self.inspect_image(hosts.image)
        if found is None:
            raise ConfigError(
                f"the Docker daemon {self.address} has no image {hosts.image}, and the hosts file "
                "has pull: never",
                "Build or load the image there, or write pull: missing",
            )
        config = found.get("Config") or {}
        if (config.get("User") or "").partition(":")[0] in ("", "0", "root"):
            raise ConfigError(
                f"containers of the image {hosts.image} would run as root",
                "Name another user in its Dockerfile, such as USER 10001:10001 (see "
                "docker/jobs.Dockerfile)",
            )
        if WORK not in (config.get("Volumes") or {}):
            raise ConfigError(
                f"the image {hosts.image} has no volume {WORK}, the only folder that jobs write to",
                "Make the folder in its Dockerfile, give it to the image's user, and write VOLUME "
                f"{WORK} (see docker/jobs.Dockerfile)",
            )
        return str(found["Id"])

    def inspect_image(self, image: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.call("inspect_image", image, ignored=_MISSING)
        return found

    def _pull(self, image: str) -> None:
        """Pulls an image. The thread bounds the time: the library waits for the daemon forever."""
        problems: list[str] = []

        def pull() -> None:
            repository, tag = _import_docker().utils.parse_repository_tag(image)
            try:
                for line in self._api.pull(repository, tag=tag or "latest").splitlines():
                    if line.strip() and (problem := json.loads(line).get("error")):
                        problems.append(problem)
            except Exception as error:
                problems.append(api_error_text(error))

        self.call("ping")  # a daemon that can't be reached has another error
        thread = threading.Thread(target=pull, name="pull", daemon=True)
        thread.start()
        thread.join(_PULL_SECONDS)
        if thread.is_alive():
            problems.append(f"not done after {_PULL_SECONDS} s")
        if problems and _NOT_PULLED.search(problems[0]):
            raise ConfigError(
                f"the image {image} can't be pulled: {problems[0]}. Correct `image` in the hosts "
                "file, push the image, or log in to its registry (docker login) on this host"
            )
        if problems:
            raise MachineError(f"the image {image} could not be pulled: {problems[0]}")

    def _to_error(self, status: int, explanation: str) -> TrainyardError:
        problem = f"the Docker daemon {self.address}: {explanation}"
        if "HTTPS server" in explanation:
            return ConfigError(problem, _TLS_CURE)
        is_refusal = 400 <= status < 500 and status not in (404, 408, 409, 429)
        if _REFUSED.search(explanation) or is_refusal:
            has_gpu_problem = "device" in explanation or "nvidia" in explanation
            return ConfigError(problem, _GPU_CURE if has_gpu_problem else "")
        return MachineError(problem)

    def _describe_silence(self, error: BaseException) -> TrainyardError:
        if "PermissionError" in repr(error) or "Permission denied" in str(error):
            return ConfigError(
                f"this user has no right to use the Docker daemon {self.address}",
                "Add the user to the group that owns the socket, or name another daemon in the "
                "hosts file",
            )
        if re.search(r"certificate|SSLError|TLS", str(error), re.IGNORECASE):
            return ConfigError(
                f"the Docker daemon {self.address}: {api_error_text(error)[-300:]}", _TLS_CURE
            )
        return MachineError(
            f"the Docker daemon {self.address} does not answer: {error}",
            "Start it, or correct `daemon` in the hosts file (or DOCKER_HOST)",
        )


def api_error_text(error: BaseException) -> str:
    """The explanation of the daemon, without the request that it answers."""
    text = getattr(error, "explanation", None) or str(error)
    return " ".join(str(text).split()).rstrip(".")


def _import_docker() -> Any:
    try:
        import docker
    except ImportError as error:
        raise ConfigError(
            "the hosts file has launcher: container, and the Docker SDK for Python is missing "
            f"({error})",
            "Install the extra docker: pip install '.[docker]' in a clone of Trainyard",
        ) from None
    return docker


_OWNER_LABEL, _OWNER = "trainyard.owner", "trainyard"
_PIPELINE_LABEL, _ATTEMPT_LABEL = "trainyard.pipeline", "trainyard.attempt"
_SHARED_MEMORY_BYTES = 1 << 30
"""The size of /dev/shm, through which GPUs exchange gradients. It counts as memory once used."""
_MAX_PROCESSES = 16384
"""Limit of processes and threads, against a fork bomb."""
_TEMPORARY = "rw,nosuid,nodev,noexec,size=256m,mode=1777"
_LOG_OPTIONS = {"max-size": "10m", "max-file": "2"}


def build_body(hosts: ContainerHosts, image: str, launch: JobLaunch) -> dict[str, Any]:
    """Builds the request that creates the container of a job, with an image given by its id."""
    command = build_init_command(hosts, launch)
    folders = {"HOME": WORK, "TMPDIR": WORK, LOCAL_FOLDER_VARIABLE: f"{WORK}/local"}
    access = {**collect_store_environment(os.environ), **launch.environment}
    shared_bytes = min(hosts.memory_bytes or _SHARED_MEMORY_BYTES, _SHARED_MEMORY_BYTES)
    host_config: dict[str, Any] = {
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "RestartPolicy": {"Name": "no"},
        "Tmpfs": {"/tmp": _TEMPORARY},  # noqa: S108
        "LogConfig": {"Type": "json-file", "Config": _LOG_OPTIONS},
        "PidsLimit": _MAX_PROCESSES,
        "ShmSize": shared_bytes,
        "Mounts": [
            {
                "Type": "bind",
                "Source": volume.folder,
                "Target": volume.mount,
                "ReadOnly": volume.read_only,
            }
            for volume in hosts.volumes
        ],
    }
    if hosts.docker_network:
        host_config["NetworkMode"] = hosts.docker_network
    if hosts.num_cores:
        host_config["NanoCpus"] = int(hosts.num_cores * 1e9)
    if hosts.memory_bytes:  # no swap besides: a job that needs it is hopelessly slow
        host_config |= {"Memory": hosts.memory_bytes, "MemorySwap": hosts.memory_bytes}
    if hosts.gpus:
        devices = {"Driver": "", "Capabilities": [["gpu"]], "Count": hosts.gpus}
        host_config["DeviceRequests"] = [devices]
    variables = folders | access | hosts.environment
    return {
        "Image": image,
        "Entrypoint": command[:1],
        "Cmd": command[1:],
        "Env": [f"{key}={value}" for key, value in variables.items()],
        "WorkingDir": WORK,
        "Labels": {
            _OWNER_LABEL: _OWNER,
            _PIPELINE_LABEL: launch.pipeline,
            "trainyard.job": launch.job,
            _ATTEMPT_LABEL: str(launch.attempt.folder),
        },
        "Volumes": {WORK: {}},
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": host_config,
    }


_TAIL_LINES, _TAIL_BYTES = 50, 2000
_KEEP = timedelta(days=1)
_CREATE_SECONDS, _POLL_SECONDS = 60.0, 0.2
_ENDED = ("created", "exited", "dead")
_KILLED, _STOPPED = 137, 143
_NO_PROGRAM = (126, 127)


class ContainerPlace(Place):
    """See `Place`."""

    check_seconds = 2.0

    def __init__(self, hosts: ContainerHosts):
        self._hosts, self._daemon = hosts, Daemon(hosts.daemon)

    def start(self, launch: JobLaunch) -> None:
        """Creates and starts the container.

        Starts a container that was created but not started, because its creator may have been
        killed. Starting a running container has no effect. Of two init processes of one attempt,
        only the first starts the job.
        """
        name = name_job(launch.attempt)
        deadline, image = time.monotonic() + _CREATE_SECONDS, ""
        while (found := self._daemon.inspect(name)) is None:
            image = image or self._find_planned_image(launch.versions.get(IMAGE))
            # Docker reserves the name before `inspect` can see the container.
            body = build_body(self._hosts, image, launch)
            if self._daemon.call(
                "create_container_from_config", body, name=name, ignored=_IN_CONFLICT
            ):
                continue
            time.sleep(_POLL_SECONDS)
            if time.monotonic() > deadline:
                raise MachineError(f"the container {name} can't be created, and is not there")
        if found["State"]["Status"] == "created":
            self._daemon.start(name)

    def _find_planned_image(self, planned: str | None) -> str:
        """Returns the id of the planned image, which the hosts file may have named by a tag.

        Raises MachineError if the hosts file now names another one: the next try plans with it.
        """
        if planned and self._daemon.inspect_image(planned):
            return planned
        image = self._daemon.ensure_image(self._hosts)
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
            return self._to_missing_state(attempt, name)
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

    def _to_missing_state(self, attempt: Attempt[StorePath], name: str) -> JobState:
        """The state of a job without a container.

        Raises MachineError if the job has begun. Without `daemon` in the hosts file, each host of
        Airflow may have a daemon of its own, and the job may run at another one.
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
        output = self._daemon.call("logs", name, tail=_TAIL_LINES, ignored=_MISSING) or b""
        return str(output[-_TAIL_BYTES:].decode(errors="replace").strip())

    def cancel(self, attempt: Attempt[StorePath]) -> None:
        """Stops the container. One that was not started is removed, and can't start later.

        The kernel ends all processes of a container with its first one.
        """
        name = name_job(attempt)
        self._daemon.call("stop", name, timeout=int(GRACE_SECONDS), ignored=_MISSING)
        if (found := self._daemon.inspect(name)) and found["State"]["Status"] == "created":
            self._daemon.remove(name)

    def clean(self, attempt: Attempt[StorePath]) -> bool:
        """Removes the container with its volume, and forgotten ones of the same pipeline."""
        name = name_job(attempt)
        if found := self._daemon.inspect(name):
            self._daemon.remove(name)
            pipeline = (found["Config"].get("Labels") or {}).get(_PIPELINE_LABEL, "")
            for forgotten in self._find_forgotten(pipeline):
                self._daemon.remove(forgotten)
        return self._daemon.inspect(name) is None

    def _find_forgotten(self, pipeline: str) -> Iterator[str]:
        """The containers that have ended a day ago. Their Airflow was killed, or is gone."""
        limit = datetime.now(UTC) - _KEEP
        labels = [f"{_OWNER_LABEL}={_OWNER}", f"{_PIPELINE_LABEL}={pipeline}", _ATTEMPT_LABEL]
        filters = {"label": labels, "status": list(_ENDED)}
        for container in self._daemon.call("containers", all=True, filters=filters):
            if container["Created"] < limit.timestamp():
                description = self._daemon.inspect(container["Id"])
                if description is None:
                    continue
                ended = description["State"]["FinishedAt"]  # of one that never ran: 0001-...
                when = description["Created"] if ended.startswith("0001") else ended
                if datetime.fromisoformat(when[:19]).replace(tzinfo=UTC) < limit:
                    yield container["Id"]

    def find_versions(self, packages: Iterable[str]) -> dict[str, str]:
        """The image's id, which stands for the versions of all packages in it."""
        return {IMAGE: self._daemon.ensure_image(self._hosts)}


SSH_DAEMON = (
    "Forward the socket of a daemon behind ssh (`ssh -N -L /run/gpu-1.sock:/var/run/docker.sock "
    "user@gpu-1`), and name it: unix:///run/gpu-1.sock"
)
_DaemonAddress = Annotated[
    str,
    match_pattern(
        "(unix|tcp|https?)://.+",
        f"an address that begins with unix://, tcp:// or https://. {SSH_DAEMON}",
    ),
]
_OWN_FOLDERS = ("/", "/tmp", "/work")  # noqa: S108


class FolderVolume(Section):
    """A folder of the container engine's host that the containers see."""

    folder: str = Field(pattern=r"^/")
    """The folder on the daemon's host."""
    mount: str = Field(pattern=r"^/")
    """The path of the folder in the containers. For a storage root, that on Airflow's host."""
    read_only: bool = False
    """Whether the containers can't write to it."""


class ContainerHosts(Resources, PlaceSection):
    """Containers of a Docker daemon, one for each job. A gang runs inside that of its train job.

    Containers run with a read-only root file system, without capabilities, and as the image's user,
    which must not be root. They share no folder with Airflow unless `volumes` names one.
    """

    has_image = True

    launcher: Literal["container"]
    image: str = config_field(..., selects_program=True, min_length=1)
    """The image. It must have this project's code and packages (`docker/jobs.Dockerfile`)."""
    daemon: _DaemonAddress | None = None
    """The daemon's address, such as `tcp://gpu-1.example:2376`. Null is the one that DOCKER_HOST
    names, or the local one. For TLS, DOCKER_CERT_PATH names the folder of the certificates."""
    docker_network: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """The Docker network of the containers, from which they must reach the store. Null is Docker's
    default network."""
    pull: Literal["missing", "never"] = "missing"
    """Whether the daemon pulls an image that it does not have."""
    volumes: list[FolderVolume] = config_field([], selects_program=True)

    @model_validator(mode="after")
    def _validate_network_and_volumes(self) -> ContainerHosts:
        if self.docker_network == "none":
            raise ValueError(
                "docker_network must be a network from which the store can be reached, got none"
            )
        for volume in self.volumes:
            if volume.mount in _OWN_FOLDERS:
                raise ValueError(
                    f"volumes must not be mounted at {volume.mount}, which each container has of "
                    "its own"
                )
        return self

    def validate_gang(self, train: Train, location: str) -> None:
        """Refuses a gang: a daemon has one machine, and one container can have all of its cores and
        GPUs.
        """
        raise ConfigError(
            f"{location}: train.hosts: {train.hosts} is a Docker daemon, which runs the job of a "
            f"training with its whole gang in one container. Write runs_on: {train.hosts} in the "
            "place of hosts, or name hosts with launcher ssh, slurm or kubernetes"
        )

    def find_folder_problem(self, folder: Path) -> str:
        cure = f"volumes: [{{folder: {folder}, mount: {folder}}}]"
        covering = [
            volume
            for volume in self.volumes
            if folder.is_relative_to(volume.mount) and not volume.read_only
        ]
        if not covering:
            return f"which is not seen there. {describe_volume_cure(cure)}"
        volume = max(covering, key=lambda each: len(each.mount))
        address, mount = self.daemon or os.environ.get("DOCKER_HOST") or "unix://", volume.mount
        # A daemon around the container of this process may see a folder that is missing here.
        if (
            address.startswith("unix://")
            and os.path.exists(volume.folder)
            and not (os.path.exists(mount) and os.path.samefile(volume.folder, mount))
        ):
            return (
                f"and a container has another folder there: {volume.folder}. "
                f"{describe_volume_cure(cure)}"
            )
        return ""

    def open_place(self) -> ContainerPlace:
        return ContainerPlace(self)
