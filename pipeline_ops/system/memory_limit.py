"""The processes that the kernel has killed because their group has used up its memory limit."""

from __future__ import annotations

import re
from pathlib import Path

OUT_OF_MEMORY = (
    "out of memory: the kernel has killed processes that used more memory than their host, "
    "container or pod may. Give it more `memory` in the hosts file, or lower the batch size"
)
_V2 = Path("/sys/fs/cgroup/memory.events")
_V1 = Path("/sys/fs/cgroup/memory/memory.oom_control")


def count_memory_kills(files: tuple[Path, ...] = (_V2, _V1)) -> int:
    """Counts the processes of this container that the kernel has killed for want of memory.

    0 where the kernel does not count them.
    """
    for file in files:
        try:
            found = re.search(r"^oom_kill ([0-9]+)$", file.read_text(), re.MULTILINE)
        except OSError:
            continue
        if found:
            return int(found[1])
    return 0
