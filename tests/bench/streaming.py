"""Training from a store behind a slow network, next to training from a local folder.

    python tests/bench/streaming.py [--megabytes 2000] [--shards 64] [--steps 300] [--rounds 3]

The data set is made in a temporary folder: JPEG files of 320x320 pixels and about 60 kB. A server
hands it out with 50 MB per second. It has a core of its own, as it would have a machine of its own,
and all trainings have the others. The cache of the host has a quarter of the data and is empty at
the start. Each training is a process of its own, and the variants alternate: both orders, from the
folder and from the store. The time to the first step counts from the start of the process, and from
the opening of the data set. Steps per second count from the first step on.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_START = time.monotonic()

_TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_TESTS.parent), str(_TESTS / "support")]
from manifests import list_counted, make_manifest  # noqa: E402
from measuring import format_spread, make_environment, make_parser  # noqa: E402

BATCH, SIDE, NUM_CLASSES = 32, 320, 10
MEGABYTES_PER_SECOND = 50
_VALIDATION = 64


def write_dataset(folder: Path, megabytes: int, num_shards: int) -> None:
    """Writes a data set whose images are a few photographs, each with other bytes at its end."""
    import cv2
    import numpy as np
    from photographs import photograph

    from pipeline_ops.contract.dataset import (
        RECORD_LENGTHS,
        DatasetFigures,
        StageFigures,
        build_shard_name,
        format_record_lengths,
    )
    from pipeline_ops.contract.manifest import write_manifest

    images = []
    for index in range(100):
        image = cv2.imdecode(np.frombuffer(photograph(index), np.uint8), cv2.IMREAD_COLOR)
        resized = cv2.resize(image, (SIDE, SIDE))
        images.append(cv2.imencode(".jpg", resized, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes())
    num_train = megabytes * 1_000_000 // (sum(map(len, images)) // len(images))
    counts, lengths = {}, {}
    parts = {"train": (num_train, num_shards), "validation": (_VALIDATION, 1), "test": (1, 1)}
    folder.mkdir(parents=True)
    for split, (count, shards) in parts.items():
        for shard in range(shards):
            name = build_shard_name(split, shard, shards)
            own = range(shard, count, shards)
            counts[name], lengths[name] = len(own), _write_shard(folder / name, images, own)
    (folder / RECORD_LENGTHS).write_bytes(format_record_lengths(lengths))
    names = [str(number) for number in range(NUM_CLASSES)]
    figures = DatasetFigures(
        class_names=names,
        image_shape=(SIDE, SIDE, 3),
        num_examples={split: count for split, (count, _) in parts.items()},
        labels={split: dict.fromkeys(names, 1) for split in parts},
        num_rejected=0,
        rejected_by_reason={},
        stages=[StageFigures(name="decode", served="in_graph")],
    )
    write_manifest(folder, make_manifest(figures=figures, files=list_counted(folder, counts)))


def _write_shard(path: Path, images: list[bytes], own: range) -> list[int]:
    from beam_jobs.io.example import pack
    from beam_jobs.io.tfrecord_files import write_tfrecord
    from pipeline_ops.contract.dataset import ENCODED, KEY, LABEL
    from pipeline_ops.storage.open_store import open_path

    with write_tfrecord(open_path(path)) as writer:
        for number in own:
            encoded = images[number % len(images)] + number.to_bytes(8, "little")
            label = number % NUM_CLASSES
            writer.write(pack({ENCODED: encoded, KEY: str(number).encode(), LABEL: label}))
    return writer.lengths


def train(uri: str, shuffle: str, cache: Path, limit_bytes: int, num_steps: int) -> None:
    """Trains as a worker does, and prints what it took."""
    from pipeline_ops.config.train import Train
    from pipeline_ops.input.tensorflow_start import tf
    from pipeline_ops.job.local_inputs import open_host_cache, open_host_dataset
    from pipeline_ops.models import build_model
    from pipeline_ops.models.classification import Classification
    from pipeline_ops.training.input_pipeline import InputPipeline
    from pipeline_ops.training.loop import SynchronousLoop

    options = {
        "cache": "none",
        "shuffle": shuffle,
        "local_folder": str(cache),
        "local_limit_gib": limit_bytes / 2**30,
    }
    config = Train(
        model="digits_cnn",
        strategy="one_device",
        global_batch_size=BATCH,
        input=options,
    )
    opened = time.monotonic()
    dataset = open_host_dataset(uri, config.input, open_host_cache(config.input), print)
    task = Classification((SIDE, SIDE, 3))
    pipeline = InputPipeline(config, dataset, task, (0, 1), "1", print)
    batches = pipeline.make_batches(0)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        model = build_model(config, (SIDE, SIDE, 3), NUM_CLASSES, Path.cwd(), for_training=True)
    loop = SynchronousLoop(strategy, model, task, config)
    loop.train(batches, 0, [1e-4])
    first = time.monotonic()
    largest = 0
    for step in range(1, num_steps, 10):
        loop.train(batches, step, [1e-4] * 10)
        largest = max(largest, _measure(cache))
    seconds = time.monotonic() - first
    result = {
        "process": first - _START,
        "opening": first - opened,
        "rate": 10 * len(range(1, num_steps, 10)) / seconds,
        "cache": largest / 1e6,
    }
    print(json.dumps(result), flush=True)
    os._exit(0)


def _measure(folder: Path) -> int:
    """The bytes of the shards on the disk."""
    total = 0
    for path in folder.rglob("*.tfrecord"):
        try:
            total += path.lstat().st_size
        except FileNotFoundError:
            continue
    return total


def run(uri: str, shuffle: str, limit_bytes: int, arguments, environment) -> dict[str, float]:
    """Runs one training in a process, on the cores of this one."""
    with tempfile.TemporaryDirectory(dir=arguments.folder) as cache:
        command = [sys.executable, __file__, "--train", uri, shuffle, cache, str(limit_bytes)]
        done = subprocess.run(
            [*command, "--steps", str(arguments.steps)],
            env=environment,
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--folder", help="a folder on a disk with room for twice the data")
    parser.add_argument("--train", nargs=4, metavar=("URI", "SHUFFLE", "CACHE", "LIMIT"))
    arguments = parser.parse_args()
    if arguments.train:
        uri, shuffle, cache, limit = arguments.train
        train(uri, shuffle, Path(cache), int(limit), arguments.steps)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        bench(Path(folder), arguments)


def bench(folder: Path, arguments) -> None:
    write_dataset(folder / "artifacts" / "dataset", arguments.megabytes, arguments.shards)
    limit = arguments.megabytes * 1_000_000 // 4
    rate = MEGABYTES_PER_SECOND * 1_000_000
    command = [sys.executable, Path(__file__).with_name("slow_store.py"), folder, str(rate)]
    cores = sorted(os.sched_getaffinity(0))
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        os.sched_setaffinity(server.pid, cores[-1:])
        os.sched_setaffinity(0, cores[:-1] or cores)
        environment = make_environment() | {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.stdout.readline().strip()}",
            "AWS_ALLOW_HTTP": "true",
        }
        local = str(folder / "artifacts" / "dataset" / "manifest.json")
        remote = "s3://bucket/artifacts/dataset/manifest.json"
        results: dict[tuple[str, str], list[dict[str, float]]] = {}
        for _ in range(arguments.rounds):
            for shuffle in ("examples", "shards"):
                for name, uri in (("folder", local), ("store", remote)):
                    found = run(uri, shuffle, limit, arguments, environment)
                    results.setdefault((shuffle, name), []).append(found)
        server.stdin.close()
        server_seconds = float(server.stdout.readline())
    print(
        f"{arguments.megabytes} MB in {arguments.shards} shards, cache {limit / 1e6:.0f} MB, "
        f"{MEGABYTES_PER_SECOND} MB/s, {arguments.steps} steps of {BATCH} examples. "
        f"The server took {server_seconds:.0f} CPU seconds."
    )
    for shuffle in ("examples", "shards"):
        for name in ("folder", "store"):
            found = results[shuffle, name]
            first, opening, steps, cache = (
                statistics.median(each[key] for each in found)
                for key in ("process", "opening", "rate", "cache")
            )
            print(
                f"shuffle: {shuffle:<9} {name:<7} first step {first:6.2f} s from the start of the "
                f"process, {opening:6.2f} s from the opening; {steps:6.2f} steps/s; "
                f"largest cache {cache:.0f} MB"
            )
        pairs = zip(results[shuffle, "store"], results[shuffle, "folder"], strict=True)
        ratios = format_spread(ours["rate"] / theirs["rate"] for ours, theirs in pairs)
        print(f"shuffle: {shuffle:<9} store : folder {ratios}  (at least 0.9)")


if __name__ == "__main__":
    main()
