"""The number of cores that this process may use: by its affinity, and by the limit of its cgroup.

A container or a pod sees all cores of its machine, and its limit is a quota of their time. The
files are those of
https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files and
https://docs.kernel.org/scheduler/sched-bwc.html.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def count_cores(mount: Path = _MOUNT, own: Path = _OWN) -> int:
    """Returns the number of cores, at least 1. A part of a core counts as one.

    Args:
      mount: where the cgroups are mounted.
      own: the file with the cgroups of the process.
    """
    quotas = [quota for folder in _list_folders(mount, own) if (quota := _read_quota(folder))]
    return max(1, math.ceil(min([len(os.sched_getaffinity(0)), *quotas])))


def _list_folders(mount: Path, own: Path) -> Iterator[Path]:
    """Yields the folders of the process's cgroup and of those around it.

    Each line of `own` is `number:controllers:path`. Without a namespace of its own, the path of a
    container is one on its machine, which the container does not see. Then its root counts.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root = mount
        elif "cpu" in controllers.split(","):
            root = mount / controllers
        else:
            continue
        folder = root / path.lstrip("/")
        yield from (parent for parent in (folder, *folder.parents) if parent.is_relative_to(root))


def _read_quota(folder: Path) -> float | None:
    """Returns the cores of a cgroup, or None for no limit."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError):  # "max" is no number
        return None
