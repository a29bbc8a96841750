"""A callback that holds a training at the end of its first epoch, where a test wants to act at a
step that it knows.

It lies beside the YAML of the test's jobs. Only the chief is held; the other workers are in the
middle of the next step meanwhile, waiting for it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path


class Hold:
    """Once in a job, and only if the file `hold` lies in the job's folder, or in the one that
    TRAINYARD_TEST_HOLD names; until that is gone.

    The file `held` beside it says that it is so far.
    """

    chief_only = True

    def after_epoch(self, run, epoch):
        folder = Path(os.environ.get("TRAINYARD_TEST_HOLD") or os.environ["TRAINYARD_RUN"])
        hold, held = folder / "hold", folder / "held"
        if held.exists() or not hold.exists():
            return
        held.touch()
        while hold.exists():
            time.sleep(0.01)
