"""Images per second of a training on one GPU, beside torchvision's models on the same card.

The programs run in turn, each in a process of its own, and medians of ratios are compared. Ours is
the loop of a worker, and theirs is `gpu_torch.py`: torch.compile, autocast, channels last. Both
train in bfloat16 on the same synthetic batch. The result is one JSON object.

    python tests/bench/gpu.py [--device cpu] [--rounds 3] [--torch PYTHON] [--seconds 20]

`--device cpu` runs everything with small images, to try the program out.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from measuring import HERE, make_environment, make_parser

SIZES = {
    ("resnet50", "gpu"): (224, 256),
    ("resnet50", "cpu"): (64, 8),
    ("retinanet", "gpu"): (640, 16),
    ("retinanet", "cpu"): (128, 2),
}
"""Pixels of a side, and images of a batch."""
STEPS_PER_CALL = {"gpu": 10, "cpu": 1}
NUM_BOXES, NUM_CLASSES = 8, {"resnet50": 1000, "retinanet": 80}
PARAMETERS = {"retinanet": {"backbone": "ResNet50", "normalization": "group"}}


def measure_ours(net: str, device: str, seconds: float) -> dict[str, float]:
    """Takes steps of the worker's loop for some seconds."""
    import numpy as np

    from pipeline_ops.config.train import Train
    from pipeline_ops.input.tensorflow_start import tf
    from pipeline_ops.models import build_model, make_head
    from pipeline_ops.models.classification import Classification
    from pipeline_ops.models.detection import Boxes, Detection
    from pipeline_ops.training.strategy import ChosenStrategy
    from pipeline_ops.training.worker import make_loop

    pixels, batch = SIZES[net, device]
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
    first, steps, begun = time.perf_counter() - begun, 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        loop.train(batches, 0, rates)
        steps += len(rates)
    found = {
        "images_per_second": steps * batch / (time.perf_counter() - begun),
        "first_call_seconds": first,
    }
    if device == "gpu":
        found["memory_mb"] = tf.config.experimental.get_memory_info("GPU:0")["peak"] / 1e6
    return found


def run(python: str, program: Path, net: str, device: str, seconds: float) -> dict[str, float]:
    """Returns the JSON of a process that measures one net."""
    pixels, batch = SIZES[net, device]
    words = [program, net, device, seconds, pixels, batch]
    done = subprocess.run(
        [python, *map(str, words)], env=make_environment(), capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{program.name} {net}: {done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--torch", help="an interpreter with PyTorch and torchvision")
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    result = {}
    for net in NUM_CLASSES:
        ours, theirs = [], []
        for _ in range(arguments.rounds):
            common = (net, arguments.device, arguments.seconds)
            ours.append(run(sys.executable, Path(__file__).resolve(), *common))
            if arguments.torch:
                theirs.append(run(arguments.torch, HERE / "gpu_torch.py", *common))
        result[net] = {"ours": ours, "torch": theirs}
        rates = [[each["images_per_second"] for each in side] for side in (ours, theirs)]
        result[net]["images_per_second"] = median(rates[0])
        if theirs:
            result[net]["ratio"] = median(a / b for a, b in zip(*rates, strict=True))
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in NUM_CLASSES:
        net, device, seconds = sys.argv[1:4]
        print(json.dumps(measure_ours(net, device, float(seconds))))
    else:
        main()
