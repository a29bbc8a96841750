"""The cost of training: starting, continuing after a kill, stepping and scaling.

`training_state.py` measures saving and reading. The programs run in turn, so that other load of the
machine affects both alike, and medians of ratios are compared. Ours is the train job as the
operator starts it, observed through its progress files. The others are Keras's `fit` in one process
(`fit.py`) and PyTorch's DistributedDataParallel (`ddp.py`, if an interpreter with PyTorch is
passed).

    python tests/bench/training.py [--cache FOLDER] [--rounds 5] [--torch PYTHON]
                                   [--only start kill fit scale]
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from measuring import HERE, format_spread, make_environment, make_parser
from train_jobs import NUM_IMAGES, Bench, ends_epoch, is_step

QUIET = {
    "early_stopping": None,
    "reduce_learning_rate": None,
    "best_checkpoint": None,
    "checkpoint_every_steps": 100_000,
}
"""Settings of the train section for steps alone, as in the other programs."""
MODELS = {"cnn": "nets:build_cnn", "dense": "nets:build_dense"}


@dataclasses.dataclass(frozen=True)
class Rate:
    """The steps in a window of time. `cpu_seconds` covers all processes."""

    steps: int
    seconds: float
    cpu_seconds: float

    @property
    def per_second(self) -> float:
        return self.steps / self.seconds

    @property
    def cpu_ms(self) -> float:
        return self.cpu_seconds / self.steps * 1e3

    def __str__(self) -> str:
        return f"{self.per_second:7.1f} steps/s, {self.cpu_ms:6.2f} ms CPU/step"


def make_train_config(net: str, workers: int, global_batch_size: int, epochs: int) -> dict:
    strategy = "one_device" if workers == 1 else "multi_worker_mirrored"
    return QUIET | {
        "model": MODELS[net],
        "strategy": strategy,
        "workers": workers,
        "global_batch_size": global_batch_size,
        "epochs": epochs,
    }


def measure_rate_with_validation(
    bench: Bench, net: str, global_batch_size: int, epochs: int
) -> Rate:
    """Measures one worker, from the end of the first epoch to the end of the last but one.

    The workers end with the last epoch.
    """
    with bench.training(make_train_config(net, 1, global_batch_size, epochs + 1)) as training:
        first = training.wait_for(ends_epoch(1))
        start_cpu = training.cpu_seconds()
        last = training.wait_for(ends_epoch(epochs))
        return Rate(
            last.done - first.done, last.time - first.time, training.cpu_seconds() - start_cpu
        )


def measure_step_rate(
    bench: Bench, workers: int, global_batch_size: int, epochs: int, cores: Sequence[int] = ()
) -> Rate:
    """Measures the steps of the CNN alone, with a core for each worker.

    From the second epoch on, a window in the middle of each epoch counts, as in `ddp.py`.
    """
    num_steps = int(0.6 * NUM_IMAGES / global_batch_size)
    steps, seconds, cpu_seconds = 0, 0.0, 0.0
    with bench.training(
        make_train_config("cnn", workers, global_batch_size, epochs), cores
    ) as training:
        for epoch in range(1, epochs):
            before = training.wait_for(ends_epoch(epoch)).done
            training.pin()
            first = training.wait_for(
                lambda event, before=before: is_step(event) and event.done > before
            )
            start_cpu = training.cpu_seconds()
            last = training.wait_for(
                lambda event, first=first: is_step(event) and event.done >= first.done + num_steps
            )
            cpu_seconds += training.cpu_seconds() - start_cpu
            steps, seconds = steps + last.done - first.done, seconds + last.time - first.time
    return Rate(steps, seconds, cpu_seconds)


def run_and_parse(argv: Sequence[object]) -> dict:
    """The JSON that a program prints as its last line."""
    done = subprocess.run(
        list(map(str, argv)), env=make_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{argv} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure_start(bench: Bench, rounds: int) -> None:
    """The first step of a worker that was forked, and of one whose process imports TensorFlow
    first."""
    forked, fresh = [], []
    for _ in range(rounds):
        with bench.training(
            QUIET | {"workers": 1, "strategy": "one_device", "global_batch_size": 64, "epochs": 1}
        ) as training:
            fresh.append(training.wait_for(is_step).time - training.started)
            joined = training.wait_for(lambda event: event.phase == "joining").time
            forked.append(training.wait_for(is_step).time - joined)
    print(
        f"=> first step: {statistics.median(forked):.2f} s after the fork, "
        f"{statistics.median(fresh):.2f} s after the start of a fresh process "
        f"({statistics.median(f / g for f, g in zip(forked, fresh, strict=True)):.2f} of it)\n",
        flush=True,
    )


def measure_kill(bench: Bench, rounds: int) -> None:
    """`kill -9` of one of two workers of the digits CNN: seconds to the first step that had not
    been done before."""
    seconds = []
    for _ in range(rounds):
        config = QUIET | {
            "model": "digits_cnn",
            "workers": 2,
            "strategy": "multi_worker_mirrored",
            "global_batch_size": 64,
            "epochs": 4,
            "checkpoint_every_steps": 50,
        }
        with bench.training(config) as training:
            training.wait_for(lambda event: is_step(event) and event.done >= 200)
            seconds.append(
                training.wait_for_new_step_after(
                    lambda: os.kill(training.worker_pids()["worker-1.log"], signal.SIGKILL)
                )
            )
    print(f"=> kill -9 to the next new step: {format_spread(seconds)} s\n", flush=True)


def measure_fit(bench: Bench, rounds: int) -> None:
    for net, epochs in (("cnn", 3), ("dense", 12)):
        pairs = []
        for _ in range(rounds):
            theirs = Rate(
                **run_and_parse([sys.executable, HERE / "fit.py", bench.dataset, net, 64, epochs])
            )
            pairs.append((measure_rate_with_validation(bench, net, 64, epochs), theirs))
            print(f"{net}\n  fit  {pairs[-1][1]}\n  ours {pairs[-1][0]}", flush=True)
        ratios = [ours.per_second / theirs.per_second for ours, theirs in pairs]
        print(
            f"=> steps per second, {net}: {format_spread(ratios)} of fit's; CPU per step "
            f"{format_spread(ours.cpu_ms / theirs.cpu_ms for ours, theirs in pairs)}\n",
            flush=True,
        )


def measure_scaling(bench: Bench, rounds: int, torch: Path | None) -> None:
    """One core for each worker. Weak: 32 examples each. Strong: 64 together."""
    one_core, measured = sorted(os.sched_getaffinity(0))[:1], []
    for _ in range(rounds):
        ours = [
            measure_step_rate(bench, 1, 32, 2, one_core),
            measure_step_rate(bench, 1, 64, 2, one_core),
            measure_step_rate(bench, 2, 64, 3),
        ]
        theirs = (
            [
                Rate(**run_and_parse([torch, HERE / "ddp.py", workers, batch, 300]))
                for workers, batch in ((1, 32), (1, 64), (2, 32))
            ]
            if torch
            else []
        )
        measured.append((ours, theirs))
        for name, rates in (("ours", ours), ("DDP ", theirs)):
            for label, rate in zip(("1 x 32", "1 x 64", "2 x 32"), rates, strict=False):
                print(f"  {name} {label}: {rate}", flush=True)
    for name, side in (("ours", 0), ("DDP", 1)):
        if rounds_of_side := [sides[side] for sides in measured if sides[side]]:
            rates = [[rate.per_second for rate in sides] for sides in rounds_of_side]
            weak = format_spread(two / small for small, _, two in rates)
            strong = format_spread(two / large for _, large, two in rates)
            print(f"=> {name}: weak scaling {weak}, strong scaling {strong} of two workers")
    if torch:
        cpu = format_spread(ours[2].cpu_ms / theirs[2].cpu_ms for ours, theirs in measured)
        print(f"=> CPU per step of two workers: {cpu} of DDP's\n", flush=True)
    else:
        print("PyTorch was not measured. Pass an interpreter that has it: --torch PYTHON\n")


def main() -> None:
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(".trainyard/bench"),
        help="where images and shards are kept",
    )
    parser.add_argument("--torch", type=Path, help="an interpreter with PyTorch")
    parser.add_argument("--only", nargs="+", default=("start", "kill", "fit", "scale"))
    arguments = parser.parse_args()
    bench = Bench(arguments.cache.resolve())
    measures = {
        "start": measure_start,
        "kill": measure_kill,
        "fit": measure_fit,
        "scale": lambda bench, rounds: measure_scaling(bench, rounds, arguments.torch),
    }
    for name in arguments.only:
        measures[name](bench, arguments.rounds)


if __name__ == "__main__":
    main()
