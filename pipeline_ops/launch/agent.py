"""The agent: one light process per host of a gang, between launcher and fork server.

    python -m pipeline_ops.launch.agent RUN

The first line on its standard input is its AgentSpec as JSON. RUN identifies the launch, so that
other processes can find its agents.

The agent describes its host, finds ports, forwards commands and reports which processes live. Its
main duty is the cleanup of its host. No process of the gang stays there after the agent's input
closes, after the launcher has been silent for `silence_timeout_seconds` (the network may be cut),
or after the agent is killed. It imports no TensorFlow. The launcher chooses the transport of its
input and output: ssh, srun or a plain pipe.

If its host shares no disk with the launcher, the agent also sends the new bytes of logs, progress
and status files. The launcher appends them to its own files of the same names, so it reads only
local files and makes no requests to the bucket.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

from pipeline_ops.contract.fingerprint import find_versions
from pipeline_ops.contract.gang_protocol import (
    FORK_SERVER,
    FORK_SERVER_MODULE,
    HEARTBEAT_SECONDS,
    RUN_VARIABLE,
    AgentSpec,
    Command,
    Event,
    HostReport,
    Message,
)
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.contract.source_code import digest_all_sources
from pipeline_ops.errors import ConfigError, DataError, MachineError
from pipeline_ops.job.workspace import copy_request, make_local_folder
from pipeline_ops.launch.store_proxy import StoreProxy
from pipeline_ops.places.place import collect_store_environment
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.storage.local_files import (
    read_json,
    remove_own_folder,
    translate_write_errors,
    write_json,
)
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.store_options import PROXY_VARIABLE, find_store_hosts
from pipeline_ops.system.gpus import find_gpus
from pipeline_ops.system.host import (
    OUT_OF_MEMORY,
    adopt_orphans,
    check_host,
    count_cores,
    count_memory_kills,
    describe_problems,
    die_with_parent,
    enter_network_namespace,
    find_isolation_problem,
    find_unreachable,
)
from pipeline_ops.system.processes import ProcessIdentity, end_descendants, is_stopped
from pipeline_ops.system.temp_dirs import (
    ScratchFolder,
    get_scratch_path,
    sweep,
    try_acquire_scratch_folder,
)

_PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "numpy", "pydantic")
_OWNER_FILE = "owner.json"
_CONNECT_SECONDS = 3.0
_LOCK_SECONDS = 5.0
"""The forks of a killed predecessor need a moment to exit."""
_RELAY_SECONDS = 0.25
_RELAYED = re.compile(r"[a-z0-9-]+(\.log|\.jsonl|\.status\.json)")
_CHUNK_BYTES = 2700
"""As base64 in a message, these are fewer than the 4096 bytes that a ready pipe takes at once."""
_MAX_CHUNKS = 100
"""The limit for one call. A process that writes without end must not occupy the agent."""
_LAST_SECONDS = 1.0


def main() -> None:
    with open(0, "rb", buffering=0, closefd=False) as commands:  # reads nothing beyond the line
        first = commands.readline()
    if not first.endswith(b"\n"):
        return  # the launcher is already gone
    spec = AgentSpec.model_validate_json(first)
    events = os.dup(1)
    os.dup2(2, 1)  # a stray print must not look like an event
    adopt_orphans()
    os.environ |= spec.environment  # it may name the folder for temporary files
    try:
        report, proxy = isolate(spec)
        report |= open_local_folders(spec)
        sweep()
        scratch = lock_host(spec)
    except (BlockingIOError, MachineError, ConfigError) as error:
        is_permanent = isinstance(error, ConfigError)
        refusal = Event(event="refused", message=str(error), is_permanent_failure=is_permanent)
        send_message(events, refusal)
        return
    try:
        Agent(spec, events, scratch, report, proxy).serve()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_descendants(0.0)
        if local_attempt := report.get("local_attempt"):
            remove_own_folder(Path(local_attempt))
        scratch.remove()
        sweep()


class Agent:
    """Serves one launcher, and reports to the descriptor `events`.

    `scratch` is the lock on this host. The fork server and all forks inherit it, so the host is
    free only when all of them are gone. `report` has the known fields of the HostReport. The agent
    ends with `proxy`, because the gang would wait in vain for its store.
    """

    def __init__(
        self,
        spec: AgentSpec,
        events: int,
        scratch: ScratchFolder,
        report: Mapping[str, str],
        proxy: StoreProxy | None,
    ):
        self._spec, self._events, self._report_fields = spec, events, report
        self._proxy, local_attempt = proxy, report.get("local_attempt")
        self._relay = FileRelay(Path(local_attempt), events) if local_attempt else None
        self._pids: dict[str, int] = {}
        self._memory_kills = count_memory_kills()
        self._reserved_sockets: list[socket.socket] = []
        """They stay open until the fork, so no two agents on one machine choose the same ports."""
        self._is_leaving = False
        signal.signal(signal.SIGTERM, self._leave)
        self._fork_server = subprocess.Popen(
            [sys.executable, "-m", FORK_SERVER_MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[scratch.lock],
            env={**os.environ, **scratch.environment, RUN_VARIABLE: spec.run},
            preexec_fn=die_with_parent,
        )
        self._requests, fork_events = get_pipes(self._fork_server)
        self._fork_events = LineReader(fork_events.fileno())
        self._commands = LineReader(0)

    def serve(self) -> None:
        """Serves until the launcher, the fork server or, after SIGTERM, the last fork is gone."""
        report = describe_host(self._spec).model_copy(update=self._report_fields)
        self._report(Event(event="hello", host=report))
        last_received = last_report = time.monotonic()
        is_leaving = False
        inputs: list[Any] = [*filter(None, [self._proxy]), self._commands, self._fork_events]
        while True:
            timeout = _RELAY_SECONDS if self._relay else HEARTBEAT_SECONDS
            readable, _, _ = select.select(inputs, [], [], timeout)
            now = time.monotonic()
            if self._is_leaving and not is_leaving:
                # Sent before the first fork exits, so that the launcher does not fork here again.
                is_leaving = True
                self._report(Event(event="leaving"))
            if self._commands in readable:
                last_received = now
                if not self._handle_commands():
                    return
            if self._fork_events in readable and not self._forward_events():
                return
            if now - last_report >= HEARTBEAT_SECONDS:
                last_report = now
                pids = {FORK_SERVER: self._fork_server.pid, **self._pids}
                names = [name for name, pid in pids.items() if not is_stopped(pid)]
                self._report(Event(event="alive", names=names))
            if self._relay:
                self._relay.send_new()
            if is_leaving and not self._pids:
                return
            problem = ""
            if self._proxy in readable:
                problem = "the process by which the gang reaches the store has ended"
            elif now - last_received > self._spec.silence_timeout_seconds:
                problem = f"the launcher has been silent for {now - last_received:.0f} s"
            if problem:
                action = f"The agent ends all processes of the gang on {self._spec.host}"
                print(f"{problem}. {action}.", file=sys.stderr, flush=True)
                return

    def _handle_commands(self) -> bool:
        """Returns False once the launcher has closed the pipe."""
        lines = self._commands.read_lines()
        for line in lines or ():
            command = Command.model_validate_json(line)
            match command.action:
                case "ports":
                    self._reserved_sockets += reserve_ports(command.count, self._spec.ports)
                    ports = [reserved.getsockname()[1] for reserved in self._reserved_sockets]
                    self._report(Event(event="ports", ports=ports))
                case "connect":
                    problems = find_unreachable(command.addresses, _CONNECT_SECONDS)
                    text = "; ".join(f"{address}: {why}" for address, why in problems.items())
                    self._report(Event(event="connected", message=text))
                case "fork" if command.fork:
                    while self._reserved_sockets:
                        self._reserved_sockets.pop().close()
                    if self._relay:
                        self._relay.remove(Path(command.fork.status).name)
                    send_message(self._requests.fileno(), command.fork)
                case "signal":
                    self._signal(command.signal, command.name)
                case "clean" if local_work := self._report_fields.get("local_work"):
                    remove_own_folder(Path(local_work))
        return lines is not None

    def _forward_events(self) -> bool:
        """Returns False once the fork server has ended."""
        lines = self._fork_events.read_lines()
        for event in filter(None, map(Event.parse, lines or ())):
            if event.event == "started":
                self._pids[event.name] = event.pid
            elif event.event == "ended":
                self._pids.pop(event.name, None)
                event = explain_kill(event, self._memory_kills)
                if self._relay:  # the launcher gets the status before the event
                    self._relay.send_all()
            self._report(event)
        if lines is None:
            end = Event(event="ended", name=FORK_SERVER, code=self._fork_server.wait())
            self._report(explain_kill(end, self._memory_kills))
        return lines is not None

    def _leave(self, number: int, _frame: object) -> None:
        """Handles SIGTERM: the forks save their state and exit, and the agent exits after them."""
        self._is_leaving = True
        self._signal(number)

    def _signal(self, number: int, name: str = "") -> None:
        """Sends a signal to one fork, or to all."""
        for fork, pid in self._pids.items():
            if name in ("", fork):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _report(self, event: Event) -> None:
        send_message(self._events, event)


def get_pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    """Returns the input and output pipes of a process that was started with both."""
    return cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)


class LineReader:
    """Splits the bytes of a pipe into lines. Blocks only if nothing has arrived."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._unread = b""

    def fileno(self) -> int:
        return self._descriptor

    def read_lines(self) -> list[bytes] | None:
        """Returns the complete lines that have arrived; None at the end of the input."""
        data = os.read(self._descriptor, 1 << 16)
        *lines, self._unread = (self._unread + data).split(b"\n")
        return lines if data else None


