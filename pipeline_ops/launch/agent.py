"""The agent: one light process per host of a gang, between launcher and preloaded process.

    python -m pipeline_ops.launch.agent RUN

The first line on its standard input is its AgentSpec as JSON. RUN identifies the launch, so that
other processes can find its agents.

The agent describes its host, finds ports, passes orders on and reports which processes live. Its
main duty is the cleanup of its host. No process of the gang stays there after the agent's input
closes, after the launcher has been silent for `silence_seconds` (the network may be cut), or after
the agent is killed. It imports no TensorFlow. The launcher chooses the transport of its input and
output: ssh, srun or a plain pipe.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import importlib.metadata
import os
import platform
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pipeline_ops.artifacts.fingerprint import CODE_ROOT
from pipeline_ops.errors import ConfigError, MachineError
from pipeline_ops.jobs.gang_protocol import (
    BEAT_SECONDS,
    BEATS_VARIABLE,
    PRELOADED,
    PRELOADED_MODULE,
    RUN_VARIABLE,
    AgentSpec,
    Command,
    Event,
    HostReport,
)
from pipeline_ops.launch.isolation import leave_network
from pipeline_ops.storage.atomic import read_json, write_json
from pipeline_ops.storage.digest import digest_of
from pipeline_ops.system.descendants import adopt_orphans, die_with_parent, end_descendants
from pipeline_ops.system.processes import ProcessIdentity, is_stopped
from pipeline_ops.system.temp_dirs import Scratch, folder_of, sweep, try_to_hold

_PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "numpy", "pydantic")
_HOLDER = "holder.json"
_LOCK_SECONDS = 5.0
"""The forks of a killed predecessor need a moment to exit."""


def main() -> None:
    first, unread = read_line(0)
    if not first:
        return  # the launcher is gone already
    spec = AgentSpec.model_validate_json(first)
    events = os.dup(1)
    os.dup2(2, 1)  # a stray print must not look like an event
    adopt_orphans()
    os.environ |= spec.environment  # a temporary folder may be among it
    try:
        if spec.isolation == "always" or (spec.isolation == "with GPUs" and find_gpus()):
            leave_network()
        sweep()
        scratch = hold_host(spec)
    except (BlockingIOError, MachineError, ConfigError) as error:
        os.write(
            events,
            _line(
                Event(
                    event="refused", message=str(error), needs_person=isinstance(error, ConfigError)
                )
            ),
        )
        return
    try:
        Agent(spec, events, scratch, unread).serve()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_descendants(0.0)
        scratch.remove()
        sweep()


def read_line(descriptor: int) -> tuple[bytes, bytes]:
    """Returns the first line from a pipe and the bytes behind it.

    Both are empty at the end of the input.
    """
    data = b""
    while b"\n" not in data:
        if not (more := os.read(descriptor, 1 << 16)):
            return b"", b""
        data += more
    line, _, rest = data.partition(b"\n")
    return line, rest


class Agent:
    """Serves one launcher.

    Args:
      spec: the specification that it was started with.
      events: the descriptor to report to.
      scratch: the lock on this host. The preloaded process and all forks inherit it, so the host is
        free only when all of them are gone.
      unread: the bytes that came through the pipe behind the first line.
    """

    def __init__(self, spec: AgentSpec, events: int, scratch: Scratch, unread: bytes = b""):
        self._spec, self._events = spec, events
        self._pids: dict[str, int] = {}
        self._held: list[socket.socket] = []
        self._beats, beats = os.pipe()
        self._wake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGTERM, lambda *_: self._signal(signal.SIGTERM))
        self._preloaded = subprocess.Popen(
            [sys.executable, "-m", PRELOADED_MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[beats, scratch.lock],
            env={
                **os.environ,
                **scratch.environment,
                RUN_VARIABLE: spec.run,
                BEATS_VARIABLE: str(beats),
            },
            preexec_fn=die_with_parent,
        )
        os.close(beats)
        self._unread = {0: unread, self._preloaded.stdout.fileno(): b"", self._beats: b""}
        self._alive: set[str] = set()

    def serve(self) -> None:
        """Serves until the launcher or the preloaded process is gone."""
        self._say(Event(event="hello", host=report_host(self._spec)))
        from_preloaded, heard, told = (
            self._preloaded.stdout.fileno(),
            time.monotonic(),
            time.monotonic(),
        )
        while True:
            readable, _, _ = select.select(
                [0, from_preloaded, self._beats, self._wake], [], [], BEAT_SECONDS
            )
            now = time.monotonic()
            if self._wake in readable:
                os.read(self._wake, 4096)
            if 0 in readable:
                heard = now
                if not self._obey():
                    return
            if from_preloaded in readable and not self._pass_on(from_preloaded):
                return
            if self._beats in readable:
                self._alive.update(line.decode() for line in self._lines(self._beats) or ())
            if now - told >= BEAT_SECONDS:
                stopped = [name for name, pid in self._pids.items() if is_stopped(pid)]
                self._say(Event(event="alive", names=sorted(self._alive), stopped=stopped))
                self._alive, told = set(), now
            if now - heard > self._spec.silence_seconds:
                print(
                    f"the launcher has been silent for {now - heard:.0f} s; "
                    f"ending everything on {self._spec.host}",
                    file=sys.stderr,
                    flush=True,
                )
                return

    def _obey(self) -> bool:
        lines = self._lines(0)
        for line in lines or ():
            order = Command.model_validate_json(line)
            match order.order:
                case "ports":
                    self._held += hold_ports(order.count, self._spec.ports)
                    self._say(
                        Event(event="ports", ports=[held.getsockname()[1] for held in self._held])
                    )
                case "fork":
                    self._release_ports()
                    with contextlib.suppress(BrokenPipeError):  # its end is reported otherwise
                        os.write(
                            self._preloaded.stdin.fileno(),
                            order.fork.model_dump_json().encode() + b"\n",
                        )
                case "signal":
                    self._signal(order.signal, order.name)
        return lines is not None

    def _pass_on(self, descriptor: int) -> bool:
        lines = self._lines(descriptor)
        for line in lines or ():
            event = Event.parse(line)
            if event is None:
                continue
            if event.event == "started":
                self._pids[event.name] = event.pid
            elif event.event == "ended":
                self._pids.pop(event.name, None)
            self._say(event)
        if lines is None:
            self._say(Event(event="ended", name=PRELOADED, code=self._preloaded.wait()))
        return lines is not None

    def _signal(self, number: int, name: str = "") -> None:
        """Sends a signal to one fork, or to all."""
        for fork, pid in self._pids.items():
            if name in ("", fork):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _release_ports(self) -> None:
        """Closes the held ports.

        They are held until now, so that no two agents on one machine choose the same ones.
        """
        for held in self._held:
            held.close()
        self._held = []

    def _lines(self, descriptor: int) -> list[bytes] | None:
        """Returns the whole lines that have come in; None at the end of the input."""
        data = os.read(descriptor, 1 << 16)
        *lines, self._unread[descriptor] = (self._unread[descriptor] + data).split(b"\n")
        return lines if data else None

    def _say(self, event: Event) -> None:
        with contextlib.suppress(
            BrokenPipeError
        ):  # the launcher is gone; the end of the input comes next
            os.write(self._events, _line(event))


def _line(event: Event) -> bytes:
    return event.model_dump_json(exclude_defaults=True).encode() + b"\n"


def hold_host(spec: AgentSpec) -> Scratch:
    """Holds this host for one gang over one artifact.

    This works even if the locks of the storage do not reach other hosts. The lock is on the gang's
    folder for temporary files. Every process of the gang inherits it, so a new holder knows that no
    process of an earlier gang lives here. A predecessor of the same launcher that hangs is killed.

    Raises:
      BlockingIOError: a gang of another launcher holds the host. The message is for a person.
      MachineError: this host's temporary folder is not for us to use.
    """
    name, deadline = (
        f"gang-{digest_of([spec.lock, spec.host])[:12]}",
        time.monotonic() + _LOCK_SECONDS,
    )
    holder_file = folder_of(name) / _HOLDER
    while (scratch := try_to_hold(name)) is None:
        holder = read_json(holder_file) or {}
        if holder.get("run") == spec.run:
            with contextlib.suppress(ProcessLookupError):
                if ProcessIdentity.from_json(holder["process"]).is_alive():
                    os.kill(holder["process"]["pid"], signal.SIGKILL)
        if time.monotonic() > deadline:
            raise BlockingIOError(
                "a gang for the same artifact runs there already, started by "
                f"{holder.get('run', 'another launcher')} with the agent "
                f"{holder.get('process', {}).get('pid', 'unknown')} "
                f"({holder_file.parent} is locked); wait for it, or end it"
            )
        time.sleep(0.05)
    write_json(holder_file, {"run": spec.run, "process": ProcessIdentity.of(os.getpid()).to_json()})
    return scratch


def report_host(spec: AgentSpec) -> HostReport:
    """Describes this host, for comparison with the launcher's own."""
    token = Path(spec.token_file)
    return HostReport(
        python=platform.python_version(),
        versions=dict(_versions()),
        code=code_digest(),
        token=token.read_text() if token.exists() else None,
        cores=len(os.sched_getaffinity(0)),
        gpus=find_gpus(),
    )


def _versions() -> Iterator[tuple[str, str]]:
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield package, importlib.metadata.version(package)


def code_digest() -> str:
    """Returns a digest of all Python files of this package.

    Hosts may have different copies of it.
    """
    digest = hashlib.blake2b(digest_size=8)
    for file in sorted((CODE_ROOT / "pipeline_ops").rglob("*.py")):
        digest.update(f"{file.relative_to(CODE_ROOT)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def find_gpus() -> list[str]:
    """The names of the NVIDIA devices that this process may use, for CUDA_VISIBLE_DEVICES."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name]
    return [re.sub(r"\D", "", path) for path in sorted(glob.glob("/dev/nvidia[0-9]*"))]


def hold_ports(count: int, among: tuple[int, int] | None) -> list[socket.socket]:
    """Returns `count` bound sockets on which no process listens, or as many as can be had."""
    candidates = iter(range(among[0], among[1] + 1)) if among else iter([0] * count)
    held: list[socket.socket] = []
    for port in candidates:
        if len(held) == count:
            break
        one = socket.socket()
        try:
            one.bind(("", port))
            held.append(one)
        except OSError:  # taken
            one.close()
    return held


if __name__ == "__main__":
    main()
