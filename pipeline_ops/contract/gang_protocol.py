"""The messages between the launcher and the processes of a gang.

    launcher  -- Command, Event -->  agent, one on each host  -- Fork, Event -->  fork server
    fork server  -- fork -->  workers

A message is one JSON line on standard input or output, over any transport. A worker reports in its
progress file, and in its status file when it ends. Its agent reports whether it runs. If the hosts
share no disk with the launcher, the agents send it the new bytes of these files.
"""

from __future__ import annotations

import json
from typing import Literal

from pydantic import ConfigDict, ValidationError

from pipeline_ops.storage.parsing import JsonModel

AGENT_MODULE = "pipeline_ops.launch.agent"
FORK_SERVER_MODULE = "pipeline_ops.training.fork_server"

HEARTBEAT_SECONDS = 1.0
RUN_VARIABLE = "TRAINYARD_RUN"
"""Names the owner of a gang's process: the folder of the train job's attempt."""
FORK_SERVER = "fork server"
"""The name of the fork server among the processes of a host."""

JOINING_PHASE, COMPILING_PHASE, TRAIN_PHASE = "joining", "compiling", "train"
"""Phases in which a worker may wait for the others: at the start, in the first step, in steps."""
WAITING_PHASE = "waiting"
"""The phase of a worker that waits for the others anywhere else."""

Role = Literal["chief", "worker", "ps"]
"""TensorFlow's roles. Only a gang with parameter servers has a `chief`; else it is worker 0."""
Isolation = Literal["never", "where possible", "always"]


class Message(JsonModel):
    model_config = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")


class Fork(Message):
    """Launcher to fork server: fork a process with a WorkerSpec or a CandidateSpec, as JSON."""

    name: str
    entry: Literal["worker", "candidate"]
    argument: str
    status: str
    log: str
    env: dict[str, str] = {}


class AgentSpec(Message):
    """The start parameters of an agent."""

    host: str
    run: str
    """The launch. A new agent replaces one of the same launch, and exits if it finds another."""
    lock: str
    """The training, which only one gang may run at a time, as a part of a file name."""
    token_file: str
    """A file of the launcher, which a host sees if it shares the launcher's disk."""
    stored_attempt: str = ""
    """The folder of the train job's attempt, if it is in a bucket."""
    stored_work: str = ""
    """The folder of its checkpoints, if it is in a bucket."""
    silence_timeout_seconds: float
    """After this time without a message, the agent ends all processes on its host."""
    ports: tuple[int, int] | None = None
    """The first and the last port that may be used. None is any free port."""
    environment: dict[str, str] = {}
    """Of the agent, the fork server and its forks."""
    isolation: Isolation = "never"
    """Whether they get a network namespace: TensorFlow's servers listen on all interfaces."""


class Command(Message):
    """Launcher to agent: find free ports, fork, send a signal to a fork, remove checkpoints ..."""

    action: Literal["ping", "ports", "connect", "fork", "signal", "clean"]
    count: int = 0
    addresses: list[str] = []
    """Ports of other hosts, as `host:port`, to connect to."""
    fork: Fork | None = None
    name: str = ""
    signal: int = 0


class HostReport(Message):
    """An agent's report about its host before any training starts there."""

    python: str
    versions: dict[str, str]
    code: str
    """Digest of the code of this project."""
    token: str | None
    """The content of the token file. None if there is no such file."""
    local_attempt: str = ""
    """The folder of the attempt on a host that shares only a bucket with the launcher."""
    local_work: str = ""
    """The folder of the checkpoints on such a host."""
    cores: int
    gpus: tuple[str, ...] = ()
    time: float = 0.0
    """The host's clock, in seconds since 1970."""
    open_ports: str = ""
    """The reason why the ports of TensorFlow's servers are open to others. Empty if not."""
    close_ports: str = ""
    """The cure."""
    problems: list[str] = []
    """What keeps a training from working there, with the cures (`system/host.py`)."""


