"""A small pipeline for tests of clusters: each plan becomes one object in a store."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineResult

from pipeline_ops.storage.open_store import open_root

NUM_PLANS = 40


@dataclass(frozen=True)
class ObjectJob:
    """What the workers do.

    Attributes:
      root: the URI of the folder for the objects.
      seconds: the time that each plan takes.
      failing: the number of the plan that fails, or None.
      closed: a folder of the driver that the workers try to list.
    """

    root: str
    seconds: float = 0.0
    failing: int | None = None
    closed: str = "/"


class WriteObject(beam.DoFn):
    """Writes an object that says who wrote it, and counts it."""

    def __init__(self, job: ObjectJob):
        self._job = job

    def process(self, element: bytes) -> Iterator[bytes]:
        number = json.loads(element)["number"]
        if number == self._job.failing:
            raise ValueError(f"plan {number} can't be carried out")
        time.sleep(self._job.seconds)
        content = json.dumps(
            {
                "number": number,
                "process": os.getpid(),
                "user": os.geteuid(),
                "sees_driver": _can_list(self._job.closed),
            }
        ).encode()
        (open_root(self._job.root) / f"object-{number:03}.json").write(content)
        Metrics.counter("objects", "written").inc()
        Metrics.counter("objects", "bytes").inc(len(content))
        yield content


def _can_list(folder: str) -> bool:
    try:
        return any(True for _ in Path(folder).iterdir())
    except PermissionError:
        return False


def start_pipeline(job: ObjectJob, options: Sequence[str]) -> PipelineResult:
    """Starts a job with `NUM_PLANS` plans and does not wait for its end."""
    plans = [json.dumps({"number": number}).encode() for number in range(NUM_PLANS)]
    pipeline = beam.Pipeline(options=PipelineOptions(list(options)))
    _ = (
        pipeline
        | "Plans" >> beam.Create(plans)
        | "Spread" >> beam.Reshuffle()
        | "Write objects" >> beam.ParDo(WriteObject(job))
    )
    return pipeline.run()
