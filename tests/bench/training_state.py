"""The cost of a checkpoint for the training, and the speeds of input and steps.

    python tests/bench/training_state.py

The code is that of the workers. The measurements alternate, and medians of rounds count:

- The blocking time of a checkpoint (a copy, and the wait for the one before), next to a save that
  returns when the file is on the disk. The models are the digits CNN and one of six million
  parameters, each with Adam's two slots.
- Batches per second of the input pipeline alone, next to steps per second of the loop alone, on
  batches in memory.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402

from beam_jobs.io.example import pack  # noqa: E402
from pipeline_ops.config.train import Train  # noqa: E402
from pipeline_ops.contract.dataset import ENCODED, KEY, LABEL  # noqa: E402
from pipeline_ops.input.batches import build_training_dataset  # noqa: E402
from pipeline_ops.input.reading import SplitShards  # noqa: E402
from pipeline_ops.input.sources import EncodedSource, MemorySource  # noqa: E402
from pipeline_ops.input.tensorflow_start import tf
from pipeline_ops.models import build_model  # noqa: E402
from pipeline_ops.models.classification import Classification  # noqa: E402
from pipeline_ops.system.disk_cache import HostCache  # noqa: E402
from pipeline_ops.training.checkpoints import Checkpoints  # noqa: E402
from pipeline_ops.training.loop import SynchronousLoop  # noqa: E402
from pipeline_ops.training.training_state import TrainingState  # noqa: E402

ROUNDS, STEPS_BETWEEN, BATCH = 7, 10, 64
SHAPE = (28, 28, 1)


def make_loop(**config) -> SynchronousLoop:
    train = Train(workers=1, strategy="one_device", global_batch_size=BATCH, **config)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        model = build_model(train, SHAPE, 10, Path.cwd(), for_training=True)
    return SynchronousLoop(strategy, model, Classification(SHAPE), train)


def batches_in_memory():
    rng = np.random.default_rng(0)
    batch = (
        tf.constant(rng.integers(0, 255, [BATCH, *SHAPE], np.uint8)),
        tf.constant(rng.integers(0, 10, BATCH)),
    )
    return iter(tf.data.Dataset.from_tensors(batch).repeat())


def checkpoint_seconds(loop: SynchronousLoop, folder: Path) -> tuple[float, float]:
    """Medians of what the training waits for: a save in the background, and one that is on the disk
    when it returns."""
    checkpoints, batches, step = Checkpoints(folder), batches_in_memory(), itertools.count(1)
    background, synchronous = [], []
    for number in range(2 * ROUNDS + 2):
        for _ in range(3):
            loop.train(batches, 0, [1e-4] * STEPS_BETWEEN)
        begin = time.perf_counter()
        checkpoints.save(TrainingState(step=next(step), learning_rate=1e-3), *loop.get_views())
        if number % 2:
            checkpoints.wait()
            synchronous.append(time.perf_counter() - begin)
        else:
            background.append(time.perf_counter() - begin)
            # So that the next one does not pay for it twice: an interval between checkpoints is
            # longer than a write.
            checkpoints.wait()
    return statistics.median(background[1:]), statistics.median(synchronous[1:])


def write_digits(folder: Path) -> SplitShards:
    digits, path = load_digits(), folder / "train.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
            png = tf.io.encode_png(
                tf.cast(tf.image.resize(image[..., None] * 15, SHAPE[:2]), tf.uint8)
            ).numpy()
            features = {ENCODED: png, KEY: str(number).encode(), LABEL: int(label)}
            writer.write(pack(features))
    return SplitShards((str(path),), len(digits.images), path.stat().st_size)


def rate(take, count: int) -> float:
    begin = time.perf_counter()
    take(count)
    return count / (time.perf_counter() - begin)


def halves(split: SplitShards, cached: bool, **model) -> tuple[float, float]:
    """Medians of batches a second of the input alone, and of steps a second of the loop alone."""
    parse = Classification(SHAPE).parse
    cache = HostCache(Path(split.paths[0]).parent, 1 << 30)
    source = MemorySource(split, parse) if cached else EncodedSource(split, parse, cache)
    iterator, loop, ready = (
        iter(build_training_dataset(split, source, BATCH, range(0, BATCH), 1, 0)),
        make_loop(**model),
        batches_in_memory(),
    )

    def drain(count: int) -> None:
        for _ in range(count):
            next(iterator)

    def train(count: int) -> None:
        for _ in range(count // STEPS_BETWEEN):
            loop.train(ready, 0, [1e-4] * STEPS_BETWEEN)

    drain(20), train(20)
    pairs = [(rate(drain, 200), rate(train, 100)) for _ in range(ROUNDS)]
    return statistics.median(pair[0] for pair in pairs), statistics.median(
        pair[1] for pair in pairs
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, model in (
            ("digits CNN", {"model": "digits_cnn"}),
            (
                "dense, 6 million",
                {"model": "dense", "model_parameters": {"units": 2048, "hidden_layers": 2}},
            ),
        ):
            (model_folder := Path(folder) / name).mkdir()
            background, synchronous = checkpoint_seconds(make_loop(**model), model_folder)
            print(
                f"checkpoint  {name:<17} blocks {background * 1e3:8.2f} ms   "
                f"synchronous {synchronous * 1e3:8.2f} ms   "
                f"ratio {background / synchronous:.2f}  (at most 0.2)"
            )
        split = write_digits(Path(folder))
        for name, model in (
            ("digits CNN", {"model": "digits_cnn"}),
            ("small dense net", {"model": "dense", "model_parameters": {"units": 64}}),
        ):
            for cached in (False, True):
                batches, steps = halves(split, cached, **model)
                kind = "cached (default)" if cached else "decoded"
                print(
                    f"input       {name:<17} {kind:<16} {batches:8.0f} batches/s   "
                    f"{steps:8.0f} steps/s   "
                    f"ratio {batches / steps:.2f}  (at least 1)"
                )


if __name__ == "__main__":
    main()
