"""Has TensorFlow Datasets download a data set before its files are listed (`source.download`).

A process of its own does it (`beam_jobs/download.py`), with the interpreter of the preprocess job.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys

from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.sources import TfdsSource
from pipeline_ops.errors import ConfigError, ExitCode, MachineError, make_error
from pipeline_ops.places.local import build_bridge_environment
from pipeline_ops.places.place import build_job_environment
from pipeline_ops.raw_data.folder import find_raw_folder
from pipeline_ops.system.host import die_with_parent

_log = logging.getLogger(__name__)
_EXIT_OF_PYTHON = 1  # such as a package that is missing


def download_source(config: PipelineConfig) -> None:
    """Prepares the data set of a source with `download: true`, unless it is there already.

    Raises ConfigError, DataError or MachineError, with the reason and the cure.
    """
    source, timeout_seconds = config.preprocess.source, config.preprocess.timeout_seconds
    if not isinstance(source, TfdsSource) or not source.download:
        return
    folder, python = find_raw_folder(config), config.resolve_interpreter("preprocess")
    _log.info("%s is downloaded into %s, unless it is there", source.builder, folder)
    environment = build_job_environment(os.environ)
    command = [str(python or sys.executable), "-m", "beam_jobs.download"]
    try:
        done = subprocess.run(
            [*command, source.builder, str(folder)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout_seconds,
            env=environment | build_bridge_environment(environment),
            preexec_fn=die_with_parent,
        )
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"{source.builder} was not downloaded within preprocess.timeout_seconds "
            f"({timeout_seconds}). What has arrived stays in downloads/ beside {folder}."
        ) from None
    except OSError as error:
        raise ConfigError(
            f"cannot start {command[0]} for preprocess.source.download: {error}"
        ) from None
    message = next(reversed(done.stderr.strip().splitlines()), "no message")
    if done.returncode == _EXIT_OF_PYTHON:
        raise ConfigError(
            f"preprocess.source.download: {message}. {command[0]} needs Trainyard's extra "
            "`preprocess`. Install it there, or name a hosts file with another interpreter in "
            "preprocess.runs_on (docs/existing-airflow.md)."
        )
    if done.returncode:  # negative: a signal
        raise make_error(max(done.returncode, 0) or ExitCode.RETRY, message)


def is_to_be_downloaded(config: PipelineConfig) -> bool:
    """Returns whether the first task of a run fetches the data set, which is not there at all."""
    source, folder = config.preprocess.source, find_raw_folder(config)
    return isinstance(source, TfdsSource) and source.download and not os.path.isdir(str(folder))