def send_message(descriptor: int, message: Message) -> None:
    """Writes a message. If the reader is gone, the other direction of the pipe reports it."""
    with contextlib.suppress(BrokenPipeError):
        os.write(descriptor, message.model_dump_json(exclude_defaults=True).encode() + b"\n")


def read_new_lines(path: Path, offset: int, max_bytes: int) -> bytes:
    """Reads the complete lines after an offset. A line of more than `max_bytes` comes in parts."""
    with open(path, "rb") as file:
        file.seek(offset)
        data = file.read(max_bytes)
    return data if len(data) == max_bytes else data[: data.rfind(b"\n") + 1]


class FileRelay:
    """The agent's side of the relay: sends the launcher the new data of an attempt's files.

    The agent must notice a silent launcher, so nothing here blocks while the launcher does not
    read: a message fits into the free part of a pipe. Data from before the start are not sent.
    """

    def __init__(self, folder: Path, events: int):
        self._folder, self._events = folder, events
        self._offsets = {file.name: file.stat().st_size for file in folder.iterdir()}

    def send_new(self) -> bool:
        """Sends new whole lines while the pipe has room. Returns whether something was sent."""
        chunks = 0
        for name in sorted(filter(_RELAYED.fullmatch, os.listdir(self._folder))):
            while chunks < _MAX_CHUNKS and self._send_chunk(name):
                chunks += 1
        return chunks > 0

    def send_all(self) -> None:
        """Sends everything up to now, or as much as the launcher reads within a second."""
        deadline = time.monotonic() + _LAST_SECONDS
        while time.monotonic() < deadline:
            if not self.send_new() and self._has_room(deadline - time.monotonic()):
                return

    def remove(self, name: str) -> None:
        """Removes a file of an earlier process."""
        (self._folder / name).unlink(missing_ok=True)
        self._offsets.pop(name, None)

    def _send_chunk(self, name: str) -> bool:
        offset = self._offsets.get(name, 0)
        data = read_new_lines(self._folder / name, offset, _CHUNK_BYTES)
        if not data or not self._has_room(0.0):
            return False
        send_message(self._events, Event(event="appended", name=name, data=data))
        self._offsets[name] = offset + len(data)
        return True

    def _has_room(self, timeout_seconds: float) -> bool:
        return bool(select.select([], [self._events], [], max(0.0, timeout_seconds))[1])


