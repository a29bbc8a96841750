"""The description of a data set: statistics, schema, comparison with its reference, and a page.

The preprocess job calls it once the shards exist, and before it checks the data. If a check refuses
them, the page is in the attempt's folder, next to the log, because there is no artifact.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from beam_jobs.statistics import dataset
from beam_jobs.statistics.page import PageData, describe_reference, render
from beam_jobs.statistics.summary import BadRecord
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.contract.dataset import DATA_PAGE, SCHEMA, STATISTICS, DatasetFigures
from pipeline_ops.contract.manifest import REFERENCES, Input, read_input
from pipeline_ops.errors import DataError
from pipeline_ops.job.local_inputs import fetch_input
from pipeline_ops.job.runner import Job
from pipeline_ops.job.workspace import ArtifactDraft
from pipeline_ops.storage.local_files import read_json, write_atomically, write_json
from pipeline_ops.storage.read_errors import make_read_error

_Model = TypeVar("_Model", bound=BaseModel)


@dataclasses.dataclass(frozen=True)
class Reference:
    """The data set that this one is compared with. `name` is one of REFERENCES."""

    name: str
    digest: str
    schema: dataset.DataSchema
    statistics: dataset.DatasetStatistics


def read_reference(inputs: Mapping[str, Input]) -> Reference | None:
    """Reads the reference that the job was planned with."""
    name = next((name for name in REFERENCES if name in inputs), None)
    if name is None:
        return None
    digest = read_input(inputs[name]).digest
    folder = Path(fetch_input(inputs[name], (SCHEMA, STATISTICS).__contains__).uri).parent
    schema = _read_model(folder / SCHEMA, dataset.DataSchema)
    statistics = _read_model(folder / STATISTICS, dataset.DatasetStatistics)
    return Reference(name, digest, schema, statistics)


def _read_model(file: Path, kind: type[_Model]) -> _Model:
    try:
        return kind.model_validate(read_json(file))
    except (OSError, ValidationError, ValueError) as error:
        remedy = ". Remove its artifact, and start a new run."
        raise make_read_error(f"cannot read {file}", error, remedy) from None


def write_description(
    job: Job,
    config: Preprocess,
    draft: ArtifactDraft,
    figures: DatasetFigures,
    statistics: dataset.DatasetStatistics,
    bad: Iterable[BadRecord],
    reference: Reference | None,
    **more: Any,
) -> PageData:
    """Writes statistics, schema and page. Returns what the page shows.

    `figures` lack the drift. `more` are further fields of the page's data.
    """
    schema = dataset.infer_schema(figures, statistics.merge_splits())
    if reference:
        train, before = statistics.splits["train"], reference.statistics.splits["train"]
        comparison = dataset.DatasetComparison(
            reference=reference.name,
            digest=reference.digest,
            thresholds=config.drift,
            schema_violations=dataset.compare_schemas(
                schema, reference.schema, config.allowed_changes
            ),
            drift=dataset.compute_distances(train, before, config.drift),
        )
        statistics = statistics.model_copy(update={"comparison": comparison})
        drift = {"drift": comparison.drift, "drift_limits": config.drift}
        figures = figures.model_copy(update=drift)
    theirs = reference.statistics if reference else None
    page_data = PageData(
        job.request.pipeline, figures, statistics, schema, list(bad), theirs, **more
    )
    write_atomically(draft.folder / DATA_PAGE, render(page_data).encode())
    write_json(draft.folder / SCHEMA, schema.model_dump(mode="json"))
    write_json(draft.folder / STATISTICS, statistics.model_dump(mode="json"))
    return page_data


@contextlib.contextmanager
def keep_page_of_refused_data(job: Job, page_data: PageData) -> Iterator[None]:
    """Writes the page into the attempt's folder, with the reason, if the block refuses the data."""
    try:
        yield
    except DataError as error:
        page = job.attempt.folder / DATA_PAGE
        # A colon announces the lines that the page shows in its own way.
        refused = dataclasses.replace(
            page_data, refusal=str(error).splitlines()[0].removesuffix(":")
        )
        write_atomically(page, render(refused).encode())
        raise DataError(f"{error}\n{page} shows the data and the rejected records.") from error


def check_comparison(
    comparison: dataset.DatasetComparison | None, config: Preprocess, config_file: str
) -> None:
    """Raises DataError if the config does not allow the schema or a drift."""
    if comparison is None:
        return
    faults = [
        f"  {violation.text} (allow it with preprocess.allowed_changes: [{violation.rule}])"
        for violation in comparison.schema_violations
        if violation.fails
    ]
    if config.drift.action == "fail":
        limits = comparison.thresholds
        faults += [
            f"  {each.feature} has drifted: Jensen-Shannon {each.jensen_shannon:.3f} (at most "
            f"{limits.max_js_distance:g}), L-infinity {each.l_infinity:.3f} (at most "
            f"{limits.max_linf_distance:g}); see preprocess.drift"
            for each in comparison.drift
            if each.is_above
        ]
    if faults:
        fault = f"the data differ from {describe_reference(comparison.reference)}:"
        cure = f"Correct the data, or change the rules in {config_file}."
        raise DataError("\n".join([fault, *faults, cure]))
