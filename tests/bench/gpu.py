"""Training on one GPU: networks beside torchvision's, the input pipeline, train jobs, a restart.

    python tests/bench/gpu.py [--device cpu] [--rounds 2] [--seconds 10] [--only PART ...]
                              [--torch PYTHON] [--detection FOLDER] [--profile FOLDER]

- `resnet50`, `retinanet`: images per second in bfloat16, on one synthetic batch. Ours is the loop
  of a worker. Theirs is `gpu_torch.py`: torch.compile, autocast, channels last. Both processes stay
  and take turns, and medians of ratios are compared.
- `input`: images per second of the input pipeline alone, for augmented JPEGs of 224 px.
- `digits`, `detection`: train jobs of `configs/digits.yaml` and `configs/bccd.yaml`, with one
  worker. `--detection` names the folder of a data set that a run of bccd.yaml has prepared. Without
  it, the part is left out.
- `restart`: seconds from `kill -9` of the digits' worker to the first new step.

The result is one JSON object. The parts go to stderr as they end. `--device cpu` tries the program
out, with small images and one epoch of `detection`. `--profile` writes profiles of our networks'
steps for TensorBoard.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import cv2
import numpy as np
from measuring import DIGITS, HERE, ROOT, make_environment, make_parser
from photographs import photograph
from sklearn.datasets import load_digits
from train_jobs import is_step, start_training

from pipeline_ops.config.pipeline import PipelineConfig, load_config

sys.path.append(str(ROOT / "tests" / "support"))
from small_datasets import write_dataset

Measurement = dict[str, float]

SIZES = {
    ("resnet50", "gpu"): (224, 256),
    ("resnet50", "cpu"): (64, 8),
    ("retinanet", "gpu"): (640, 16),
    ("retinanet", "cpu"): (128, 2),
    ("input", "gpu"): (224, 256),
    ("input", "cpu"): (224, 32),
}
"""Pixels of a side, and images of a batch."""
STEPS_PER_CALL = {"gpu": 10, "cpu": 1}
NUM_BOXES, NUM_CLASSES = 8, {"resnet50": 1000, "retinanet": 80}
PARAMETERS = {"retinanet": {"backbone": "ResNet50", "normalization": "group"}}
AUGMENT = {
    "flip_left_right": True,
    "crops": [{"min_area": 0.08}],
    "brightness": 0.2,
    "contrast": 0.2,
    "saturation": 0.2,
}
NUM_PHOTOGRAPHS = 256
STEPS_BEFORE_KILL = 200
ENDLESS = {
    "train.epochs": 10_000,
    "train.early_stopping": None,
    "train.reduce_learning_rate": None,
    "train.best_checkpoint": None,
    "train.checkpoint_every_steps": 50,
}


def measure_net(
    net: str, device: str, seconds: float, pixels: int, batch: int, profile: str
) -> Iterator[Measurement]:
    """Yields the time of the first call, and then the figures of the steps of some seconds."""
    from pipeline_ops.config.train import Train
    from pipeline_ops.input.tensorflow_start import tf
    from pipeline_ops.models import build_model, make_head
    from pipeline_ops.models.boxes import Boxes
    from pipeline_ops.models.classification import Classification
    from pipeline_ops.models.detection import Detection
    from pipeline_ops.training.strategy import ChosenStrategy
    from pipeline_ops.training.worker import make_loop

    shape, num_classes = (pixels, pixels, 3), NUM_CLASSES[net]
    config = Train(
        model=net,
        model_parameters=PARAMETERS.get(net, {}),
        strategy="one_device",
        global_batch_size=batch,
        precision="bfloat16",
        xla="step" if device == "gpu" else "none",
        steps_per_call=STEPS_PER_CALL[device],
        optimizer={"name": "sgd", "momentum": 0.9, "learning_rate": 0.01},
    )
    generator = np.random.default_rng(1)
    images = generator.integers(0, 256, (batch, *shape), np.uint8)
    if net == "resnet50":
        task, labels = Classification(shape), generator.integers(0, num_classes, batch)
    else:
        task = Detection(shape, make_head(config, shape, num_classes))
        corners = np.sort(generator.random((batch, NUM_BOXES, 2, 2), np.float32), axis=2)
        classes = generator.integers(0, num_classes, (batch, NUM_BOXES), np.int32)
        labels = Boxes(corners.reshape(batch, NUM_BOXES, 4), classes, np.zeros(classes.shape, bool))
    name = f"/{device}:0"
    chosen = ChosenStrategy("one_device", "", tf.distribute.OneDeviceStrategy(name), [name])
    loop = make_loop(
        config, chosen, task, lambda: build_model(config, shape, num_classes, Path.cwd(), True)
    )
    batches = iter(tf.data.Dataset.from_tensors((images, labels)).repeat().prefetch(2))
    rates, begun = [0.01] * config.steps_per_call, time.perf_counter()
    loop.train(batches, 0, rates)
    yield {"first_call_seconds": time.perf_counter() - begun}
    if profile:
        with tf.profiler.experimental.Profile(f"{profile}/{net}"):
            loop.train(batches, 0, rates)
    while True:
        steps, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < seconds:
            loop.train(batches, 0, rates)
            steps += len(rates)
        found = {"images_per_second": steps * batch / (time.perf_counter() - begun)}
        if device == "gpu":
            found["memory_mb"] = tf.config.experimental.get_memory_info("GPU:0")["peak"] / 1e6
        yield found


def measure_input(seconds: float, pixels: int, batch: int) -> Iterator[Measurement]:
    """Yields the time of the first batch, and then the figures of the batches of some seconds."""
    from pipeline_ops.config.train import Train
    from pipeline_ops.job.local_inputs import open_host_cache, open_host_dataset
    from pipeline_ops.models.classification import Classification
    from pipeline_ops.system.host import count_cores
    from pipeline_ops.training.input_pipeline import InputPipeline

    def make_example(number: int) -> tuple[bytes, int]:
        image = cv2.imdecode(np.frombuffer(photograph(number), np.uint8), cv2.IMREAD_COLOR)
        _, encoded = cv2.imencode(".jpg", cv2.resize(image, (pixels, pixels)))
        return encoded.tobytes(), number % 10

    shape, examples = (pixels, pixels, 3), [make_example(each) for each in range(NUM_PHOTOGRAPHS)]
    with tempfile.TemporaryDirectory() as folder:
        splits = {"train": examples, "validation": examples[:4], "test": examples[:4]}
        uri = write_dataset(Path(folder), shape, [str(each) for each in range(10)], splits)
        config = Train(
            model="resnet50",
            strategy="one_device",
            global_batch_size=batch,
            input={"augment": AUGMENT, "cache": "none", "local_folder": folder},
        )
        report = partial(print, file=sys.stderr)
        dataset = open_host_dataset(uri, config.input, open_host_cache(config.input), report)
        pipeline = InputPipeline(config, dataset, Classification(shape), (0, 1), "bench", report)
        begun, batches = time.perf_counter(), pipeline.make_batches(0)
        next(batches)
        yield {"first_call_seconds": time.perf_counter() - begun, "cores": count_cores()}
        while True:
            count, begun = 0, time.perf_counter()
            while time.perf_counter() - begun < seconds:
                next(batches)
                count += batch
            yield {"images_per_second": count / (time.perf_counter() - begun)}


def compare(part: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures in processes of their own, which take turns."""
    commands = {"ours": [sys.executable, Path(__file__).resolve()]}
    if arguments.torch and part in NUM_CLASSES:
        commands["torch"] = [arguments.torch, HERE / "gpu_torch.py"]
    words = [part, arguments.device, arguments.seconds, *SIZES[part, arguments.device]]
    with contextlib.ExitStack() as stack:
        processes = {
            side: stack.enter_context(start([*command, *words, arguments.profile]))
            for side, command in commands.items()
        }
        result: dict[str, Any] = {side: ask(process) for side, process in processes.items()}
        rounds = [
            {side: ask(process) for side, process in processes.items()}
            for _ in range(arguments.rounds)
        ]
    rates = {side: [each[side]["images_per_second"] for each in rounds] for side in processes}
    for side, found in rates.items():
        result[side] |= rounds[-1][side] | {"images_per_second": median(found), "rounds": found}
    if "torch" in rates:
        result["ratio"] = median(a / b for a, b in zip(*rates.values(), strict=True))
    return result


