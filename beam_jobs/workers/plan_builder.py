"""A worker's share of the job: works on one plan after the other.

The same code runs inside a Beam worker and in a separate process (`worker.py`). It does not depend
on Beam, and returns only two counts. All else goes through the exchange, because no runner returns
a value, and because Beam would compress the plans and keep all of them in memory.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Protocol, TypeVar

from beam_jobs.exchange import Exchange, ShardTask, StoppedByDriver
from beam_jobs.planning.plan import ShardPlan
from beam_jobs.statistics.summary import PlanSummary

PlanCounts = tuple[int, int]
"""The number of examples, and the number of rejected records."""
SummaryT = TypeVar("SummaryT", bound=PlanSummary, covariant=True)


class Builder(Protocol[SummaryT]):
    """Builds one plan after another."""

    def build(self, plan: ShardPlan) -> SummaryT: ...


class BuildSpec(Protocol[SummaryT]):
    """The kind of work, and the common properties of its plans. It is pickled for the workers."""

    @property
    def summary(self) -> type[SummaryT]:
        """The type of summary that a builder returns for each plan."""

    def create_builder(self, exchange: Exchange, fragments: Path) -> Builder[SummaryT]: ...


class PlanBuilder:
    """Builds the plans of one spec."""

    def __init__(self, spec: BuildSpec[PlanSummary], exchange: Exchange, fragments: Path):
        import cv2

        cv2.setNumThreads(1)  # its threads would compete with the workers for the same cores
        # A broken image is rejected with a reason, without a line on stderr.
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
        warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
        self._builder, self._exchange = spec.create_builder(exchange, fragments), exchange

    def build(self, task: ShardTask) -> PlanCounts | None:
        """Builds a plan. Returns None if the build was stopped or has failed.

        It never raises: Beam would print each error four times.
        """
        try:
            plan = self._exchange.read_plan(task)
            summary = self._builder.build(plan)
            self._exchange.write_result(task.name, summary)
        except StoppedByDriver:
            return None
        except Exception as error:
            self._exchange.write_error(task.name, error)
            return None
        return summary.num_examples, len(summary.rejected)
