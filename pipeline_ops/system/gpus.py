"""NVIDIA's devices of this host, and the libraries that TensorFlow opens for them."""

from __future__ import annotations

import ctypes
import glob
import importlib.metadata
import importlib.util
import itertools
import os
from pathlib import Path

_DRIVER = "libcuda.so.1"
_DRIVER_CURE = (
    "Install the NVIDIA driver. For a container: --gpus=all, and the NVIDIA container toolkit on "
    "its host."
)
_LIBRARIES = (
    "libcudart.so.12",
    "libcublas.so.12",
    "libcublasLt.so.12",
    "libcufft.so.11",
    "libcusparse.so.12",
    "libcusolver.so.11",
    "libcudnn.so.9",
)
"""All must open, or TensorFlow 2.21 uses no GPU (`tsl/platform/default/dlopen_checker.cc`)."""


def find_gpus() -> list[str]:
    """The names of the devices that this process may use, for CUDA_VISIBLE_DEVICES.

    CUDA counts the devices that a process has. In a container, `/dev/nvidia3` may be number 0.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:  # -1 hides the devices after it
        return list(itertools.takewhile(lambda name: name not in ("", "-1"), visible.split(",")))
    return [str(number) for number in range(len(glob.glob("/dev/nvidia[0-9]*")))]


def find_gpu_problem() -> tuple[str, str] | None:
    """Why TensorFlow will not use the GPUs of this host, and the cure.

    None if nothing is wrong, if there is neither a GPU nor a TensorFlow for one, or if
    CUDA_VISIBLE_DEVICES leaves out all GPUs.
    """
    is_for_gpus = _find_packages() is not None and "CUDA_VISIBLE_DEVICES" not in os.environ
    if not is_for_gpus and not find_gpus():
        return None
    try:
        ctypes.CDLL(_DRIVER)
    except OSError as error:
        return f"the driver's library can't be opened: {error}", _DRIVER_CURE
    if problem := find_package_problem():
        return problem
    for name in _LIBRARIES:
        try:
            ctypes.CDLL(_locate(name))
        except OSError as error:
            cure = (
                "Install requirements-gpu.txt, or add the folder of the library to LD_LIBRARY_PATH."
            )
            return f"a library of CUDA can't be opened, so TensorFlow uses no GPU: {error}", cure
    return None


def find_package_problem() -> tuple[str, str] | None:
    """Why the installed TensorFlow uses no GPU, and the cure. None if it may use one."""
    if not _has_package("tensorflow-cpu"):
        return None
    return (
        "tensorflow-cpu is installed, which uses no GPU",
        "Remove .venv, then: make install GPU=1. To train on CPUs instead, set "
        'CUDA_VISIBLE_DEVICES to "".',
    )


def open_cusolver() -> None:
    """Opens the one library that TensorFlow 2.21 does not find where pip has installed it.

    Without it, TensorFlow uses no GPU and says so only in its log. The RUNPATH of
    `libtensorflow_framework` has the folders of the others. It does not touch the driver.
    """
    path = _locate("libcusolver.so.11")
    if os.path.isabs(path):
        ctypes.CDLL(path)


def _locate(library: str) -> str:
    """Returns the path of a library in NVIDIA's packages, or else its name."""
    packages = _find_packages()
    found = packages.glob(f"*/lib/{library}") if packages else ()
    return str(next(iter(found), library))


def _find_packages() -> Path | None:
    """Returns the folder of the packages of `tensorflow[and-cuda]`, if they are installed."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(each) for each in spec.submodule_search_locations or ()] if spec else []
    return next((folder for folder in folders if (folder / "cudnn").is_dir()), None)


def _has_package(name: str) -> bool:
    try:
        return bool(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False
