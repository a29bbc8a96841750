"""The converter as a process: its errors and their exit codes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from small_disks import DISK_BYTES

from pipeline_ops.errors import ExitCode


def convert_command(folder: Path, dataset: str) -> list[str]:
    return [
        *(sys.executable, "-m", "pipeline_ops.export.formats"),
        *("--folder", str(folder), "--dataset", dataset),
        *("--classes", "10", "tflite"),
    ]


@pytest.mark.models
def test_a_model_that_a_format_can_not_hold_is_the_configs_affair(sandbox, tmp_path, saved_models):
    """TFLite has no kernel for this operation."""
    folder = tmp_path / "model"
    module = tf.Module()
    module.images = tf.function(
        lambda images: {"probabilities": tf.linalg.svd(images[..., 0], compute_uv=False)[:, :10]},
        input_signature=[tf.TensorSpec([None, 16, 16, 1], tf.float32, "images")],
    )
    tf.saved_model.save(module, str(folder), signatures={"images": module.images})
    command = convert_command(folder, sandbox.dataset)
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == ExitCode.CONFIG, ended.stderr
    assert ended.stderr.splitlines()[-1].startswith(
        "export.formats: the model cannot be converted to TFLite:"
    )
    assert not (folder / "formats").exists()


@pytest.mark.models
@pytest.mark.parametrize("full", ["formats", "temporary"])
def test_a_full_disk_is_a_reason_to_try_again(saved_models, dataset, small_disk, tmp_path, full):
    """The disk of the formats, and the disk of the converter's own files."""
    folder = tmp_path / "model"
    shutil.copytree(saved_models["good"] / "saved_model", folder)
    (small_disk / "filler").write_bytes(bytes(DISK_BYTES - 4096))
    (folder / "formats").symlink_to(small_disk) if full == "formats" else (
        folder / "formats"
    ).mkdir()
    command = convert_command(folder, dataset)
    environment = {**os.environ, "TMPDIR": str(small_disk if full == "temporary" else tmp_path)}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == ExitCode.RETRY, ended.stderr
    assert "no space left on device" in ended.stderr.splitlines()[-1].lower()
