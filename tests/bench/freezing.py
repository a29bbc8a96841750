"""Fine-tuning on a few images of new classes: from scratch, from existing weights, and from these
with `train.freeze_epochs`.

A network learns the digits 0 to 4 of scikit-learn, and then 5 to 9 from a few images of each. All
ways take the same number of steps and are measured on all other images of 5 to 9. Also prints the
time of a step of MobileNetV2, with all weights and with all but the head frozen.

    python tests/bench/freezing.py [--images 8] [--epochs 20] [--frozen 5] [--seeds 3]
"""

from __future__ import annotations

import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from measuring import make_parser
from sklearn.datasets import load_digits

from pipeline_ops.config.train import Train
from pipeline_ops.models import backbones, digits_cnn
from pipeline_ops.models.classification import Classification
from pipeline_ops.training.loop import SynchronousLoop
from pipeline_ops.training.weight_files import Arrays

SHAPE, CLASSES, HEAD = (16, 16, 1), 5, 2
RATE, FIRST_BATCH, FIRST_STEPS, BATCH = 1e-3, 32, 560, 8


def build_normalized(image_shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    """Builds four convolutions with batch normalization, and a mean over all pixels."""
    layers = keras.layers
    stack = [keras.Input(image_shape), layers.Rescaling(1 / 255)]
    for filters, strides in ((24, 1), (32, 2), (48, 1), (64, 2)):
        stack.append(layers.Conv2D(filters, 3, strides, padding="same", use_bias=False))
        stack += [layers.BatchNormalization(momentum=0.9), layers.ReLU()]
    return keras.Sequential([*stack, layers.GlobalAveragePooling2D(), layers.Dense(num_classes)])


NETS = {"digits_cnn": digits_cnn.build, "batch normalization": build_normalized}


def make_loop(model: keras.Model, batch: int) -> SynchronousLoop:
    config = Train(
        model="digits_cnn",
        strategy="one_device",
        global_batch_size=batch,
        optimizer={"learning_rate": RATE},
    )
    task = Classification(model.input_shape[1:])
    return SynchronousLoop(tf.distribute.get_strategy(), model, task, config)


def train(
    loop: SynchronousLoop, examples: tuple, batch: int, steps: range, head_steps: int, seed: int
) -> None:
    """Takes the steps. In the first `head_steps` only the head learns."""
    shuffled = tf.data.Dataset.from_tensor_slices(examples).shuffle(5000, seed=seed).repeat()
    batches = iter(shuffled.batch(batch))
    count = len(loop.model.weights)
    loop.freeze(range(count - HEAD) if head_steps else [])
    for step in steps:
        if step == head_steps:
            loop.freeze([])
        loop.train(batches, step, [RATE])


def fine_tune(
    build: Callable, start: Arrays | None, images: tuple, tests: tuple, options, frozen: int, seed
) -> float:
    """Returns the accuracy after training on the images."""
    keras.utils.set_random_seed(seed)
    loop = make_loop(build(SHAPE, CLASSES), BATCH)
    if start:
        loop.assign(start[:-HEAD] + loop.get_weights()[-HEAD:])
    steps_per_epoch = len(images[0]) // BATCH
    steps = range(options.epochs * steps_per_epoch)
    train(loop, images, BATCH, steps, frozen * steps_per_epoch, seed)
    return float(np.mean(np.argmax(loop.model.predict(tests[0], verbose=0), -1) == tests[1]))


def compare(name: str, options) -> None:
    digits = load_digits()
    images = digits.images.repeat(2, 1).repeat(2, 2)[..., None].astype(np.uint8) * 15
    labels = digits.target.astype(np.int64)
    found: dict[str, list[float]] = {}
    for seed in range(options.seeds):
        keras.utils.set_random_seed(seed)
        first, old = make_loop(NETS[name](SHAPE, CLASSES), FIRST_BATCH), labels < CLASSES
        train(first, (images[old], labels[old]), FIRST_BATCH, range(FIRST_STEPS), 0, seed)
        start, rng = first.get_weights(), np.random.default_rng(seed)
        places = [np.flatnonzero(labels == digit) for digit in range(CLASSES, 2 * CLASSES)]
        chosen = np.concatenate([rng.permutation(each)[: options.images] for each in places])
        rest = np.setdiff1d(np.concatenate(places), chosen)
        new, tests = ((images[each], labels[each] - CLASSES) for each in (chosen, rest))
        for way, weights, frozen in (
            ("from scratch", None, 0),
            ("warm start", start, 0),
            ("warm start, frozen at first", start, options.frozen),
        ):
            accuracy = fine_tune(NETS[name], weights, new, tests, options, frozen, seed + 100)
            found.setdefault(way, []).append(accuracy)
    for way, accuracies in found.items():
        each = ", ".join(f"{accuracy:.3f}" for accuracy in accuracies)
        print(f"{name:20} {way:28} {np.mean(accuracies):.3f} ({each})", flush=True)


def measure_steps(count: int = 20) -> None:
    shape, batch = (96, 96, 3), 16
    loop = make_loop(backbones.build(shape, CLASSES, "MobileNetV2"), batch)
    zeros = np.zeros((batch, *shape), np.uint8), np.zeros(batch, np.int64)
    batches = iter(tf.data.Dataset.from_tensors(zeros).repeat())
    weights = len(loop.model.weights)
    for name, frozen in (("all", []), ("the head", range(weights - HEAD))):
        loop.freeze(frozen)
        loop.train(batches, 0, [RATE])  # traces the step
        begin = time.monotonic()
        for step in range(count):
            loop.train(batches, step, [RATE])
        milliseconds = 1000 * (time.monotonic() - begin) / count
        print(f"mobilenet_v2, {batch} images of 96x96, {name} learns: {milliseconds:.0f} ms a step")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=int, default=8, help="images of each new class")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--frozen", type=int, default=5, help="first epochs of the head alone")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    for name in NETS:
        compare(name, options)
    measure_steps()


if __name__ == "__main__":
    main()