def start(argv: list[object]) -> subprocess.Popen[str]:
    """Starts a program for `ask`."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        list(map(str, argv)), stdin=pipe, stdout=pipe, env=make_environment(), text=True
    )


def ask(process: subprocess.Popen[str]) -> Measurement:
    """Returns the next measurement of a program that makes one for each line."""
    assert process.stdin and process.stdout
    with contextlib.suppress(BrokenPipeError):
        print(file=process.stdin, flush=True)
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{process.args} ended with {process.wait()}")
    return json.loads(line)


def write_digits(folder: Path) -> str:
    """Writes scikit-learn's digits as a data set of 28 px. Returns the URI of its manifest."""
    digits = load_digits()

    def make_example(number: int) -> tuple[bytes, int]:
        image = cv2.resize(digits.images[number] * 15.9, (28, 28)).astype(np.uint8)
        return cv2.imencode(".png", image)[1].tobytes(), int(digits.target[number])

    numbers = np.random.default_rng(1).permutation(len(digits.images))
    examples = [make_example(number) for number in numbers]
    splits = {"train": examples[360:], "validation": examples[:180], "test": examples[180:360]}
    folder.mkdir()
    return write_dataset(folder, (28, 28, 1), [str(digit) for digit in range(10)], splits)


def measure_job(file: Path, dataset: str, root: Path, overrides: dict[str, Any]) -> dict[str, Any]:
    """Measures a whole train job."""
    with start_training(load_one_worker(file, root, overrides), dataset) as training:
        first_step = training.wait_for(is_step).time - training.started
        figures = training.finish()
        seconds = time.time() - training.started
    return {
        "seconds": seconds,
        "first_step_seconds": first_step,
        "steps": figures["steps"],
        "best_epoch": figures["history"][figures["best_epoch"]],
        "step_shares": figures.get("step_shares"),
    }


