"""The process that makes the other formats (`convert.py`), as the export job sees it."""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pipeline_ops.config.export import Export
from pipeline_ops.errors import ExitCode, MachineError, make_error


@contextlib.contextmanager
def run_converter(
    folder: Path, dataset: str, config: Export, formats: Sequence[str], num_classes: int
) -> Iterator[Callable[[], dict[str, float]]]:
    """Runs the converter while the `with` block runs. Without formats, there is no process.

    Yields a function that waits for the formats and returns the seconds that each took. It raises
    ConfigError if the model cannot be converted, DataError without representative examples, and
    MachineError if the process was killed or the disk refused a format.
    """
    if not formats:
        yield dict
        return
    command = [
        *(sys.executable, "-m", "pipeline_ops.export.convert"),
        *("--folder", str(folder)),
        *("--dataset", dataset),
        *("--classes", str(num_classes)),
        *formats,
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield functools.partial(_wait, process)
        finally:
            process.kill()


def _wait(process: subprocess.Popen[str]) -> dict[str, float]:
    output, errors = process.communicate()
    code = process.returncode
    if code < 0:
        raise MachineError(f"signal {-code} ended the converter. Retry.")
    if code:
        sys.stderr.write(errors)
        message = (errors.strip() or f"the converter ended with exit code {code}").splitlines()[-1]
        raise make_error(ExitCode(code) if code in set(ExitCode) else ExitCode.BUG, message)
    return {
        line["format"]: line["seconds"]
        for line in map(json.loads, output.splitlines())
        if "format" in line
    }
