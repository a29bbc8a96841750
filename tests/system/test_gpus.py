"""GPUs that are there, libraries that are not, and what is said about it. No GPU is needed."""

from __future__ import annotations

import _ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline_ops.system import gpus

LIBRARY = Path(_ctypes.__file__)
"""Any library that opens."""


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host with a driver and NVIDIA's packages, whose libraries are small ones."""
    for library in gpus._LIBRARIES:
        folder = tmp_path / "nvidia" / library[3:].partition(".")[0] / "lib"
        folder.mkdir(parents=True)
        shutil.copy(LIBRARY, folder / library)
    (tmp_path / "nvidia" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(gpus, "_DRIVER", str(LIBRARY))
    monkeypatch.setattr(gpus, "_has_package", lambda name: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    return tmp_path / "nvidia"


def test_a_host_with_driver_and_libraries_has_no_problem(host):
    assert gpus.find_gpu_problem() is None


def test_the_library_that_does_not_open_is_named(host):
    file = host / "cufft" / "lib" / "libcufft.so.11"
    file.write_text("damaged")
    problem, cure = gpus.find_gpu_problem()
    assert str(file) in problem and "requirements-gpu.txt" in cure
    file.unlink()
    problem, _ = gpus.find_gpu_problem()
    assert "libcufft.so.11: cannot open shared object file" in problem


def test_a_tensorflow_for_gpus_without_a_driver_is_told(host, monkeypatch):
    monkeypatch.setattr(gpus, "_DRIVER", "libcuda.so.1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    problem, cure = gpus.find_gpu_problem()
    assert problem.startswith("the driver's library can't be opened: libcuda.so.1")
    assert cure.startswith("Install the NVIDIA driver.") and "--gpus=all" in cure
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus.find_gpu_problem() is None


def test_a_tensorflow_for_cpus_beside_a_gpu_is_told(host, monkeypatch):
    monkeypatch.setattr(gpus, "_has_package", lambda name: name == "tensorflow-cpu")
    problem, cure = gpus.find_gpu_problem()
    assert "tensorflow-cpu is installed" in problem and "make install GPU=1" in cure


def test_devices_are_counted_as_cuda_counts_them(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus.glob, "glob", lambda pattern: ["/dev/nvidia3", "/dev/nvidia5"])
    assert gpus.find_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1,MIG-2")
    assert gpus.find_gpus() == ["GPU-1", "MIG-2"]
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert gpus.find_gpus() == []


FORK_SERVER = """
import os
from pipeline_ops.training import fork_server
fork_server.main()
name = "TF_FORCE_GPU_ALLOW_GROWTH"
print(f"{name}={os.environ[name]}", open("/proc/self/maps").read())
"""
"""A fork server whose input ends at once. What it prints goes to its standard error."""


def test_the_imports_of_the_fork_server_open_cusolver_and_not_the_driver(host):
    """In a process of its own, whose mapped files would show the library of the driver. A forked
    worker could not use a driver that its parent has opened."""
    shutil.copy(LIBRARY, host / "libcuda.so.1")
    paths = [str(host.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {"PYTHONPATH": os.pathsep.join(paths), "LD_LIBRARY_PATH": str(host)}
    done = subprocess.run(
        [sys.executable, "-c", FORK_SERVER],
        stdin=subprocess.DEVNULL,
        env=os.environ | own,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert '"ready"' in done.stdout and "TF_FORCE_GPU_ALLOW_GROWTH=true" in done.stderr
    assert str(host / "cusolver" / "lib" / "libcusolver.so.11") in done.stderr
    assert "libcuda.so.1" not in done.stderr


CHECK = """
import ctypes, os
from pipeline_ops.input.tensorflow_start import tf
library = ctypes.CDLL(os.path.join(os.path.dirname(tf.__file__), "libtensorflow_framework.so.2"))
check = library._ZN3tsl8internal9DsoLoader26MaybeTryDlopenGPULibrariesEv  # an absl::Status
check.restype, check.argtypes = None, [ctypes.c_void_p]
status = ctypes.create_string_buffer(64)
check(status)
print(int.from_bytes(status.raw[:8], "little"))
"""
"""TensorFlow's own check before it registers a GPU. It needs no driver. 1 means success."""

if gpus._find_packages():  # an environment of `make install GPU=1`

    def test_tensorflow_opens_all_libraries_of_cuda():
        done = subprocess.run(
            [sys.executable, "-c", CHECK], capture_output=True, text=True, check=True, timeout=120
        )
        assert done.stdout.strip() == "1", done.stderr
