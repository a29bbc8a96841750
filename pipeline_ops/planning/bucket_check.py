"""Checks that the bucket of a storage root can be used, before a job has worked for hours.

A folder needs no check: the first lock or write there names what its file system refuses.
"""

from __future__ import annotations

import contextlib
import secrets

from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.errors import ConfigError, MachineError
from pipeline_ops.storage.local_files import UnsafePath
from pipeline_ops.system.lease import check_conditions


def check_bucket(config: PipelineConfig) -> None:
    """Writes and reads a file in the storage root, if that is a bucket.

    Raises:
      ConfigError: the bucket is missing, denies access or has no conditional writes.
      MachineError: the bucket can't be reached.
    """
    root = config.root
    if root.is_local:
        return
    probe, content = root / f".probe.{secrets.token_hex(8)}", b""
    try:
        probe.create(b"first")
        with contextlib.suppress(FileNotFoundError, UnsafePath, MachineError):
            content = probe.read(max_bytes=5)
        if content != b"first":
            raise ConfigError(
                f"{root}: the server there is no object store: it accepts a file, and does not "
                "return it. Correct storage.endpoint."
            )
        try:
            check_conditions(root, lambda: probe.create(b"second"))
        finally:
            probe.remove()
    except (ConfigError, MachineError) as error:
        key = f"{config.locate(('storage', 'root'))}: storage.root"
        error.add_location(key)
        raise
