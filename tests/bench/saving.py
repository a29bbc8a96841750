"""How long a training waits for a checkpoint that is written in the background. Started by `training.py`.

    python tests/bench/saving.py FOLDER ROUNDS

Prints for each save of a model of 6 million parameters with Adam: the seconds until training goes on, and those until the file is on the disk.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pipeline_ops.input.tensorflow_start import import_tensorflow

tf = import_tensorflow()

from keras import Input, Sequential, layers, optimizers  # noqa: E402

from pipeline_ops.contracts.config_train import Train  # noqa: E402
from pipeline_ops.models.classification import Classification  # noqa: E402
from pipeline_ops.training.all_reduce import make_all_reduce  # noqa: E402
from pipeline_ops.training.checkpoints import Checkpoints  # noqa: E402
from pipeline_ops.training.loop import SynchronousLoop  # noqa: E402
from pipeline_ops.training.state import TrainingState  # noqa: E402


def main(folder: Path, rounds: int) -> None:
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        model = Sequential([Input((2000,)), layers.Dense(2000), layers.Dense(1000), layers.Dense(10)])
    config = Train(model="digits_cnn", strategy="one_device")
    loop = SynchronousLoop(strategy, model, Classification((1, 1, 1)), config, make_all_reduce(strategy, 60.0))
    assert isinstance(loop.optimizer, optimizers.Adam)
    checkpoints, saves = Checkpoints(folder), []
    for step in range(rounds + 1):
        start = time.monotonic()
        checkpoints.save(TrainingState(step=step, learning_rate=1e-3), loop.weights(), loop.optimizer_values())
        blocked = time.monotonic() - start
        checkpoints.wait()
        saves.append((blocked, time.monotonic() - start))
    print(json.dumps({"parameters": model.count_params(), "saves": saves[1:]}))  # the first one takes the memory that all others use


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
