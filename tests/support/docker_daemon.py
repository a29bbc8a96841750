"""A Docker daemon of the tests' own, with its data in a temporary folder, and images made there.

It needs root, and Debian's packages docker.io, docker-compose and iptables. The base image is
pulled, or made of Debian's packages where no registry can be reached (mmdebstrap).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BASE_IMAGE = "python:3.11-slim-bookworm"
_PACKAGES = {
    "dockerd": "docker.io",
    "docker-compose": "docker-compose",
    "iptables": "iptables",
    "mmdebstrap": "mmdebstrap",
}
_PATH = "/usr/bin:/usr/sbin:/bin:/sbin"
"""Another `docker` before Debian's may lack BuildKit."""
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_START_SECONDS, _STOP_SECONDS = 60, 60


def why_not() -> str | None:
    """The reason why no daemon can be started here. Installs missing packages if it may."""
    if os.geteuid() != 0:
        return "only root can start a Docker daemon"
    if missing := _find_missing():
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "-qq", "install", "-y", "--no-install-recommends", *missing]
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            for command in (["apt-get", "-qq", "update"], install):
                subprocess.run(command, env=environment, check=True, capture_output=True)
    missing = _find_missing()
    return f"{', '.join(missing)} not installed" if missing else None


def _find_missing() -> list[str]:
    return [
        package
        for program, package in _PACKAGES.items()
        if shutil.which(program, path=_PATH) is None
    ]


@dataclasses.dataclass(frozen=True)
class Docker:
    """The client of a daemon.

    Attributes:
      environment: the variables with which any program reaches the daemon.
    """

    environment: Mapping[str, str]

    def __call__(self, *words: object, **options) -> str:
        """Runs `docker WORDS` and returns its output."""
        done = self.run("docker", *words, **options)
        assert done.returncode == 0, f"docker {words}: {done.stderr[-4000:]}{done.stdout[-2000:]}"
        return done.stdout.strip()

    def run(self, *words: object, **options) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment, **options.pop("environment", {})}
        return subprocess.run(
            list(map(str, words)), env=environment, capture_output=True, text=True, **options
        )

    def build(self, tag: str, file: Path, context: Path, *options: str, kit: bool = False) -> str:
        """Builds an image. Returns its id."""
        self(
            *("build", "-q", "-f", file, "-t", tag, *options, context),
            environment={"DOCKER_BUILDKIT": "1" if kit else "0"},
        )
        return self("image", "inspect", "--format", "{{.Id}}", tag)


@contextlib.contextmanager
def docker_daemon() -> Iterator[Docker]:
    """Runs a daemon with a base image. All that it holds is removed at the end."""
    # The path of a socket is short, and pytest's folders may be long.
    folder = Path(tempfile.mkdtemp(prefix="docker", dir="/tmp"))
    socket = f"unix://{folder}/docker.sock"
    docker = Docker({**os.environ, "PATH": _PATH, "DOCKER_HOST": socket})
    arguments = {
        "--data-root": folder / "data",
        "--exec-root": folder / "exec",
        "--pidfile": folder / "pid",
        "--exec-opt": "native.cgroupdriver=cgroupfs",
        "-H": socket,
    }
    with open(folder / "log", "wb") as log:
        daemon = subprocess.Popen(
            ["dockerd", *(str(word) for pair in arguments.items() for word in pair)],
            env=docker.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_for(docker, daemon, folder / "log")
        _provide_base_image(docker, folder)
        yield docker
    finally:
        _stop(docker, daemon)
        shutil.rmtree(folder)


def _wait_for(docker: Docker, daemon: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while docker.run("docker", "version").returncode != 0:
        assert daemon.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(0.2)


def _stop(docker: Docker, daemon: subprocess.Popen) -> None:
    if running := docker.run("docker", "ps", "-q").stdout.split():
        docker.run("docker", "kill", *running)
    daemon.send_signal(signal.SIGTERM)
    try:
        daemon.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def _provide_base_image(docker: Docker, folder: Path) -> None:
    if docker.run("docker", "pull", "-q", BASE_IMAGE).returncode == 0:
        return
    archive = Path(os.environ.get("TRAINYARD_TEST_BASE", folder / "base.tar"))
    if not archive.exists():
        packages = "python3.11,python3-pip,python3-venv,ca-certificates"
        variant = ["--mode=root", "--variant=minbase", f"--include={packages}"]
        command = ["mmdebstrap", "-q", *variant, "bookworm", archive]
        done = docker.run(*command)
        assert done.returncode == 0, done.stderr[-4000:]
    docker("import", archive, "trainyard-test/debian")
    context = folder / "base"
    context.mkdir()
    shutil.copy(_CERTIFICATES, context / "certificates.crt")
    docker.build(BASE_IMAGE, ROOT / "tests" / "docker" / "Base.Dockerfile", context)


def copy_repository(folder: Path) -> Path:
    """Copies what a clone would have, with the changes that are not committed yet.

    All images of a test have the same code then, whatever changes meanwhile.
    """
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name in listed:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def wait_until_healthy(docker: Docker, container: str) -> None:
    health = "{{.State.Health.Status}}"
    wait_until(lambda: docker("inspect", "--format", health, container) == "healthy")


def wait_until(is_true: Callable[[], bool], seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.5)
