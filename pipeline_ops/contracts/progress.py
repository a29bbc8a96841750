"""Progress as JSON lines: what a job appends to `progress.jsonl`, and what the task log, the UI and the terminal draw.

One line is one moment: {"time", "phase", "done", "total", "unit", "rate", "eta_seconds", "metrics", "worker", "message"}.
Readers may meet a line that is half written; they leave it for the next look.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

_TAIL_BYTES = 16384


class Progress(BaseModel):
    """One moment of a job. `rate` is in units a second; `metrics` are the newest figures by name."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    time: float
    phase: str
    done: int | None = None
    total: int | None = None
    unit: str = ""
    rate: float | None = None
    eta_seconds: float | None = None
    metrics: dict[str, float] = {}
    worker: int | None = None
    message: str = ""

    def __str__(self) -> str:
        """As a task-log line: `train 120/330 steps  41.2 steps/s  ETA 5 s  loss 0.0312`."""
        count = "" if self.done is None else f" {self.done}" + (f"/{self.total}" if self.total else "") + f" {self.unit}".rstrip()
        parts = [self.phase + count]
        if self.rate:
            parts.append(f"{self.rate:.1f} {self.unit}/s")
        if self.eta_seconds is not None:
            parts.append(f"ETA {self.eta_seconds:.0f} s")
        parts += [f"{name} {value:.4g}" for name, value in self.metrics.items()]
        if self.message:
            parts.append(self.message)
        return "  ".join(parts)


class ProgressWriter:
    """Appends to a job's progress file. One write call a line, so that several processes may share the file."""

    def __init__(self, path: Path, worker: int | None = None):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._worker = worker
        self._phase, self._phase_start, self._done_at_start = "", 0.0, 0

    def report(self, phase: str, done: int | None = None, total: int | None = None, unit: str = "",
               metrics: Mapping[str, float] | None = None, message: str = "", per_unit: Mapping[str, float] | None = None) -> None:
        """Writes one moment; the rate is that of the phase since its first report. `per_unit` are metrics that are so many times the rate."""
        now = time.time()
        if phase != self._phase:
            self._phase, self._phase_start, self._done_at_start = phase, now, done or 0
        rate = eta = None
        if done is not None and now > self._phase_start and done > self._done_at_start:
            rate = (done - self._done_at_start) / (now - self._phase_start)
            eta = (total - done) / rate if total else None
        rates = {name: rate * count for name, count in (per_unit or {}).items()} if rate else {}
        moment = Progress(time=now, phase=phase, done=done, total=total, unit=unit, rate=rate, eta_seconds=eta,
                          metrics=dict(metrics or {}) | rates, worker=self._worker, message=message)
        self.forward(moment)

    def forward(self, moment: Progress) -> None:
        """Writes a moment that another process has reported."""
        os.write(self._descriptor, (moment.model_dump_json(exclude_defaults=True) + "\n").encode())


class ProgressReader:
    """Follows a progress file that may not exist yet; every call of `new` returns what has come since the last."""

    def __init__(self, path: Path, offset: int = 0):
        self._path, self.offset = path, offset

    def new(self) -> list[Progress]:
        try:
            with open(self._path, "rb") as file:
                file.seek(self.offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return [Progress(**record) for line in whole.splitlines() if (record := _parse(line))]


def last_moment(path: Path) -> Progress | None:
    """The newest moment of a progress file, of which only the end is read; None where there is none yet."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return None
    moments = ProgressReader(path, max(0, size - _TAIL_BYTES)).new()
    return moments[-1] if moments else None


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        return json.loads(line)
    except ValueError:  # a writer was killed in the middle of a line, and the next one appended to it
        return None
