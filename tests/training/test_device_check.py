"""The check of GPUs, on logical CPUs, and what it says where something is wrong."""

from __future__ import annotations

import json
import subprocess
import sys

from pipeline_ops.cli.commands import doctor
from pipeline_ops.training.device_check import describe_device


def check(kind):
    command = [sys.executable, "-m", "pipeline_ops.training.device_check", kind]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    return json.loads(done.stdout)


def test_two_devices_add_as_one():
    build, others, device, compiled, added = found = check("cpu")
    assert build["check"].startswith("TensorFlow 2.")
    assert others["check"] == "other processes on the GPUs"
    assert "CPU:0" in device["check"]
    assert compiled["check"] == "XLA"
    assert added["check"] == "a convolution and its sum over 2 devices"
    assert [each["problem"] for each in found] == [""] * 5


def test_a_gpu_without_machine_code_is_told():
    details = {"device_name": "RTX 5090", "compute_capability": (12, 0)}
    found = describe_device("GPU:0", details)
    assert found.check == "GPU:0: RTX 5090, compute capability 12.0"
    assert found.is_warning and "no machine code" in found.problem
    assert describe_device("GPU:1", details | {"compute_capability": (9, 0)}).problem == ""


def test_doctor_says_that_there_is_no_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for name in ("find_gpu_problem", "find_package_problem"):
        monkeypatch.setattr(doctor, name, lambda: None)
    *_, found = doctor.check_gpus()
    assert found.problem == "TensorFlow registers no GPU of this host"


def test_doctor_names_the_driver_and_the_end_of_a_check_that_fails(monkeypatch):
    monkeypatch.setattr(doctor, "find_package_problem", lambda: ("tensorflow-cpu", "Remove it."))
    assert [each.cure for each in doctor.check_gpus()] == ["Remove it."]
    monkeypatch.setattr(doctor, "find_package_problem", lambda: None)
    monkeypatch.setattr(doctor, "find_gpu_problem", lambda: ("no driver", "Install it."))
    [found] = doctor.check_gpus()
    assert (found.problem, found.cure) == ("no driver", "Install it.")
    monkeypatch.setattr(doctor, "find_gpu_problem", lambda: None)
    monkeypatch.setattr(doctor, "_DEVICE_CHECK", "pipeline_ops.no_such_module")
    [found] = doctor.check_gpus()
    assert "No module named pipeline_ops.no_such_module" in found.problem
