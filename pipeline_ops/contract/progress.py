"""Progress as JSON lines in `progress.jsonl`, one line for each `ProgressEvent`.

A job appends to the file. The task log, the UI and the terminal show it. JSON has no number for a
metric that is not one: it is the text "NaN", "Infinity" or "-Infinity". A reader leaves a half
written line for its next read, and skips an invalid line with its position as a problem.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field

from pipeline_ops.contract.results import GpuUsage, StepShares
from pipeline_ops.errors import DataError
from pipeline_ops.storage.local_files import UnsafePath, translate_write_errors
from pipeline_ops.storage.parsing import JsonModel, parse_json_as
from pipeline_ops.storage.store_path import StorePath

_MAX_LINE_BYTES = 1 << 18
_CHUNK_BYTES = 4 << 20
_TAIL_BYTES = 1 << 16
_MAX_PROBLEMS = 20
_MAX_GPUS = 64
_MAX_MESSAGE = 10_000
_MAX_TIME = 1e11  # seconds since 1970, beyond the last year that a date can have
_ACTIVITIES = {
    "candidate": "writing the model",
    "input": "preparing the input",
    "joining": "waiting for all workers",
    "list": "listing the raw files",
    "model": "preparing the model",
    "plan": "planning the shards",
    "validate": "validation",
    "wait": "waiting",
}
"""What phases are called for people, if their names do not say it."""
_Count = Annotated[int, Field(ge=0, le=2**53)]
_Positive = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ProgressEvent(JsonModel):
    """One event of a job. `rate` is in units a second. `metrics` are the newest by name.

    `epoch` is the number of completed epochs in the event that ends one.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    time: Annotated[float, Field(ge=0, le=_MAX_TIME)]
    phase: str = Field(max_length=100)
    done: _Count | None = None
    total: _Count | None = None
    unit: str = Field("", max_length=100)
    rate: _Positive | None = None
    eta_seconds: _Positive | None = None
    metrics: dict[Annotated[str, Field(max_length=200)], float] = Field({}, max_length=500)
    epoch: _Count | None = None
    worker: _Count | None = None
    shares: StepShares | None = None
    gpus: tuple[GpuUsage, ...] = Field((), max_length=_MAX_GPUS)
    message: str = Field("", max_length=_MAX_MESSAGE)

    @property
    def activity(self) -> str:
        """The phase as a person would say it."""
        return _ACTIVITIES.get(self.phase, self.phase)

    def __str__(self) -> str:
        """A task-log line: `train 120/330 steps  41.2 steps/s  ETA 5 s  loss 0.0312`."""
        parts = [self.activity]
        if self.done is not None:
            total = f"/{self.total}" if self.total else ""
            parts = [f"{self.activity} {self.done}{total} {self.unit}".rstrip()]
        if self.rate:
            parts.append(f"{self.rate:.1f} {self.unit}/s")
        if self.eta_seconds:
            parts.append(f"ETA {self.eta_seconds:.0f} s")
        parts += [f"{name} {value:.4g}" for name, value in self.metrics.items()]
        if self.shares:
            parts.append(f"input wait {self.shares.input:.0%}")
            parts.append(f"communication {self.shares.communication:.0%}")
        if self.message:
            parts.append(self.message)
        return "  ".join(parts)


class ProgressWriter:
    """Appends to a progress file, with one write call per line: several processes may share it."""

    def __init__(self, path: Path, worker: int | None = None):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with translate_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, flags, 0o644)
        weakref.finalize(self, os.close, self._descriptor)
        self._path, self._worker = path, worker
        self._phase, self._phase_start, self._done_at_start = "", 0.0, 0

    def report(
        self,
        phase: str,
        done: int | None = None,
        total: int | None = None,
        unit: str = "",
        metrics: Mapping[str, float] | None = None,
        message: str = "",
        per_unit: Mapping[str, float] | None = None,
        epoch: int | None = None,
        shares: StepShares | None = None,
        gpus: Sequence[GpuUsage] = (),
    ) -> None:
        """Writes one event.

        The rate is that of the phase since its first report. `per_unit` are metrics that are
        computed as these multiples of the rate.
        """
        now = time.time()
        if phase != self._phase:
            self._phase, self._phase_start, self._done_at_start = phase, now, done or 0
        rate = eta = None
        if done is not None and now > self._phase_start and done > self._done_at_start:
            rate = (done - self._done_at_start) / (now - self._phase_start)
            eta = max(0, total - done) / rate if total else None
        rates = {name: rate * count for name, count in (per_unit or {}).items()} if rate else {}
        event = ProgressEvent(
            time=now,
            phase=phase,
            done=done,
            total=total,
            unit=unit,
            rate=rate,
            eta_seconds=eta,
            metrics=dict(metrics or {}) | rates,
            epoch=epoch,
            worker=self._worker,
            shares=shares,
            gpus=tuple(gpus),
            message=message[:_MAX_MESSAGE].encode(errors="replace").decode(),
        )
        self.forward(event)

    def forward(self, event: ProgressEvent) -> None:
        """Writes an event that another process has reported."""
        with translate_write_errors(self._path):
            os.write(
                self._descriptor, (event.model_dump_json(exclude_defaults=True) + "\n").encode()
            )


class ProgressReader:
    """Follows a progress file that may not exist yet, from a byte on."""

    def __init__(self, file: StorePath, offset: int = 0):
        self._file = file
        self.offset = offset
        self.problems: list[str] = []
        """The first few problems with skipped lines, each with its position."""

    def read_new(self) -> list[ProgressEvent]:
        """Returns the events since the last call, at most a few megabytes at a time."""
        try:
            data = self._file.read_log(self.offset, _CHUNK_BYTES)
        except UnsafePath as error:
            if not self.problems:
                self.problems.append(str(error))
            return []
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and len(data) == _CHUNK_BYTES:  # our lines are shorter
            whole = data
        start, self.offset, events = self.offset, self.offset + len(whole), []
        for line in whole.removesuffix(b"\n").split(b"\n") if whole else ():
            try:
                events.append(parse_progress(line, f"{self._file}, byte {start}"))
            except DataError as error:  # its writer was killed halfway, or it is not ours
                if len(self.problems) < _MAX_PROBLEMS:
                    self.problems.append(str(error))
            start += len(line) + 1
        return events

    def read_all(self) -> Iterator[list[ProgressEvent]]:
        """Yields the results of `read_new` until no events are left."""
        before = -1
        while before != self.offset:
            before = self.offset
            yield self.read_new()

    def seek_end(self, num_bytes: int = 0) -> None:
        """Skips the present content, except for the last `num_bytes`."""
        try:
            self.offset, _ = self._file.read_log_end(num_bytes)
        except UnsafePath:
            self.offset = 0


def parse_progress(line: bytes, source: object) -> ProgressEvent:
    """Parses one line of a progress file. Raises DataError with the source if it is invalid."""
    if len(line) > _MAX_LINE_BYTES:
        raise DataError(
            f"{source}: the line has {len(line)} bytes. At most {_MAX_LINE_BYTES} are allowed."
        )
    return parse_json_as(ProgressEvent, line, source)


def read_last_event(file: StorePath) -> ProgressEvent | None:
    """The newest event of a progress file, or None. Only the end of the file is read."""
    try:
        _, tail = file.read_log_end(_TAIL_BYTES)
    except UnsafePath:
        return None
    for line in reversed(tail.splitlines()):
        with contextlib.suppress(DataError):
            return parse_progress(line, file)
    return None
