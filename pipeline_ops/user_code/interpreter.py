"""The Python of a task's job if it is not Airflow's own, and the package versions in it.

The versions belong to the fingerprint. Airflow's environment then needs neither TensorFlow nor
Beam. The code that runs is always that of Airflow's side, and `orchestration/job_start.py` brings
it along.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from pipeline_ops.contract.fingerprint import find_versions
from pipeline_ops.errors import ConfigError
from pipeline_ops.system.processes import SAFE_PATH

_QUERY_TIMEOUT_SECONDS = 60
_QUERY = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def read_versions(python: Path | None, packages: Iterable[str]) -> dict[str, str]:
    """Returns the versions like `find_versions`, for another interpreter or, with None, this one.

    Raises:
      ConfigError: it cannot be started.
    """
    return (
        find_versions(packages)
        if python is None
        else dict(_query_versions(python, tuple(packages)))
    )


@functools.lru_cache(256)
def _query_versions(python: Path, packages: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Asks the interpreter once per process, which is the process of one task."""
    try:
        answer = subprocess.run(
            [python, "-c", _QUERY, *packages],
            cwd="/",
            env=os.environ | SAFE_PATH,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=_QUERY_TIMEOUT_SECONDS,
        )
        return tuple(json.loads(answer.stdout).items())
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        stderr_tail = (getattr(error, "stderr", "") or "").strip().splitlines()[-1:]
        raise ConfigError(
            f"{python} cannot be used as an interpreter: {'; '.join([*stderr_tail, str(error)])}",
            "`python` in the hosts file must be the path of a Python of 3.11 to 3.13.",
        ) from None
