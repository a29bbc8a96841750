"""The folders of an attempt on a host that shares nothing but a bucket with the launcher.

The agent makes them before it starts any process of the gang. To do so it reads the request from
the bucket, which proves that the host reaches the same store with the same rights.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pipeline_ops.artifacts.layout import Attempt
from pipeline_ops.errors import ConfigError, DataError, MachineError
from pipeline_ops.jobs.gang_protocol import AgentSpec
from pipeline_ops.jobs.workspace import copy_request, make_local_folder
from pipeline_ops.storage.open_store import open_root


@dataclasses.dataclass(frozen=True)
class OwnDisk:
    """The folder of the attempt, and that of the checkpoints, which outlives it."""

    attempt: Path
    work: Path

    def to_report(self) -> dict[str, str]:
        """The part of a HostReport."""
        return {"own_attempt": str(self.attempt), "own_work": str(self.work)}


def open_own_disk(spec: AgentSpec) -> OwnDisk | None:
    """Makes the folders of this host. Returns None if it shares the launcher's disk.

    Raises:
      ConfigError: this host reaches no such store, or has no right to read it.
      MachineError: the store or the disk failed.
    """
    if not spec.stored_attempt or Path(spec.token_file).exists():
        return None
    attempt = Attempt(open_root(spec.stored_attempt))
    try:
        workspace = copy_request(attempt)
    except DataError:
        raise ConfigError(
            f"it does not see the storage root: {attempt.request} was written by the launcher's "
            "side and is missing there. Give it the same endpoint, in `environment` of the hosts "
            "file"
        ) from None
    except (ConfigError, MachineError) as error:
        raise type(error)(f"it does not see the storage root: {error}") from None
    return OwnDisk(workspace.folder, make_local_folder(open_root(spec.stored_work)))
