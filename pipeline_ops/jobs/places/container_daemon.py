"""A Docker daemon: the way to it, its images, and what its errors mean.

The library `docker` is imported nowhere else.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline_ops.config.hosts import ContainerHosts
from pipeline_ops.errors import ConfigError, MachineError, TrainyardError
from pipeline_ops.jobs.places.container_tunnel import SshTunnel, open_tunnel

WORK = "/work"
"""The only folder of a container that holds files. Its volume is removed with the container."""
DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
_SECONDS = 60
_PULL_SECONDS = 3600
_NOT_PULLED = re.compile(
    r"not found|manifest unknown|denied|unauthorized|authentication required|no basic auth"
    r"|invalid reference|no matching manifest|repository does not exist",
    re.IGNORECASE,
)
_REFUSED = re.compile(
    r"could not select device driver|executable file not found|exec: |bind source path"
    r"|unknown device|nvidia-container-cli|network \S+ not found|not a directory",
)
_GPU_CURE = (
    "Install the NVIDIA container toolkit on the daemon's host, or correct `gpus` in the hosts file"
)
_TLS_CURE = (
    "It asks for TLS. Let DOCKER_CERT_PATH name a folder with ca.pem, cert.pem and key.pem for it"
)


class Daemon:
    """A Docker daemon.

    Args:
      address: such as `ssh://user@host`. None is that of DOCKER_HOST, or the local one.
    """

    def __init__(self, address: str | None = None):
        self.address = address or os.environ.get("DOCKER_HOST") or DEFAULT_ADDRESS

    @functools.cached_property
    def socket_address(self) -> str:
        """The address that a socket can be connected to: with ssh, that of a tunnel."""
        return self._tunnel.address if self._tunnel else self.address

    @functools.cached_property
    def certificates(self) -> Path | None:
        """The folder of the certificates for TLS."""
        if not self.address.startswith(("tcp://", "http://", "https://")):
            return None
        folder = os.environ.get("DOCKER_CERT_PATH")
        if not folder and os.environ.get("DOCKER_TLS_VERIFY"):
            folder = "~/.docker"
        return Path(folder).expanduser() if folder else None

    @functools.cached_property
    def _tunnel(self) -> SshTunnel | None:
        return open_tunnel(self.address) if self.address.startswith("ssh://") else None

    @functools.cached_property
    def _api(self) -> Any:
        docker = _import_docker()
        tls: Any = False
        if self.certificates:
            pair = (str(self.certificates / "cert.pem"), str(self.certificates / "key.pem"))
            authority = str(self.certificates / "ca.pem")
            tls = docker.tls.TLSConfig(client_cert=pair, ca_cert=authority, verify=True)
        return self._make_client(tls, self._make_client(tls).version(api_version=False))

    def _make_client(self, tls: Any, version: Mapping[str, str] | None = None) -> Any:
        """Makes a client. It asks no proxy, and trusts no authority but that of the daemon.

        Args:
          tls: the certificates.
          version: the answer of the daemon. None is for asking it.
        """
        constants = _import_docker().constants
        number = version["ApiVersion"] if version else constants.MINIMUM_DOCKER_API_VERSION
        client = _import_docker().APIClient(
            self.socket_address, version=number, timeout=_SECONDS, tls=tls
        )
        client.trust_env = False
        return client

    @contextlib.contextmanager
    def connect(self) -> Iterator[Any]:
        """Yields the client of the daemon, whose errors become ours.

        Raises:
          MachineError: the daemon can't be reached, does not answer, or has failed.
          ConfigError: the daemon refuses the request or this user, or a library is missing.
        """
        docker = _import_docker()
        try:
            yield self._api
        except docker.errors.APIError as error:
            raise self._judge(error.status_code or 500, explain(error)) from None
        except docker.errors.TLSParameterError as error:
            raise ConfigError(f"the Docker daemon {self.address}: {error}") from None
        except (docker.errors.DockerException, OSError) as error:  # OSError: those of `requests`
            raise self._describe_silence(error) from None

    def inspect(self, container: str) -> dict[str, Any] | None:
        """The description of a container. None if there is no such container."""
        with self.connect() as api:
            found: dict[str, Any] | None = ignore_missing(lambda: api.inspect_container(container))
            return found

    def create(self, name: str, body: Mapping[str, Any]) -> bool:
        """Creates a container. Returns False if there is one of that name already."""
        docker = _import_docker()
        with self.connect() as api:
            try:
                api.create_container_from_config(dict(body), name=name)
            except docker.errors.APIError as error:
                if error.status_code != 409:
                    raise
                return False
        return True

    def start(self, name: str) -> None:
        """Starts a created container. A refused one is removed."""
        try:
            with self.connect() as api:
                api.start(name)
        except ConfigError:
            self.remove(name)
            raise

    def remove(self, name: str) -> None:
        """Ends a container, and removes it with its volume. A missing one is ignored."""
        docker = _import_docker()
        with self.connect() as api:
            try:
                api.remove_container(name, v=True, force=True)
            except docker.errors.APIError as error:
                if error.status_code not in (404, 409):  # 409: its removal is in progress
                    raise

    def find_image(self, hosts: ContainerHosts) -> str:
        """The id of the image, which is pulled if it is missing.

        Raises:
          ConfigError: there is no such image, or it must not be run.
          MachineError: the registry or the daemon can't be reached.
        """
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
        _validate_image(hosts.image, found)
        return str(found["Id"])

    def inspect_image(self, image: str) -> dict[str, Any] | None:
        with self.connect() as api:
            found: dict[str, Any] | None = ignore_missing(lambda: api.inspect_image(image))
            return found

    def _pull(self, image: str) -> None:
        """Pulls an image. The thread bounds the time: the library waits for the daemon forever."""
        problems: list[str] = []

        def pull() -> None:
            try:
                problems.extend(_read_pull(self._api, image))
            except Exception as error:
                problems.append(explain(error))

        with self.connect():  # a daemon that can't be reached has another error
            self._api.ping()
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

    def _judge(self, status: int, explanation: str) -> TrainyardError:
        problem = f"the Docker daemon {self.address}: {explanation}"
        if "HTTPS server" in explanation:
            return ConfigError(problem, _TLS_CURE)
        is_refusal = 400 <= status < 500 and status not in (404, 408, 409, 429)
        if _REFUSED.search(explanation) or is_refusal:
            has_gpu_problem = "device" in explanation or "nvidia" in explanation
            return ConfigError(problem, _GPU_CURE if has_gpu_problem else "")
        return MachineError(problem)

    def _describe_silence(self, error: BaseException) -> TrainyardError:
        """The error for a daemon that gives no answer."""
        tunnel_problem = self._tunnel.read_problem() if self._tunnel else ""
        if self._tunnel and self._tunnel.is_refused:
            return ConfigError(
                f"the Docker daemon {self.address}: {tunnel_problem}",
                "ssh must reach the host without a question, and `docker` must be installed there",
            )
        if "PermissionError" in repr(error) or "Permission denied" in str(error):
            return ConfigError(
                f"this user has no right to use the Docker daemon {self.address}",
                "Add the user to the group that owns the socket, or name another daemon in the "
                "hosts file",
            )
        if re.search(r"certificate|SSLError|TLS", str(error), re.IGNORECASE):
            return ConfigError(
                f"the Docker daemon {self.address}: {explain(error)[-300:]}", _TLS_CURE
            )
        return MachineError(
            f"the Docker daemon {self.address} does not answer: {tunnel_problem or error}",
            "Start it, or correct `daemon` in the hosts file (or DOCKER_HOST)",
        )


def _read_pull(api: Any, image: str) -> list[str]:
    """Pulls an image. Returns the errors, which come in the stream of progress messages."""
    repository, tag = _import_docker().utils.parse_repository_tag(image)
    lines = api.pull(repository, tag=tag or "latest").splitlines()
    messages = [json.loads(line) for line in lines if line.strip()]
    return [message["error"] for message in messages if "error" in message]


def _validate_image(name: str, image: Mapping[str, Any]) -> None:
    config = image.get("Config") or {}
    user = (config.get("User") or "").partition(":")[0]
    if user in ("", "0", "root"):
        raise ConfigError(
            f"containers of the image {name} would run as root",
            "Name another user in its Dockerfile, such as USER 10001:10001 (see "
            "docker/jobs.Dockerfile)",
        )
    if WORK not in (config.get("Volumes") or {}):
        raise ConfigError(
            f"the image {name} has no volume {WORK}, the only folder that jobs write to",
            f"Make the folder in its Dockerfile, give it to the image's user, and write VOLUME "
            f"{WORK} (see docker/jobs.Dockerfile)",
        )


def explain(error: BaseException) -> str:
    """The explanation of the daemon, without the request that it answers."""
    text = getattr(error, "explanation", None) or str(error)
    return " ".join(str(text).split()).rstrip(".")


def ignore_missing(call: Callable[[], Any]) -> Any:
    """The result of a call. None if what it concerns does not exist."""
    try:
        return call()
    except _import_docker().errors.NotFound:
        return None


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
