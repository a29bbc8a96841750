"""The process that makes the other formats (`convert.py`), as the export job sees it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pipeline_ops.config.export import Export
from pipeline_ops.errors import MachineError, error_of


class Conversion:
    """Runs the converter while the `with` block runs. Without formats, there is no process."""

    def __init__(
        self, folder: Path, dataset: str, config: Export, formats: Sequence[str], num_classes: int
    ):
        self._command = (
            [
                sys.executable,
                "-m",
                "pipeline_ops.export.convert",
                "--folder",
                str(folder),
                "--dataset",
                dataset,
                "--examples",
                str(config.int8.representative_examples),
                "--classes",
                str(num_classes),
                *formats,
            ]
            if formats
            else []
        )

    def __enter__(self) -> Self:
        self._process = (
            subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            if self._command
            else None
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.communicate()

    def wait(self) -> dict[str, float]:
        """Returns the time that each format took, in seconds.

        Raises:
          ConfigError: the model can't be converted.
          DataError: there are no representative examples.
          MachineError: the process was killed, or the disk refused a format.
        """
        if not self._process:
            return {}
        output, errors = self._process.communicate()
        code = self._process.returncode
        if code < 0:
            raise MachineError(f"the converter was ended by signal {-code}; retry")
        if code:
            sys.stderr.write(errors)
            message = (errors.strip() or f"the converter ended with {code}").splitlines()[-1]
            raise error_of(code, message)
        return {
            line["format"]: line["seconds"]
            for line in map(json.loads, output.splitlines())
            if "format" in line
        }
