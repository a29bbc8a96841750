"""The messages between the launcher and the processes of a gang.

    launcher  -- Command, Event -->  agent, one on each host  -- Fork, Event -->  fork server
    fork server  -- fork -->  workers

A message is one JSON line on standard input or output, over any transport to another host. A worker
reports in its progress file, and in its status file when it ends. It sends its heartbeat through a
pipe to the agent of its host. If the hosts share no disk with the launcher, the agents send it what
is appended to these files.
"""

from __future__ import annotations

import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

AGENT_MODULE = "pipeline_ops.launch.agent"
FORK_SERVER_MODULE = "pipeline_ops.training.fork_server"

HEARTBEATS_VARIABLE = "TRAINYARD_HEARTBEATS"
"""The variable with the descriptor of the heartbeat pipe.

The fork server and its forks write their names into it once a second.
"""
HEARTBEAT_SECONDS = 1.0
RUN_VARIABLE = "TRAINYARD_RUN"
"""The variable that names the owner of a gang's process: the folder of the train job's attempt."""
FORK_SERVER = "fork server"
"""The name of the fork server in the heartbeats."""

Role = Literal["chief", "worker", "ps"]
"""TensorFlow's names of roles.

Only a gang with parameter servers has its own chief. Otherwise worker 0 is the chief.
"""
Isolation = Literal["never", "where possible", "always"]


class Message(BaseModel):
    model_config = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")


class Fork(Message):
    """Launcher to fork server: fork one process.

    `argument` is a WorkerSpec for a worker, and a CandidateSpec for the candidate, as JSON.
    """

    name: str
    entry: Literal["worker", "candidate"]
    argument: str
    status: str
    log: str
    env: dict[str, str] = {}


class AgentSpec(Message):
    """The start parameters of an agent.

    `run` identifies the launch. A new agent replaces an older agent with the same value and exits
    if it finds one with a different value. `lock` identifies the training, which only one gang may
    run at a time. It is a valid part of a file name. `token_file` is a file of the launcher, which
    a host sees if it shares the launcher's disk. `stored_attempt` and `stored_work` are the folders
    of the train job's attempt and of its checkpoints, if they are in a bucket.

    An agent that receives no message for `silence_timeout_seconds` ends all processes on its host.
    `ports` are the first and the last port that may be used; None for any free port. `environment`
    is for the agent, the fork server and all of its forks. With `isolation`, they get their own
    network namespace, because TensorFlow's servers listen on all interfaces.
    """

    host: str
    run: str
    lock: str
    token_file: str
    stored_attempt: str = ""
    stored_work: str = ""
    silence_timeout_seconds: float
    ports: tuple[int, int] | None = None
    environment: dict[str, str] = {}
    isolation: Isolation = "never"


class Command(Message):
    """Launcher to agent: a ping, or an action.

    An action is to find free ports, to connect to other hosts, to fork a process, to send a signal
    to a fork, or to remove the checkpoints that a host has on a disk of its own.
    """

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
    problems: list[str] = []
    """What keeps a training from working there, with the cures (`system/host.py`)."""


class Event(Message):
    """Agent or fork server to launcher.

    `code` is an exit code, or a negative signal number. `hello` is an agent's first event. `ready`
    means that forks can be made. `alive` names the processes with a recent heartbeat and those
    stopped by a signal. `refused` is the last event of an agent that can't work, with the reason.
    With `is_permanent_failure` a second try would not help. `appended` has data that were added to
    the file `name` in the folder of the attempt. `connected` has in `message` which addresses could
    not be reached; empty if all could.
    """

    event: Literal[
        "hello", "refused", "ready", "alive", "ports", "connected", "started", "ended", "appended"
    ]
    name: str = ""
    pid: int = 0
    code: int = 0
    host: HostReport | None = None
    message: str = ""
    is_permanent_failure: bool = False
    names: list[str] = []
    stopped: list[str] = []
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
    """The folder of the checkpoints in a bucket. Each host has a copy on its own disk.

    `token` is that of the job's lease. With `is_exchanged`, some hosts share no disk with the
    launcher. Then the results go through the bucket, too.
    """

    uri: str
    token: int
    is_exchanged: bool = False

    def locate_results(self, name: str) -> str:
        """The URI of a folder for the results of one process."""
        return f"{self.uri}/{self.token:08d}/results/{name.replace(' ', '-')}"


class WorkerSpec(Message):
    """One process of one incarnation of a gang.

    `cluster` has the addresses of all processes, `host:port`, by role and in order. `role` and
    `index` are the position of this process in it. `work` is the folder of checkpoints on its host,
    and `stored` the one in a bucket. Without a bucket, all processes can reach `work`. `threads` is
    this process's share of the host's cores, and `devices` the number of devices that it trains on.
    """

    request: str
    cluster: dict[Role, list[str]]
    role: Role = "worker"
    index: int
    host: str
    work: str
    stored: StoredWork | None = None
    progress: str
    threads: int
    devices: int = 1
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
        """Returns whether all processes of the gang run the loop in step.

        Otherwise the chief runs it alone, and the others serve until they are killed.
        """
        return "chief" not in self.cluster

    @property
    def is_server(self) -> bool:
        """Returns whether this process only serves a chief.

        It takes no steps on its own and never ends by itself.
        """
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
    """Requests the candidate: the trained weights of `work` as a SavedModel, in `folder`.

    `source` is where the weights are, and `target` where the candidate goes, if the host shares
    only a bucket with the others.
    """

    request: str
    work: str
    folder: str
    source: str = ""
    target: str = ""


# Names in the work folder, which outlives a gang.
STATE = "state.json"
"""The training state for the trained weights, once training is done."""
TRAINED = "trained.npz"


def format_worker_digest_name(worker: int) -> str:
    """The file with the digest of a worker's final weights."""
    return f"worker-{worker}.digest"
