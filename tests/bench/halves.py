"""The two halves of a step, each alone: making the batches, and computing with a batch that is there already. Started by `training.py`.

    python tests/bench/halves.py MANIFEST cnn|dense GLOBAL_BATCH memory|none

Prints seconds for a batch and seconds for a step. `memory` keeps decoded images, `none` decodes all of them in every epoch.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pipeline_ops.input.tensorflow_start import import_tensorflow

tf = import_tensorflow()

from nets import build_cnn, build_dense  # noqa: E402

from pipeline_ops.contracts.config_train import Train  # noqa: E402
from pipeline_ops.contracts.host_cache import HostCache  # noqa: E402
from pipeline_ops.contracts.manifest import read_manifest  # noqa: E402
from pipeline_ops.contracts.shards import DatasetFigures, shard_paths, shards_of  # noqa: E402
from pipeline_ops.input.dataset import Slice, Split, training_batches  # noqa: E402
from pipeline_ops.input.sources import open_source  # noqa: E402
from pipeline_ops.models.classification import Classification  # noqa: E402
from pipeline_ops.training.all_reduce import make_all_reduce  # noqa: E402
from pipeline_ops.training.loop import SynchronousLoop  # noqa: E402

SECONDS = 3.0


def seconds_each(act: Callable[[], int]) -> float:
    """Of what `act` does as often as it returns, over some seconds; what it does first is left out."""
    act()
    count, start = 0, time.monotonic()
    while time.monotonic() - start < SECONDS:
        count += act()
    return (time.monotonic() - start) / count


def main(manifest_uri: str, net: str, global_batch: int, cache: str) -> None:
    manifest = read_manifest(manifest_uri)
    figures = DatasetFigures.model_validate(manifest.figures)
    split = Split(tuple(shard_paths(manifest_uri, manifest, "train")), figures.num_examples["train"],
                  sum(file.num_bytes for file in shards_of(manifest, "train")))
    config = Train(model="digits_cnn", strategy="one_device", global_batch=global_batch, input={"cache": cache})
    task, strategy = Classification(figures.image_shape), tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        model = {"cnn": build_cnn, "dense": build_dense}[net](figures.image_shape, len(figures.class_names))
    loop = SynchronousLoop(strategy, model, task, config, make_all_reduce(strategy, 60.0))
    with tempfile.TemporaryDirectory() as folder:
        source = open_source(split, task.parse, config.input, HostCache(Path(folder), 1 << 33), "bench", print)
        batches = training_batches(split, source, global_batch, Slice(0, global_batch), 1, 0)
        iterator, ready = iter(batches), iter(batches.take(1).cache().repeat())
        rates = [1e-3] * config.steps_per_call

        def read() -> int:
            for _ in range(20):
                next(iterator)
            return 20

        def step() -> int:
            loop.train(ready, rates)
            return len(rates)

        print(json.dumps({"batch_seconds": seconds_each(read), "step_seconds": seconds_each(step)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