def load_one_worker(file: Path, root: Path, overrides: dict[str, Any]) -> PipelineConfig:
    """Loads a config for one device."""
    common = {"storage.root": str(root), "train.strategy": "one_device", "train.workers": 1}
    return load_config(file, common | overrides)


def measure_digits(arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return measure_job(DIGITS, write_digits(Path(folder) / "dataset"), Path(folder), {})


def measure_detection(arguments: argparse.Namespace) -> dict[str, Any] | None:
    if arguments.detection is None:
        return None
    overrides = {"train.epochs": 1} if arguments.device == "cpu" else {}
    dataset = str(arguments.detection.resolve() / "manifest.json")
    with tempfile.TemporaryDirectory() as folder:
        return measure_job(ROOT / "configs" / "bccd.yaml", dataset, Path(folder), overrides)


def measure_restart(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures kills of the worker, and ends the job."""
    seconds, step = [], 0
    with tempfile.TemporaryDirectory() as folder:
        config = load_one_worker(DIGITS, Path(folder), ENDLESS)
        with start_training(config, write_digits(Path(folder) / "dataset")) as training:
            for _ in range(arguments.rounds):
                goal = step + STEPS_BEFORE_KILL
                step = training.wait_for(
                    lambda event, goal=goal: is_step(event) and event.done >= goal
                ).done
                seconds.append(
                    training.wait_for_new_step_after(
                        lambda: os.kill(training.worker_pids()["worker-0.log"], signal.SIGKILL)
                    )
                )
            training.process.terminate()
            training.process.wait()
    return {"seconds": median(seconds), "rounds": seconds}


PARTS = {
    "resnet50": partial(compare, "resnet50"),
    "retinanet": partial(compare, "retinanet"),
    "input": partial(compare, "input"),
    "digits": measure_digits,
    "detection": measure_detection,
    "restart": measure_restart,
}


def main() -> None:
    parser = make_parser(__doc__, rounds=2)
    parser.formatter_class, parser.description = argparse.RawDescriptionHelpFormatter, __doc__
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each round of images")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--torch", help="an interpreter with PyTorch and torchvision")
    parser.add_argument("--detection", type=Path, metavar="FOLDER", help="a prepared data set")
    parser.add_argument("--profile", metavar="FOLDER", default="", help="where profiles go")
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    result = {}
    for part in arguments.only:
        begun = time.perf_counter()
        found = PARTS[part](arguments)
        if found is not None:
            result[part] = found | {"part_seconds": time.perf_counter() - begun}
            print(json.dumps({part: result[part]}), file=sys.stderr, flush=True)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in (*NUM_CLASSES, "input"):
        net, device, seconds, pixels, batch, profile = sys.argv[1:7]
        numbers = float(seconds), int(pixels), int(batch)
        if net == "input":
            measurements = measure_input(*numbers)
        else:
            measurements = measure_net(net, device, *numbers, profile)
        for _, found in zip(sys.stdin, measurements, strict=False):
            print(json.dumps(found), flush=True)
    else:
        main()
