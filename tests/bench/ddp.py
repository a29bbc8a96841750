"""The same CNN under PyTorch's DistributedDataParallel with gloo, one thread and one core for each
process. Started by `training.py`.

    python tests/bench/ddp.py WORKERS BATCH_PER_WORKER STEPS

It needs an interpreter with PyTorch and nothing of ours. Prints steps, seconds and CPU seconds of
all processes, warm-up left out.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

_WARM_UP_STEPS = 30


def make_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(5 * 5 * 64, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def train(rank: int, workers: int, batch: int, steps: int, port: int, results) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = make_net()
    if workers > 1:
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=workers
        )
        model = nn.parallel.DistributedDataParallel(model)
    optimizer, compute_loss = torch.optim.Adam(model.parameters(), 1e-3), nn.CrossEntropyLoss()
    images, labels = (
        torch.randint(0, 256, (4096, 1, 28, 28), dtype=torch.uint8),
        torch.randint(0, 10, (4096,)),
    )
    for step in range(_WARM_UP_STEPS + steps):
        if step == _WARM_UP_STEPS:
            start, start_cpu = time.monotonic(), time.process_time()
        chosen = torch.randint(0, 4096, (batch,))
        loss = compute_loss(model(images[chosen].float() / 255), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    results.put((time.monotonic() - start, time.process_time() - start_cpu))
    if workers > 1:
        dist.barrier()
    os._exit(0)  # gloo's threads abort a Python that shuts down around them


def main(workers: int, batch: int, steps: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(train, (workers, batch, steps, port, results), nprocs=workers)
    seconds, cpu = zip(*(results.get() for _ in range(workers)), strict=True)
    print(json.dumps({"steps": steps, "seconds": max(seconds), "cpu_seconds": sum(cpu)}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