def append_to_file(folder: Path, event: Event) -> None:
    """The launcher's side of the relay: appends the data to its own file."""
    if _RELAYED.fullmatch(event.name):
        path = folder / event.name
        with translate_write_errors(path), open(path, "ab") as file:
            file.write(event.data)


def describe_host(spec: AgentSpec) -> HostReport:
    """Describes this host, before any training starts here."""
    token = Path(spec.token_file)
    return HostReport(
        python=platform.python_version(),
        versions=find_versions(_PACKAGES),
        code=digest_all_sources(),
        token=token.read_text() if token.exists() else None,
        cores=count_cores(),
        gpus=tuple(find_gpus()),
        time=time.time(),
        problems=list(describe_problems(check_host({}))),
    )


def isolate(spec: AgentSpec) -> tuple[dict[str, str], StoreProxy | None]:
    """Moves this process into a network namespace, if the gang gets one.

    Returns the fields of the HostReport that explain a missing namespace, and the proxy from the
    namespace to a bucket. Raises ConfigError if the hosts file requires a namespace.
    """
    if spec.isolation == "never":
        return {}, None
    if problem := find_isolation_problem():
        if spec.isolation == "always":
            raise ConfigError(
                f"the hosts file has `network: isolated`, but {problem.reason}. {problem.cure}, or "
                "remove `network`"
            )
        return {"open_ports": problem.reason, "close_ports": problem.cure}, None
    proxy = StoreProxy(spec.run) if spec.stored_attempt else None
    enter_network_namespace()
    if proxy:
        settings = collect_store_environment(os.environ).values()
        hosts = find_store_hosts(spec.stored_attempt, settings)
        os.environ[PROXY_VARIABLE] = proxy.open(hosts)
    return {}, proxy


