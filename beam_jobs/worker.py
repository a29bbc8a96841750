"""A Beam worker process of the mode multi_processing: Beam's own, with a quiet log, and gone when its driver is gone.

Started by Beam as `python -m beam_jobs.worker`; not for people.
"""

from __future__ import annotations

import ctypes
import logging
import signal
import sys

from beam_jobs.beam_log import keep_warnings_only, quiet_import

_PR_SET_PDEATHSIG = 1


def _die_with_driver() -> None:
    """Linux only; elsewhere a worker notices at the end of its shard that nobody listens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    _die_with_driver()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    with quiet_import():
        from apache_beam.runners.worker import sdk_worker_main
    keep_warnings_only()
    sdk_worker_main.main(sys.argv)


if __name__ == "__main__":
    main()
