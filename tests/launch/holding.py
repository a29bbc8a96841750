"""A callback that holds a training at the end of its first epoch, so that a test knows the step.

It lies next to the YAML of the test's jobs. Only the chief is held. The other workers wait for it
in the middle of the next step.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import keras


class Hold(keras.callbacks.Callback):
    """Holds a job once, while there is a file `hold` in the job's folder.

    TRAINYARD_TEST_HOLD can name another folder. The file `held` next to it shows that the training
    is held.
    """

    chief_only = True

    def on_epoch_end(self, epoch, logs=None):
        folder = Path(os.environ.get("TRAINYARD_TEST_HOLD") or os.environ["TRAINYARD_RUN"])
        hold, held = folder / "hold", folder / "held"
        if held.exists() or not hold.exists():
            return
        held.touch()
        while hold.exists():
            time.sleep(0.01)
