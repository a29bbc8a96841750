"""The NVIDIA GPUs of this host, and the libraries without which TensorFlow does not use them."""

from __future__ import annotations

import ctypes
import glob
import importlib.metadata
import os
import re


def find_gpus() -> list[str]:
    """The names of the NVIDIA devices that this process may use, for CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    return [re.sub(r"\D", "", path) for path in sorted(glob.glob("/dev/nvidia[0-9]*"))]


def find_gpu_problem() -> tuple[str, str] | None:
    """Why TensorFlow will not use the GPUs of this host, and the cure. None if nothing is wrong."""
    if not find_gpus():
        return None
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"the driver's library can't be opened: {error}", "Install the NVIDIA driver."
    try:
        importlib.metadata.version("tensorflow-cpu")
    except importlib.metadata.PackageNotFoundError:
        return None
    return (
        "tensorflow-cpu is installed, which uses no GPU",
        "Install tensorflow[and-cuda] in its place, or set CUDA_VISIBLE_DEVICES to nothing.",
    )
