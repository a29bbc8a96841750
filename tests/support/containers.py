"""A Docker daemon that tests may kill, with its data in a temporary folder.

It needs root, and Debian's packages docker.io, docker-compose and iptables. Its base image is
pulled, or made of Debian's packages where no registry can be reached (mmdebstrap).

The daemon has a network namespace, so it meets no other daemon of this machine. Its containers
reach this machine at `gateway`, and through it a package index. It can be stopped, killed, lost
with all its containers, and started again, and its disk can be filled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
from processes import is_running

from pipeline_ops.contract.layout import Attempt
from pipeline_ops.places.container import ContainerHosts, ContainerPlace
from pipeline_ops.places.place import name_job
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.locks import exclusive_lock

ROOT = Path(__file__).resolve().parents[2]
BASE_IMAGE = "python:3.11-slim-bookworm"
_PACKAGES = {
    "dockerd": "docker.io",
    "docker-compose": "docker-compose",
    "ip": "iproute2",
    "iptables": "iptables",
    "mkfs.ext4": "e2fsprogs",
    "mmdebstrap": "mmdebstrap",
    "nsenter": "util-linux",
    "openssl": "openssl",
}
_PATH = "/usr/bin:/usr/sbin:/bin:/sbin"
"""Another `docker` before Debian's may lack BuildKit."""
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_NUMBERS = range(80, 240)
_START_SECONDS = 60.0
_DISK_BYTES, _VOLUMES_BYTES = 40 << 30, 1 << 30
_NEEDED = ("pipeline_ops.places.init_process", "pipeline_ops.job.runner", "place_job")
_SMALL = f"""
FROM {BASE_IMAGE}
COPY site /opt/site
COPY code /opt/trainyard
ENV PYTHONPATH=/opt/site:/opt/trainyard PYTHONDONTWRITEBYTECODE=1
RUN mkdir -m 0700 /work && chown 10001:10001 /work
USER 10001:10001
VOLUME /work
"""


def why_not() -> str | None:
    """The reason why no daemon can be started here. Installs missing packages if it may."""
    if os.geteuid() != 0:
        return "only root can start a Docker daemon"
    missing = install_missing(_PACKAGES)
    return f"{', '.join(missing)} not installed" if missing else None


def install_missing(packages: Mapping[str, str]) -> list[str]:
    """Installs Debian's packages by the programs in them. Returns those that are still missing."""
    if missing := _find_missing(packages):
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "-qq", "install", "-y", "--no-install-recommends", *missing]
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            for command in (["apt-get", "-qq", "update"], install):
                subprocess.run(command, env=environment, check=True, capture_output=True)
    return _find_missing(packages)