def explain_kill(event: Event, kills_before: int) -> Event:
    """Adds the cause to the `ended` event of a process that the kernel killed for its memory.

    `kills_before` is the number of such kills when the agent started.
    """
    if event.code != -signal.SIGKILL or count_memory_kills() <= kills_before:
        return event
    return event.model_copy(update={"message": OUT_OF_MEMORY})


def open_local_folders(spec: AgentSpec) -> dict[str, str]:
    """Makes the folders of a host that shares nothing but a bucket with the launcher.

    It reads the request from the bucket, which proves that this host reaches the same store with
    the same rights. Raises ConfigError if it does not, and MachineError if store or disk failed.
    Returns the fields of the HostReport, none if the host sees the launcher's disk. The folder of
    the checkpoints outlives the agent.
    """
    if not spec.stored_attempt or Path(spec.token_file).exists():
        return {}
    attempt = Attempt(open_root(spec.stored_attempt))
    try:
        workspace = copy_request(attempt)
    except DataError:
        raise ConfigError(
            f"it does not see the storage root: {attempt.request}, which the launcher wrote, is "
            "missing there. Give it the same endpoint, in `environment` of the hosts file"
        ) from None
    except (ConfigError, MachineError) as error:
        raise type(error)(f"it does not see the storage root: {error}") from None
    work = make_local_folder(open_root(spec.stored_work))
    return {"local_attempt": str(workspace.folder), "local_work": str(work)}


def lock_host(spec: AgentSpec) -> ScratchFolder:
    """Locks this host for one gang over one artifact.

    This works even if the locks of the storage do not reach other hosts. The lock is on the gang's
    folder for temporary files. Every process of the gang inherits it, so a new owner knows that no
    process of an earlier gang lives here. An earlier agent of the same launcher is killed.
    Raises BlockingIOError with the owner if a gang of another launcher has the lock.
    """
    name = f"gang-{compute_digest([spec.lock, spec.host])[:12]}"
    deadline = time.monotonic() + _LOCK_SECONDS
    owner_file = get_scratch_path(name) / _OWNER_FILE
    while (scratch := try_acquire_scratch_folder(name)) is None:
        owner = read_json(owner_file) or {}
        if owner.get("run") == spec.run:
            with contextlib.suppress(ProcessLookupError):
                if ProcessIdentity(**owner["process"]).is_alive():
                    os.kill(owner["process"]["pid"], signal.SIGKILL)
        if time.monotonic() > deadline:
            raise BlockingIOError(
                "a gang for the same artifact runs there already, started by "
                f"{owner.get('run', 'another launcher')} with the agent "
                f"{owner.get('process', {}).get('pid', 'unknown')} "
                f"({owner_file.parent} is locked). Wait for it or end it"
            )
        time.sleep(0.05)
    process = ProcessIdentity.from_pid(os.getpid()).to_json()
    write_json(owner_file, {"run": spec.run, "process": process})
    return scratch


def reserve_ports(count: int, port_range: tuple[int, int] | None) -> list[socket.socket]:
    """Returns sockets on `count` free ports, or on fewer if no more are free."""
    ports = range(port_range[0], port_range[1] + 1) if port_range else [0] * count
    sockets: list[socket.socket] = []
    for port in ports:
        if len(sockets) < count:
            with contextlib.suppress(OSError):  # taken
                # It listens, because other hosts check whether they can connect.
                sockets.append(socket.create_server(("", port)))
    return sockets


if __name__ == "__main__":
    main()
