"""Downloads and prepares a data set of TensorFlow Datasets: `python -m beam_jobs.download`.

`raw_data/download.py` starts it before the raw files are listed. Its arguments are the builder and
TensorFlow Datasets' `data_dir`.
"""

from __future__ import annotations

import importlib.resources.abc
import sys
from pathlib import Path

from beam_jobs.sources.tfds import make_builder
from pipeline_ops.errors import DataError, MachineError, TrainyardError
from pipeline_ops.storage.local_files import remove_own_folder
from pipeline_ops.system.locks import exclusive_lock

_WAIT_SECONDS = 6 * 3600.0


def prepare(builder: str, folder: Path) -> None:
    """Prepares a data set, whole or not at all, unless it is there already.

    Args:
      builder: `preprocess.source.builder`.
      folder: the folder of the data set, in TensorFlow Datasets' `data_dir`.

    Raises:
      DataError: there is no such builder, or its code or its data are wrong.
      MachineError: nothing can be fetched from its servers, or the disk failed.
    """
    import tensorflow_datasets as tfds

    # TensorFlow Datasets imports this backport for its checksums, and does not depend on it.
    sys.modules.setdefault("importlib_resources", importlib.resources)
    data_dir = folder.parent
    # Our own folder. TensorFlow Datasets' has a random name, and a killed process leaves it behind.
    staging = data_dir / f".{folder.name}.download"
    lock, work = staging.with_suffix(".lock"), f"the download of {folder}"
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(lock, work, _WAIT_SECONDS):
            if make_builder(builder, data_dir).is_prepared():
                return
            remove_own_folder(staging)
            made = make_builder(builder, staging)
            made.download_and_prepare(
                file_format="tfrecord",
                download_dir=data_dir / "downloads",
                download_config=tfds.download.DownloadConfig(try_download_gcs=False),
            )
            _publish(staging, Path(made.data_dir), data_dir)
    except TrainyardError:
        raise
    except Exception as error:  # a builder is user code
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if isinstance(error, (OSError, tfds.download.DownloadError)):
            raise MachineError(
                f"{builder} cannot be downloaded into {data_dir}: {reason}",
                "Without a network, prepare it on another host with file_format='tfrecord', and "
                f"copy {folder.name}/ from its data_dir to {folder}.",
            ) from error
        fault = f"{builder} cannot be prepared in {data_dir}: {reason}"
        raise DataError(fault, "Correct preprocess.source.builder or its code.") from error


def _publish(staging: Path, version: Path, data_dir: Path) -> None:
    """Moves a prepared version out of `staging`, by renaming it as the last step."""
    target = data_dir / version.relative_to(staging)
    target.parent.mkdir(parents=True, exist_ok=True)
    default_config = next(staging.glob("*/.config"), None)
    if default_config and not (moved := data_dir / default_config.relative_to(staging)).exists():
        default_config.rename(moved)
    version.rename(target)
    remove_own_folder(staging)


if __name__ == "__main__":
    try:
        prepare(sys.argv[1], Path(sys.argv[2]))
    except TrainyardError as problem:
        print(problem, file=sys.stderr)
        sys.exit(problem.exit_code)
