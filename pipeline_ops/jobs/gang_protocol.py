"""The messages between the launcher and the processes of a gang.

    launcher  -- Order, Event -->  agent, one on each host  -- Fork, Event -->  preloaded process
    preloaded process  -- fork -->  workers

A message is one JSON line on standard input or output, over any transport to another host. A worker
gets a WorkerSpec as a file. It reports in its progress file, and in its status file when it ends.
It sends its heartbeat through a pipe to the agent of its host.
"""

from __future__ import annotations

import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

AGENT_MODULE = "pipeline_ops.launch.agent"
PRELOADED_MODULE = "pipeline_ops.training.fork_server"

BEATS_VARIABLE = "TRAINYARD_BEATS"
"""The variable with the descriptor of the heartbeat pipe.

The preloaded process and its forks write their names into it once a second.
"""
BEAT_SECONDS = 1.0
RUN_VARIABLE = "TRAINYARD_RUN"
"""The variable that names the owner of a gang's process: the folder of the train job's attempt."""
PRELOADED = "preloaded process"
"""The name of the preloaded process in the heartbeats."""


Role = Literal["chief", "worker", "ps"]
"""TensorFlow's names of roles.

Only a gang with parameter servers has its own chief. Otherwise worker 0 is the chief.
"""


Isolation = Literal["never", "with GPUs", "always"]


class Message(BaseModel):
    model_config = ConfigDict(frozen=True)


class Fork(Message):
    """Launcher to preloaded process: fork one process.

    `argument` is the path of a WorkerSpec for a worker, and of a CandidateSpec for the candidate.
    `token` is the gang's secret in hex digits. It goes through the pipes and is never written to a
    file.
    """

    name: str
    entry: Literal["worker", "candidate"]
    argument: str
    status: str
    log: str
    env: dict[str, str] = {}
    token: str = ""


class AgentSpec(Message):
    """The start parameters of an agent.

    Args:
      host: the host's name in the plan.
      run: identifies the launch. A new agent replaces an older agent with the same value and exits
        if it finds one with a different value.
      lock: identifies the training, which only one gang may run at a time, in words that fit into a
        file name.
      token_file: a file on the shared storage. The host must see the launcher's content in it.
      silence_seconds: an agent that receives no message for this time ends all processes on its
        host.
      ports: the first and the last port that may be used. None for any free port.
      environment: for the agent, the preloaded process and all of its forks.
      isolation: when the processes get their own network namespace. TensorFlow's servers, which
        parameter servers and NCCL need, listen on all interfaces.
    """

    host: str
    run: str
    lock: str
    token_file: str
    silence_seconds: float
    ports: tuple[int, int] | None = None
    environment: dict[str, str] = {}
    isolation: Isolation = "never"


class Command(Message):
    """Launcher to agent: a sign of life, or an order.

    An order is to find free ports, to fork a process, or to send a signal to a fork.
    """

    order: Literal["ping", "ports", "fork", "signal"]
    count: int = 0
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
    cores: int
    gpus: list[str] = []


class Event(Message):
    """Agent or preloaded process to launcher.

    `code` is an exit code, or a negative signal number. `hello` is an agent's first event. `ready`
    says that forks can be made. `alive` names the processes with a recent heartbeat and those
    stopped by a signal. `refused` is the last event of an agent that can't work, with the reason.
    With `needs_person` a second try would not help.
    """

    event: Literal["hello", "refused", "ready", "alive", "ports", "started", "ended"]
    name: str = ""
    pid: int = 0
    code: int = 0
    host: HostReport | None = None
    message: str = ""
    needs_person: bool = False
    names: list[str] = []
    stopped: list[str] = []
    ports: list[int] = []

    @classmethod
    def parse(cls, line: bytes) -> Event | None:
        """Parses a line. Returns None for other output, such as `print` in a preloaded process."""
        try:
            return cls.model_validate_json(line)
        except ValidationError:
            return None


class WorkerSpec(Message):
    """One process of one incarnation of a gang.

    `cluster` has the addresses of all processes, `host:port`, by role and in order. `role` and
    `index` are the place of this process in it. `work` is the folder of checkpoints, which all
    processes can reach. `threads` is this process's share of the host's cores, and `devices` the
    number of devices that it trains on.
    """

    request: str
    cluster: dict[Role, list[str]]
    role: Role = "worker"
    index: int
    host: str
    work: str
    progress: str
    threads: int
    devices: int = 1
    steps_limit: int | None = None
    """Stops after this number of steps in total. For tests and measurements."""

    @property
    def name(self) -> str:
        """The name in messages and, with a hyphen, in file names: `worker 1`, `chief`, `ps 0`."""
        return worker_name(self.role, self.index)

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


def worker_name(role: Role, index: int) -> str:
    return role if role == "chief" else f"{role} {index}"


class CandidateSpec(Message):
    """Requests the candidate: the trained weights of `work` as a SavedModel, in `folder`."""

    request: str
    work: str
    folder: str


# Names in the work folder, which outlives a gang.
STATE = "state.json"
"""The training state for the trained weights, once training is done."""
TRAINED = "trained.npz"


def worker_digest_name(worker: int) -> str:
    """The file with the digest of a worker's final weights."""
    return f"worker-{worker}.digest"
