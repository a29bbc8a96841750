"""A picture of the effect of stages: raw examples on the left, their results on the right.

Labels and boxes are drawn. The preview reads only the raw files that it shows, and writes only the
picture. `trainyard preview` calls it, the job does not. All examples are treated as training
examples, so that `augment` shows its copies.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Sequence

import cv2

from beam_jobs.dry_run.preview_drawing import PreviewRow, draw_rows
from beam_jobs.io.raw import read_raw
from beam_jobs.planning.plan import Record
from beam_jobs.sources import read_source_data
from beam_jobs.stages.execution import BoundStage, run_stages
from beam_jobs.stages.stage import Example, Rejected
from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.yaml_source import suggest_name
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.raw_data.folder import find_raw_folder, list_folder


@dataclasses.dataclass(frozen=True)
class Preview:
    """The picture, as a PNG file, and the number of examples by outcome."""

    png: bytes
    outcomes: dict[str, int]


def draw_preview(config: PipelineConfig, stage: str | None, num_examples: int) -> Preview:
    """Draws the whole chain of a pipeline, or one of its stages.

    Args:
      config: a checked config.
      stage: the name of a stage in the config. Of two stages with the same name, the first is
        drawn. None draws the whole chain.
      num_examples: the number of raw examples to show. They are spread over the whole set, and are
        the same on every call.

    Raises:
      ConfigError: the config has no such stage, or a stage cannot work on these data.
      DataError: there are no raw data.
      StageFailed: a stage has a bug.
    """
    names = [each.name for each in config.preprocess.stages]
    # For the whole chain, and for `decode` itself, "before" is the decoded image.
    first, last = 1, len(names)
    if stage is not None:
        if stage not in names:
            raise ConfigError(
                f"--stage {stage}: the config has no such stage; {suggest_name(stage, names)}"
            )
        first, last = max(names.index(stage), 1), names.index(stage) + 1
    listing = list_folder(
        find_raw_folder(config),
        Layout(config.root, config.pipeline).listings,
        config.preprocess.source.file_patterns,
    )
    source = read_source_data(config.preprocess, listing, config.file)
    if not source.found.records:
        raise DataError(
            f"{listing.folder}: there is no usable file to show. "
            f"Correct preprocess.source in {config.file}."
        )
    chosen = sorted(source.found.records, key=_hash_key)[:num_examples]
    examples = (record.to_example(read_raw(record.file, listing.folder)) for record in chosen)
    before, shown = source.stages[:first], source.stages[first:last]
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    rows = [row for example in examples for row in _run_stages(example, before, shown)]
    outcomes = Counter(row.outcome.partition(" (")[0] for row in rows)
    return Preview(draw_rows(rows), dict(sorted(outcomes.items())))


def _hash_key(record: Record) -> bytes:
    return hashlib.blake2b(record.key.encode(), person=b"preview").digest()


def _run_stages(
    example: Example, before: Sequence[BoundStage], shown: Sequence[BoundStage]
) -> list[PreviewRow]:
    """One row for each example that reaches the shown stages, or a single row if none does.

    `before` are the stages before the shown ones. The first of them is `decode`.
    """
    reached, end = _run_to_outcome(example, before)
    rows = [] if reached else [PreviewRow(example.key, None, (), end)]
    for each in reached:
        after, end = _run_to_outcome(each, shown)
        outcome = end or ("unchanged, keeps its bytes" if _is_same(each, after) else "changed")
        rows.append(PreviewRow(each.key, each, after, outcome))
    return rows


def _run_to_outcome(example: Example, stages: Sequence[BoundStage]) -> tuple[list[Example], str]:
    """Returns the examples that the stages make, or the reason if there are none."""
    skipped: Counter[str] = Counter()
    try:
        finished = run_stages(stages, example, Counter(), skipped)
    except Rejected as reject:
        return [], f"rejected by {reject.stage}: {reject.reason} ({reject.detail})"
    return finished, "" if finished else f"skipped by {next(iter(skipped))}"


def _is_same(before: Example, after: Sequence[Example]) -> bool:
    return (
        len(after) == 1
        and after[0].is_original
        and after[0].encoded is before.encoded
        and after[0].boxes == before.boxes
        and after[0].label == before.label
    )
