"""The counterpart of `gpu.py`, for an interpreter with PyTorch and torchvision.

It makes a measurement for each line that it is sent.

python gpu_torch.py resnet50|retinanet gpu|cpu SECONDS PIXELS BATCH
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator

import torch
import torchvision


def measure(
    net: str, kind: str, seconds: float, pixels: int, batch: int
) -> Iterator[dict[str, float]]:
    """Yields the time of the first step, and then the figures of the steps of some seconds."""
    device = torch.device("cuda" if kind == "gpu" else "cpu")
    torch.manual_seed(1)
    images = torch.randint(0, 256, (batch, 3, pixels, pixels), dtype=torch.uint8, device=device)
    if net == "resnet50":
        model = torchvision.models.resnet50(weights=None)
        labels = torch.randint(0, 1000, (batch,), device=device)
    else:
        model = torchvision.models.detection.retinanet_resnet50_fpn_v2(
            weights=None, weights_backbone=None, min_size=pixels, max_size=pixels, num_classes=80
        )
        corners = torch.rand(batch, 8, 2, 2, device=device).sort(dim=2).values * (pixels - 2)
        corners[:, :, 1] += 1  # no empty box
        labels = [
            {"boxes": box.reshape(8, 4), "labels": torch.randint(0, 80, (8,), device=device)}
            for box in corners
        ]
    model = model.to(device, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def compute_loss() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            inputs = (images.float() / 255).contiguous(memory_format=torch.channels_last)
            if net == "resnet50":
                return torch.nn.functional.cross_entropy(model(inputs), labels)
            return sum(model(list(inputs), labels).values())

    compiled = torch.compile(compute_loss) if kind == "gpu" else compute_loss

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        compiled().backward()
        optimizer.step()

    def wait() -> None:
        if kind == "gpu":
            torch.cuda.synchronize()

    begun = time.perf_counter()
    step()
    wait()
    yield {"first_call_seconds": time.perf_counter() - begun}
    while True:
        steps, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < seconds:
            step()
            steps += 1
            if steps % 10 == 0:
                wait()
        wait()
        found = {"images_per_second": steps * batch / (time.perf_counter() - begun)}
        if kind == "gpu":
            found["memory_mb"] = torch.cuda.max_memory_allocated() / 1e6
        yield found


if __name__ == "__main__":
    net, kind, seconds, pixels, batch = sys.argv[1:6]
    measurements = measure(net, kind, float(seconds), int(pixels), int(batch))
    for _, found in zip(sys.stdin, measurements, strict=False):
        print(json.dumps(found), flush=True)
