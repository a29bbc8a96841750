"""What the launcher and the processes of a gang say to each other.

The launcher starts one preloaded process per host and tells it on its standard input, one JSON line each, what to
fork; the preloaded process answers on its standard output with what has started and what has ended. A worker gets a
WorkerSpec as a file. What it has to say goes into its progress file, and into its status file when it ends.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

PRELOADED_MODULE = "pipeline_ops.training.preloaded"


class Message(BaseModel):
    model_config = ConfigDict(frozen=True)


class Fork(Message):
    """Launcher to preloaded process: fork one process.

    `argument` is the path of a WorkerSpec for a worker, and of a CandidateSpec for the candidate.
    """

    name: str
    entry: Literal["worker", "candidate"]
    argument: str
    status: str
    log: str
    env: dict[str, str] = {}


class Event(Message):
    """Preloaded process to launcher. `code` is an exit code, or a signal's number with a minus."""

    event: Literal["ready", "started", "ended"]
    name: str = ""
    pid: int = 0
    code: int = 0

    @classmethod
    def parse(cls, line: bytes) -> Event | None:
        """None for a line that is no event: somebody printed in the preloaded process."""
        try:
            return cls.model_validate_json(line)
        except ValidationError:
            return None


class WorkerSpec(Message):
    """One worker of one incarnation of a gang.

    `addresses` are those of all workers, `host:port`, in order; `work` is the folder of checkpoints, which all
    workers can reach; `threads` is this worker's share of the host's cores.
    """

    request: str
    worker: int
    addresses: list[str]
    work: str
    progress: str
    threads: int
    steps_limit: int | None = None
    """Stops after so many steps in all; for tests and measurements."""

    @property
    def workers(self) -> int:
        return len(self.addresses)

    @property
    def is_chief(self) -> bool:
        """The worker that writes."""
        return self.worker == 0


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
