"""What the launcher and the processes of a gang say to each other.

    launcher  -- Order, Event -->  agent, one on each host  -- Fork, Event -->  preloaded process  -- fork -->  workers

One JSON line each, on standard input and output, whatever carries these to another host. A worker gets a WorkerSpec as a
file. What it has to say goes into its progress file, and into its status file when it ends. That it lives, it says in
a pipe to the agent of its host.
"""

from __future__ import annotations

import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

AGENT_MODULE = "pipeline_ops.launch.agent"
PRELOADED_MODULE = "pipeline_ops.training.fork_server"

BEATS_VARIABLE = "TRAINYARD_BEATS"
"""The preloaded process finds here the descriptor of the pipe into which it and its forks write their names, once a second."""
BEAT_SECONDS = 1.0
RUN_VARIABLE = "TRAINYARD_RUN"
"""Every process of a gang has here, whose it is: the folder of the train job's attempt."""
PRELOADED = "preloaded process"
"""Its name among those that beat."""


Role = Literal["chief", "worker", "ps"]
"""TensorFlow's words. Only a gang with parameter servers has a chief of its own; elsewhere worker 0 is the chief."""


Isolation = Literal["never", "with GPUs", "always"]


class Message(BaseModel):
    model_config = ConfigDict(frozen=True)


class Fork(Message):
    """Launcher to preloaded process: fork one process.

    `argument` is the path of a WorkerSpec for a worker, and of a CandidateSpec for the candidate. `token` is the gang's secret in hex digits:
    it goes through the pipes and into no file.
    """

    name: str
    entry: Literal["worker", "candidate"]
    argument: str
    status: str
    log: str
    env: dict[str, str] = {}
    token: str = ""


class AgentSpec(Message):
    """What an agent is started with.

    Args:
      host: the host's name in the plan.
      run: the launcher's own mark; an agent ends a predecessor with the same mark, and gives way to one with another.
      lock: of what no two gangs may train, in words that fit into a file name.
      token_file: a file on the shared storage; the host must see what the launcher wrote into it.
      silence_seconds: an agent that hears nothing for so long ends everything on its host.
      ports: the first and the last port that may be used; None: any that is free.
      environment: for the agent, the preloaded process and all of its forks.
      isolation: When they get a network namespace of their own. TensorFlow's servers, which
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


class Order(Message):
    """Launcher to agent: that the launcher lives, find free ports, fork a process, send a signal to a fork."""

    order: Literal["ping", "ports", "fork", "signal"]
    count: int = 0
    fork: Fork | None = None
    name: str = ""
    signal: int = 0


class HostReport(Message):
    """What an agent says of its host before anything is trained there."""

    python: str
    versions: dict[str, str]
    code: str
    """Digest of the code of this project."""
    token: str | None
    """What it has read from the token file; None where there is no such file."""
    cores: int
    gpus: list[str] = []


class Event(Message):
    """Agent or preloaded process to launcher. `code` is an exit code, or a signal's number with a minus.

    `hello` is an agent's first word, `ready` says that forks can be made, `alive` names who has beaten lately and who is
    stopped by a signal, and `refused` is the last word of an agent that can't work, with the reason.
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
        """None for a line that is no event: somebody printed in the preloaded process."""
        try:
            return cls.model_validate_json(line)
        except ValidationError:
            return None


class WorkerSpec(Message):
    """One process of one incarnation of a gang.

    `cluster` has the addresses of all processes, `host:port`, by role and in order; `role` and `index` are this one's place
    in it. `work` is the folder of checkpoints, which all can reach; `threads` is this process's share of the host's cores,
    and `devices` the number of devices that it trains on.
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
    """Stops after so many steps in all; for tests and measurements."""

    @property
    def name(self) -> str:
        """As in messages and, with a hyphen, in the names of files: `worker 1`, `chief`, `ps 0`."""
        return worker_name(self.role, self.index)

    @property
    def workers(self) -> int:
        return len(self.cluster["worker"])

    @property
    def is_chief(self) -> bool:
        """The process that writes."""
        return self.role == "chief" or (self.is_peer and self.index == 0)

    @property
    def is_peer(self) -> bool:
        """Whether all processes of the gang run the loop in step. Else the chief runs it alone, and the others serve until they are killed."""
        return "chief" not in self.cluster

    @property
    def is_server(self) -> bool:
        """Whether it only serves a chief: it takes no steps of its own accord and never ends by itself."""
        return not self.is_peer and self.role != "chief"

    @property
    def tf_config(self) -> str:
        """TF_CONFIG as TensorFlow documents it."""
        return json.dumps({"cluster": self.cluster, "task": {"type": self.role, "index": self.index}})


def worker_name(role: Role, index: int) -> str:
    return role if role == "chief" else f"{role} {index}"


class CandidateSpec(Message):
    """Asks for the candidate: the trained weights of `work` as a SavedModel, in `folder`."""

    request: str
    work: str
    folder: str


# Names in the work folder, which outlives a gang.
STATE = "state.json"
"""The training state that belongs to the trained weights, once training is done."""
TRAINED = "trained.npz"


def worker_digest_name(worker: int) -> str:
    """The file in which a worker says what its weights were in the end."""
    return f"worker-{worker}.digest"
