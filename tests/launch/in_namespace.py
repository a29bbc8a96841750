"""A client of a store in a network namespace, with nothing but a `StoreProxy` to get out.

    python in_namespace.py ROOT SECONDS

It writes and reads objects until the time is over, and prints how many. Then it waits for the end
of its input.
"""

from __future__ import annotations

import os
import sys
import time

from pipeline_ops.contract.gang_protocol import AgentSpec
from pipeline_ops.launch.agent import isolate
from pipeline_ops.storage.open_store import open_root

BLOCK = os.urandom(5 << 20)  # more than one part


def main(root: str, seconds: float) -> None:
    spec = AgentSpec(
        host="here",
        run=root,
        lock="",
        token_file="",
        stored_attempt=root,
        silence_timeout_seconds=60,
        isolation="always",
    )
    report, _proxy = isolate(spec)
    assert report == {}
    deadline, count = time.monotonic() + seconds, 0
    while not count or time.monotonic() < deadline:
        path = open_root(root) / f"folder/{count} ä"
        path.write(BLOCK)
        assert b"".join(path.read_blocks()) == BLOCK
        assert len(open_root(root).walk()) == count + 1
        count += 1
        time.sleep(0.2)
    print(count, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