class Event(Message):
    """Agent or fork server to launcher.

    `hello` is an agent's first event, and `refused` its last one if it can't work. `ready` means
    that forks can be made. `leaving` means that its host was asked to end (SIGTERM): the agent ends
    after its forks. `alive` is an agent's heartbeat, with the `names` of its processes that run:
    all but those that ended, or that a signal or a debugger has stopped. `appended` has new bytes
    of the file `name` in the folder of the attempt. The `message` of `connected` names the
    addresses that could not be reached.
    """

    event: Literal[
        "hello",
        "refused",
        "ready",
        "leaving",
        "alive",
        "ports",
        "connected",
        "started",
        "ended",
        "appended",
    ]
    name: str = ""
    pid: int = 0
    code: int = 0
    """An exit code, or a negative signal number."""
    host: HostReport | None = None
    message: str = ""
    is_permanent_failure: bool = False
    """Whether a second try would not help."""
    names: list[str] = []
    ports: list[int] = []
    data: bytes = b""

    @classmethod
    def parse(cls, line: bytes) -> Event | None:
        """Parses a line. Returns None for other output, such as `print` in a fork server."""
        try:
            return cls.model_validate_json(line)
        except ValidationError:
            return None


class StoredWork(Message):
    """The folder of the checkpoints in a bucket. Each host has a copy on its own disk."""

    uri: str
    token: int
    """The token of the job's lease."""
    is_shared: bool = False
    """Whether hosts share checkpoints and results through the bucket: some share no disk."""

    def locate_results(self, name: str) -> str:
        """The URI of a folder for the results of one process."""
        return f"{self.uri}/{self.token:08d}/results/{name.replace(' ', '-')}"


class WorkerSpec(Message):
    """One process of one incarnation of a gang."""

    request: str
    cluster: dict[Role, list[str]]
    """The addresses of all processes, `host:port`, by role and in order."""
    role: Role = "worker"
    index: int
    host: str
    work: str
    """The folder of checkpoints on its host. Without `stored`, all processes can reach it."""
    stored: StoredWork | None = None
    progress: str
    threads: int
    """Its share of the host's cores."""
    devices: int = 1
    micro_batches: int = 1
    """At least those of the config: more after a step that found no memory."""
    steps_limit: int | None = None
    """Stops after this number of steps in total. For tests and measurements."""

    @property
    def name(self) -> str:
        """The name in messages and, with a hyphen, in file names: `worker 1`, `chief`, `ps 0`."""
        return format_worker_name(self.role, self.index)

    @property
    def workers(self) -> int:
        return len(self.cluster["worker"])

    @property
    def is_chief(self) -> bool:
        """Returns whether this process writes the results."""
        return self.role == "chief" or (self.is_peer and self.index == 0)

    @property
    def is_peer(self) -> bool:
        """Returns whether all processes run the loop in step, and not the chief alone."""
        return "chief" not in self.cluster

    @property
    def is_server(self) -> bool:
        """Returns whether this process only serves a chief, and never ends by itself."""
        return not self.is_peer and self.role != "chief"

    @property
    def tf_config(self) -> str:
        """TF_CONFIG as TensorFlow documents it."""
        return json.dumps(
            {"cluster": self.cluster, "task": {"type": self.role, "index": self.index}}
        )


def format_worker_name(role: Role, index: int) -> str:
    return role if role == "chief" else f"{role} {index}"


class CandidateSpec(Message):
    """Requests the candidate: the trained weights of `work` as a SavedModel, in `folder`."""

    request: str
    work: str
    folder: str
    progress: str = ""
    """The file for reports, on its host. None is written without."""
    source: str = ""
    """The weights in a bucket, if the host shares nothing else with the others."""
    target: str = ""
    """The place of the candidate in that bucket."""


# Names in the work folder, which outlives a gang.
STATE = "state.json"
"""The training state for the trained weights, once training is done."""
TRAINED = "trained.npz"
CARD = "card.json"
"""What the author's code has shown in the chief, a `CardContent`."""


def format_worker_digest_name(worker: int) -> str:
    """The file with the digest of a worker's final weights."""
    return f"worker-{worker}.digest"
