"""Hosts for tests: network namespaces on a bridge, each with its own sshd, key and /etc/hosts.

They share the machine's file system and processes, so a file that is missing on one host only
cannot be tested with them. Needs root, iproute2 and openssh-server.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

os.environ["PATH"] += f"{os.pathsep}/usr/sbin{os.pathsep}/sbin"  # not in every user's path

_LOCK = "/tmp/trainyard-test-network-{}.lock"  # for tests with any temporary folder
_NUMBERS = range(77, 97)


def why_not() -> str | None:
    """Returns the reason why no hosts can be made here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [
        tool for tool in ("ip", "ssh", "ssh-keygen", "/usr/sbin/sshd") if not shutil.which(tool)
    ]
    if missing:
        return (
            f"{', '.join(missing)} not found: install iproute2, openssh-server and openssh-client"
        )
    name = f"ty-probe-{os.getpid()}"  # two test processes may look at the same time
    probe = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return f"no network namespaces here: {probe.stderr.strip()}" if probe.returncode else None


class Network:
    """Hosts on a bridge. Each network of this machine has its own number, names and addresses.

    Attributes:
      hosts: the names of the hosts: `ty77h1`, `ty77h2` and so on.
      gateway: the address of this machine for the hosts.

    Args:
      folder: the folder for keys, logs and configuration.
      count: the number of hosts.
      has_disks: whether each host has a folder of its own for what Trainyard keeps on its disk, and
        does not see the folders of the others.
    """

    def __init__(self, folder: Path, count: int, has_disks: bool = False):
        self.folder, self._has_disks = folder, has_disks
        number, self._lock = _take_number()
        self._bridge, subnet = f"ty{number}br", f"10.213.{number}"
        self.hosts = [f"ty{number}h{i}" for i in range(1, count + 1)]
        self.addresses = {host: f"{subnet}.{10 + i}" for i, host in enumerate(self.hosts, 1)}
        self.gateway = f"{subnet}.1"
        self.known_hosts, self.identity, self.user_config = (
            folder / "known_hosts",
            folder / "id",
            folder / "ssh_config",
        )

    def up(self) -> None:
        """Starts the hosts."""
        self._remove()  # of a test that was killed
        Path("/run/sshd").mkdir(exist_ok=True)
        _keygen(self.identity)
        shutil.copy(self.identity.with_suffix(".pub"), self.folder / "authorized_keys")
        (self.folder / "hosts").write_text(
            "127.0.0.1 localhost\n"
            + "".join(f"{address} {host}\n" for host, address in self.addresses.items())
        )
        (self.folder / "nsswitch.conf").write_text(
            "hosts: files\n"
        )  # otherwise each look-up waits for an unreachable name server
        _run("ip", "link", "add", self._bridge, "type", "bridge")
        _run("ip", "addr", "add", f"{self.gateway}/24", "dev", self._bridge)
        _run("ip", "link", "set", self._bridge, "up")
        _let_through("-I", self._bridge)
        # Names are resolved by HostName here; a user's hosts would have them in DNS.
        names = [
            f"Host {host}\n  HostName {address}\n  HostKeyAlias {host}\n"
            for host, address in self.addresses.items()
        ]
        login = (
            f"Host *\n  ConnectTimeout 2\n  User root\n  IdentityFile {self.identity}\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {self.known_hosts}\n"
        )
        self.user_config.write_text("".join([*names, login]))
        for host in self.hosts:
            self._add(host)
        self.known_hosts.write_text(
            "".join(
                f"{host},{self.addresses[host]} {(self.folder / f'{host}.key.pub').read_text()}"
                for host in self.hosts
            )
        )
        for host in self.hosts:
            _wait_for_sshd(self.addresses[host])

    def get_disk(self, host: str) -> Path:
        return self.folder / "disks" / host

    def _add(self, host: str) -> None:
        _run("ip", "netns", "add", host)
        _run(
            "ip", "link", "add", f"v-{host}", "type", "veth", "peer", "name", "eth0", "netns", host
        )
        _run("ip", "link", "set", f"v-{host}", "master", self._bridge, "up")
        _run("ip", "-n", host, "addr", "add", f"{self.addresses[host]}/24", "dev", "eth0")
        for interface in ("eth0", "lo"):
            _run("ip", "-n", host, "link", "set", interface, "up")
        _keygen(self.folder / f"{host}.key")
        (self.folder / f"{host}.sshd").write_text(
            f"ListenAddress {self.addresses[host]}\n"
            f"HostKey {self.folder / f'{host}.key'}\n"
            f"AuthorizedKeysFile {self.folder / 'authorized_keys'}\n"
            f"PidFile {self.folder / f'{host}.pid'}\n"
            "UsePAM no\n"
            "PasswordAuthentication no\n"
            "PermitRootLogin prohibit-password\n"
            "StrictModes no\n"
            "MaxStartups 50\n"
            + (f"SetEnv TRAINYARD_LOCAL_FOLDER={self.get_disk(host)}\n" if self._has_disks else "")
        )
        mounts = "; ".join(
            f"mount --bind {self.folder / name} /etc/{name}" for name in ("hosts", "nsswitch.conf")
        )
        if self._has_disks:
            mounts += self._hide_disks(host)
        _run(
            "ip",
            "netns",
            "exec",
            host,
            "unshare",
            "--uts",
            "--mount",
            "sh",
            "-c",
            f"hostname {host}; {mounts}; exec /usr/sbin/sshd "
            f"-f {self.folder / f'{host}.sshd'} -E {self.folder / f'{host}.log'}",
        )

    def _hide_disks(self, host: str) -> str:
        """The commands that hide the disks of all others, without hiding the host's own."""
        own, disks = self.get_disk(host), self.folder / "disks"
        own.mkdir(parents=True)
        here = f"{disks}.{host}"
        return (
            f"; mkdir {here}; mount --bind {own} {here}; mount -t tmpfs none {disks}"
            f"; mkdir {own}; mount --move {here} {own}"
        )

    def down(self) -> None:
        self._remove()
        self._lock.close()

    def _remove(self) -> None:
        for host in self.hosts:
            for pid in subprocess.run(
                ["ip", "netns", "pids", host], capture_output=True, text=True
            ).stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", host], capture_output=True)
            subprocess.run(["ip", "link", "del", f"v-{host}"], capture_output=True)
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True)
        _let_through("-D", self._bridge)

    def cut(self, host: str) -> None:
        """Takes the link of the host down."""
        _run("ip", "link", "set", f"v-{host}", "down")

    def reconnect(self, host: str) -> None:
        _run("ip", "link", "set", f"v-{host}", "up")

    def on(self, host: str) -> list[str]:
        """Returns the prefix of a command whose mounts are visible on that host only."""
        return ["nsenter", "--mount", "--target", (self.folder / f"{host}.pid").read_text().strip()]

    def hosts_file(self, count: int) -> dict[str, object]:
        """Returns the content of a hosts file with the first hosts."""
        return {
            "launcher": "ssh",
            "network": "trusted",
            "hosts": [
                {"name": host, "address": self.addresses[host], "cores": 1}
                for host in self.hosts[:count]
            ],
            "python": sys.executable,
            "config_file": str(self.user_config),
        }

    def write_config(self, file: Path, settings: str) -> str:
        """Writes an ssh_config file whose settings come before the user's. Returns its path."""
        file.write_text(f"{settings}\n{self.user_config.read_text()}")
        return str(file)


def _let_through(action: str, bridge: str) -> None:
    """Lets traffic of the bridge through Docker's firewall, which drops that of other bridges."""
    if shutil.which("iptables"):
        subprocess.run(
            [
                "iptables",
                action,
                "FORWARD",
                "-i",
                bridge,
                "-o",
                bridge,
                "-j",
                "ACCEPT",
            ],
            capture_output=True,
        )


def _take_number() -> tuple[int, TextIO]:
    """A number that no other test process has, and the lock that holds it until it is closed."""
    for number in _NUMBERS:
        lock = open(_LOCK.format(number), "w")  # noqa: SIM115
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
        else:
            return number, lock
    raise RuntimeError(f"tests hold all networks from {_NUMBERS[0]} to {_NUMBERS[-1]}")


def _keygen(file: Path) -> None:
    if not file.exists():
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file))


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr or done.stdout}"


def _wait_for_sshd(address: str) -> None:
    import socket

    deadline = time.monotonic() + 60
    while True:
        try:
            with socket.create_connection((address, 22), 1):
                return
        except OSError:
            assert time.monotonic() < deadline, f"no sshd at {address}"
            time.sleep(0.05)
