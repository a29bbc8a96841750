"""The Python that a task's job runs in, where it is not Airflow's own: what is installed there, which belongs into the fingerprint.

Airflow's environment then needs neither TensorFlow nor Beam. The code that runs is the same in any case, that of Airflow's side;
`operators/process.py` brings it along.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from pipeline_ops.artifacts.fingerprint import versions_of
from pipeline_ops.errors import ConfigError
from pipeline_ops.system.processes import SAFE_PATH

_ASK_SECONDS = 60
_QUESTION = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def versions_in(python: Path | None, packages: Iterable[str]) -> dict[str, str]:
    """As `versions_of`, for another interpreter; None is this one.

    Raises:
      ConfigError: it can't be started.
    """
    return versions_of(packages) if python is None else dict(_ask(python, tuple(packages)))


@functools.lru_cache(256)
def _ask(python: Path, packages: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Asked once in the life of a process, which is that of one task."""
    try:
        answer = subprocess.run([python, "-c", _QUESTION, *packages], cwd="/", env=os.environ | SAFE_PATH, stdin=subprocess.DEVNULL,
                                capture_output=True, text=True, check=True, timeout=_ASK_SECONDS)
        return tuple(json.loads(answer.stdout).items())
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", "") or "").strip().splitlines()[-1:]
        raise ConfigError(f"{python} can't be used as an interpreter: {'; '.join([*said, str(error)])}; `python` of a task must be the path of a "
                          "Python of 3.11 to 3.13") from None