def _find_missing(packages: Mapping[str, str]) -> list[str]:
    return [
        package
        for program, package in packages.items()
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

    def build(self, tag: str, file: Path, context: Path, *options: str, kit: bool = True) -> str:
        """Builds an image, with BuildKit or with the builder before it. Returns its id."""
        self(
            *("build", "-q", "-f", file, "-t", tag, *options, context),
            environment={"DOCKER_BUILDKIT": "1" if kit else "0"},
        )
        return self("image", "inspect", "--format", "{{.Id}}", tag)

    def wait_until_healthy(self, container: str) -> None:
        health = "{{.State.Health.Status}}"
        wait_until(lambda: self("inspect", "--format", health, container) == "healthy")


class ContainerEngine:
    """A context manager with a daemon and a base image, which starts when the block begins.

    Attributes:
      address: the daemon's address.
      secure_address: its address for TLS. `certificates` is the folder of the certificates.
      gateway: the address of this machine for the containers.
      docker: the command line client.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._survives = False

    def __enter__(self) -> Self:
        # The path of a socket is short, and pytest's folders may be long.
        self._folder = Path(tempfile.mkdtemp(prefix="d", dir="/tmp"))
        self._folder.chmod(0o755)
        self.address = f"unix://{self._folder}/docker.sock"
        settings = {"PATH": _PATH, "DOCKER_HOST": self.address, "DOCKER_BUILDKIT": "1"}
        self.docker = Docker({**os.environ, **settings})
        self.certificates = self._folder / "certificates"
        self._namespace, self._network = _take_namespace()
        self.gateway, self.host_address = f"{self._network}.1", f"{self._network}.2"
        self.secure_address = f"tcp://{self.host_address}:2376"
        self._volumes = self._folder / "data" / "volumes"
        self._mount_disks()
        try:
            _make_certificates(self.certificates, self.host_address)
            self._add_network()
            self.start()
            self._provide_base_image()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.free_disk()
        try:
            if self._process is not None:
                self.start()
                if names := self.docker("ps", "-aq").split():
                    self.docker("rm", "-fv", *names)
                self.stop()
        finally:
            self._remove_folder()

    def _mount_disks(self) -> None:
        """Mounts a disk for all data, and in it a small one for the volumes of containers.

        The first one is a sparse file: it is removed in a second, with half a million files in it.
        """
        disk, data = self._folder / "disk", self._volumes.parent
        with open(disk, "wb") as file:
            file.truncate(_DISK_BYTES)
        _run("mkfs.ext4", "-q", "-O", "^has_journal", "-E", "nodiscard", str(disk))
        data.mkdir()
        _run("mount", "-o", "loop", str(disk), str(data))
        self._volumes.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={_VOLUMES_BYTES}", "tmpfs", str(self._volumes))

    def _remove_folder(self) -> None:
        self._route("-D")
        # The namespace goes a moment later, and its name may be taken before.
        subprocess.run(["ip", "link", "del", f"v-{self._namespace}"], capture_output=True)
        _run("ip", "netns", "del", self._namespace)
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            if (target := line.split()[1]).startswith(f"{self._folder}/"):
                _run("umount", "-l", target)
        shutil.rmtree(self._folder)

    def start(self) -> None:
        """Starts the daemon unless it runs, and waits until it answers."""
        if self._process is not None and self._process.poll() is None:
            return
        arguments = {
            "--data-root": self._folder / "data",
            "--exec-root": self._folder / "exec",
            "--pidfile": self._folder / "pid",
            "--exec-opt": "native.cgroupdriver=cgroupfs",
            "--insecure-registry": f"{self._network}.0/24",
            "--tlscacert": self.certificates / "ca.pem",
            "--tlscert": self.certificates / "server.pem",
            "--tlskey": self.certificates / "server-key.pem",
        }
        with open(self._folder / "log", "ab") as log:
            daemon = subprocess.Popen(
                [
                    *(*self.enter_network(), "dockerd", "--tlsverify"),
                    *("-H", self.address, "-H", self.secure_address),
                    *(str(word) for pair in arguments.items() for word in pair),
                    *(["--live-restore"] if self._survives else []),
                ],
                # A registry of a test is on this machine, and not behind a proxy.
                env={**self.docker.environment, "NO_PROXY": f"{self._network}.0/24"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._process = daemon
        wait_until(lambda: self.docker.run("docker", "version").returncode == 0, self._read_log)

    def enter_network(self) -> list[str]:
        """The words before a command that is to run in the daemon's network namespace."""
        return ["nsenter", f"--net=/run/netns/{self._namespace}"]

    def stop(self) -> None:
        """Ends the daemon as a shutdown of its host does."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(_START_SECONDS)

    def restart(self, survives: bool = False) -> None:
        """Stops the daemon, and starts one whose containers survive it or not (`live-restore`)."""
        self.stop()
        self._survives = survives
        self.start()

    def kill(self) -> None:
        """Kills the daemon, and no container."""
        self._kill(self._find_helpers("containerd"))

    def lose(self) -> None:
        """Kills the daemon with all containers, as a power failure does. `start` brings it back."""
        inside = [pid for name in self.docker("ps", "-q").split() for pid in self.find_pids(name)]
        self._kill([*self._find_helpers("containerd", "containerd-shim-runc-v2"), *inside])

    def _kill(self, pids: list[int]) -> None:
        """Kills the daemon and other processes, and waits until no trace is left."""
        self._process.kill()
        self._process.wait()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(map(psutil.pid_exists, pids)), self._read_log)

    def _find_helpers(self, *names: str) -> list[int]:
        """The processes of containerd that belong to this daemon."""
        found = []
        for process in psutil.process_iter(["name", "cmdline"]):
            is_ours = str(self._folder) in " ".join(process.info["cmdline"] or ())
            if is_ours and process.info["name"] in names:
                found.append(process.pid)
        return found

    def find_pids(self, name: str) -> list[int]:
        """The living processes of a container, whose ids are those of this machine."""
        first = int(self.docker("inspect", "--format", "{{.State.Pid}}", name))
        if first == 0:
            return []
        namespace = os.readlink(f"/proc/{first}/ns/pid")
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if os.readlink(f"/proc/{process.pid}/ns/pid") == namespace and is_running(process):
                    found.append(process.pid)
        return found

    def kill_container(self, attempt: Attempt[StorePath]) -> None:
        """Kills all processes of a job at once."""
        self.docker("kill", name_job(attempt))

    def fill_disk(self) -> None:
        """Leaves no free byte for the volumes of the containers."""
        free = os.statvfs(self._volumes)
        total_bytes = free.f_blocks * free.f_frsize
        assert total_bytes <= 2 * _VOLUMES_BYTES, "this is not the small disk of the tests"
        with open(self._volumes / "filler", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)

    def free_disk(self) -> None:
        (self._volumes / "filler").unlink(missing_ok=True)

    def list_volumes(self) -> list[str]:
        return self.docker("volume", "ls", "-q").split()

    def hosts_file(self, **values: Any) -> dict[str, Any]:
        """The content of a hosts file with this daemon. The default image is the small one."""
        content = {"launcher": "container", "image": "small", "daemon": self.address}
        return content | {"pull": "never"} | values

    def hosts(self, **values: Any) -> ContainerHosts:
        return ContainerHosts.model_validate(self.hosts_file(**values))

    def place(self, **values: Any) -> ContainerPlace:
        return ContainerPlace(self.hosts(**values))

    def describe(self, name: str) -> dict[str, Any]:
        return json.loads(self.docker("inspect", name))[0]

    def provide_small_image(self) -> str:
        """Builds the image `small` for `place_job`. Returns its id."""
        context = self._folder / "context-small"
        (context / "site").mkdir(parents=True)
        hidden = shutil.ignore_patterns("__pycache__")
        for package in ("pipeline_ops", "beam_jobs"):
            shutil.copytree(ROOT / package, context / "code" / package, ignore=hidden)
        for file in _find_needed_packages():
            copy = shutil.copytree if file.is_dir() else shutil.copy
            copy(file, context / "site" / file.name)
        shutil.copy(Path(__file__).with_name("place_job.py"), context / "site")
        return self.build_image("small", _SMALL, context)

    def build_image(self, tag: str, dockerfile: str, context: Path) -> str:
        """Builds an image of the text of a Dockerfile. Returns its id."""
        (context / "Dockerfile").write_text(dockerfile)
        return self.docker.build(tag, context / "Dockerfile", context)

    def _provide_base_image(self) -> None:
        if self.docker.run("docker", "pull", "-q", BASE_IMAGE).returncode == 0:
            return
        self.docker("import", _find_base_archive(), "trainyard-test/debian")
        context = self._folder / "context-base"
        context.mkdir()
        shutil.copy(_CERTIFICATES, context / "certificates.crt")
        self.docker.build(BASE_IMAGE, ROOT / "tests" / "docker" / "Base.Dockerfile", context)

    def _add_network(self) -> None:
        veth = f"v-{self._namespace}"
        inside = ["ip", "-n", self._namespace]
        peer = ["type", "veth", "peer", "name", "eth0", "netns", self._namespace]
        _run("ip", "link", "add", veth, *peer)
        _run("ip", "addr", "add", f"{self.gateway}/24", "dev", veth)
        _run("ip", "link", "set", veth, "up")
        _run(*inside, "addr", "add", f"{self.host_address}/24", "dev", "eth0")
        for interface in ("lo", "eth0"):
            _run(*inside, "link", "set", interface, "up")
        _run(*inside, "route", "add", "default", "via", self.gateway)
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        self._route("-I")

    def _route(self, action: str) -> None:
        """Inserts or deletes (-I, -D) the rules with which the namespace reaches other machines."""
        veth, network = f"v-{self._namespace}", f"{self._network}.0/24"
        for rule in (
            ["POSTROUTING", "-t", "nat", "-s", network, "!", "-o", veth, "-j", "MASQUERADE"],
            ["FORWARD", "-i", veth, "-j", "ACCEPT"],
            ["FORWARD", "-o", veth, "-j", "ACCEPT"],
        ):
            done = subprocess.run(["iptables", "-w", action, *rule], capture_output=True)
            assert done.returncode == 0 or action == "-D", done.stderr

    def _read_log(self) -> str:
        return (self._folder / "log").read_text()[-3000:]


def _find_base_archive() -> Path:
    """A small Debian with Python. It is made once for each user: about two minutes, 250 MB."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainyard-tests"
    cache.mkdir(parents=True, exist_ok=True)
    archive = cache / "debian-python.tar"
    with exclusive_lock(cache / "debian.lock", "a Debian for tests", wait_seconds=600):
        if not archive.exists():
            packages = "python3.11,python3-pip,python3-venv,ca-certificates"
            options = ["-q", "--mode=root", "--variant=minbase", f"--include={packages}"]
            staging = cache / "debian-staging.tar"
            _run("mmdebstrap", *options, "bookworm", str(staging))
            staging.rename(archive)
    return archive


def _take_namespace() -> tuple[str, str]:
    """Makes a network namespace that no other test has. Returns its name, and a subnet for it."""
    for number in _NUMBERS:
        add = ["ip", "netns", "add", f"tyct{number}"]
        if subprocess.run(add, capture_output=True).returncode == 0:
            return f"tyct{number}", f"10.214.{number}"
    raise RuntimeError("there is no free network namespace")


def _find_needed_packages() -> list[Path]:
    """The packages that the small image needs, by what Python imports for its modules here."""
    program = (
        f"import sys, pathlib, importlib\nfor name in {_NEEDED}: importlib.import_module(name)\n"
        "import obstore.store\n"
        "for m in list(sys.modules.values()): print(getattr(m, '__file__', None) or '')\n"
    )
    paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    found: set[Path] = set()
    for line in done.stdout.splitlines():
        parts = Path(line).parts
        if "site-packages" in parts:
            found.add(Path(*parts[: parts.index("site-packages") + 2]))
    return sorted(found)


def _make_certificates(folder: Path, address: str) -> None:
    """Makes an authority, and certificates for a server at an address and for a client."""
    folder.mkdir()
    subject = ["-subj", "/CN=authority"]
    new_key = ["-newkey", "rsa:2048", "-nodes"]
    files = ["-keyout", folder / "ca-key.pem", "-out", folder / "ca.pem"]
    _run("openssl", "req", "-x509", "-days", "2", *new_key, *subject, *map(str, files))
    kinds = {"server": ("server-key", "serverAuth"), "cert": ("key", "clientAuth")}
    for name, (key, use) in kinds.items():
        request, extensions = folder / "request", folder / "extensions"
        extensions.write_text(f"subjectAltName=IP:{address}\nextendedKeyUsage={use}\n")
        files = ["-keyout", folder / f"{key}.pem", "-out", request]
        _run("openssl", "req", *new_key, "-subj", f"/CN={name}", *map(str, files))
        signing = ["-CA", folder / "ca.pem", "-CAkey", folder / "ca-key.pem", "-CAcreateserial"]
        files = ["-in", request, "-out", folder / f"{name}.pem", "-extfile", extensions]
        _run("openssl", "x509", "-req", "-days", "2", *map(str, [*signing, *files]))
    for file in folder.iterdir():
        file.chmod(0o644)  # also the user of an image reads them


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}: {done.stderr}"


def wait_until(
    is_so: Callable[[], object], explain: Callable[[], str] = str, seconds: float = 180
) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.1)
