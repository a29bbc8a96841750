"""The GPU of `make test-gpu`, and gangs that see it. With DEVICE=cpu, CPUs stand for GPUs.

Without TRAINYARD_TEST_DEVICE, which the Makefile sets, these tests are not collected.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from launch.running import make_agent_spec

from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.launch.host_pool import HostPool
from pipeline_ops.places.local import LocalLauncher
from pipeline_ops.system.gpus import find_gpu_problem, find_gpus, find_package_problem

_DEVICE = os.environ.get("TRAINYARD_TEST_DEVICE")
_COUNT = """
from pipeline_ops.input.tensorflow_start import tf
print(len(tf.config.list_physical_devices("GPU")))
"""
collect_ignore_glob = [] if _DEVICE else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def gpus() -> Iterator[list[str]]:
    """The GPUs of this host, as CUDA_VISIBLE_DEVICES names them. None if CPUs stand for them.

    The process of the tests sees none, because TensorFlow would hold its memory to the end.
    """
    if _DEVICE not in ("gpu", "cpu"):
        pytest.fail(f"TRAINYARD_TEST_DEVICE is gpu or cpu, not {_DEVICE}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(CODE_ROOT), prepend=os.pathsep)
        found = find_gpus() if _DEVICE == "gpu" else []
        if _DEVICE == "gpu" and run_python(",".join(found), "-c", _COUNT) == "0":
            problem = find_package_problem() or find_gpu_problem()
            pytest.skip(". ".join(problem or ["TensorFlow registers no GPU of this host"]))
        patch.setenv("NVIDIA_TF32_OVERRIDE", "0")
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield found


@pytest.fixture
def run_on() -> Callable[..., str]:
    """Runs Python with the devices that it may see, and returns the last line of its output."""
    return run_python


def run_python(visible: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": visible},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def open_pool(user_package, tmp_path_factory) -> Iterator[Callable[[str], HostPool]]:
    """Opens a pool of this host, one for each set of devices that its gangs may see."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def open_pool(visible: str) -> HostPool:
            environment = {"CUDA_VISIBLE_DEVICES": visible}
            spec = make_agent_spec(tmp_path_factory.mktemp("host"), environment=environment)
            return stack.enter_context(contextlib.closing(HostPool(LocalLauncher(), spec)))

        yield open_pool
