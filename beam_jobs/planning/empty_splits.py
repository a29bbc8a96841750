"""The cause of an empty split, for the message that ends the job. Pure: no Beam, no files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from beam_jobs.planning.plan import Record
from beam_jobs.planning.splits import split_records
from beam_jobs.statistics.summary import RejectedRecord, ShardSummary
from pipeline_ops.config.preprocess import Split


def explain_from_plan(
    records: Sequence[Record], kept: Mapping[str, Sequence[Record]], split: Split
) -> Callable[[str], str]:
    """Explains why a split is empty, before any image is read.

    Args:
      records: all records that the source has found.
      kept: the records that stay when duplicates are removed, by split.
      split: `preprocess.split`.
    """

    def explain(name: str) -> str:
        share, count = getattr(split, name), len(split_records(records, split)[name])
        if kept[name]:
            return (
                f"none of its {len(kept[name])} images has a label or a box that the stages keep. "
                "Correct the annotations or the stages."
            )
        if count:
            return (
                f"all of its {count} images are equal to others or contradict them. Add other "
                "images, or set preprocess.duplicates: keep."
            )
        given = {record.split or "" for record in records}
        if given and all(given):
            return (
                f"the source gives every image a split ({', '.join(sorted(given))}), none of them "
                f"{name}, and preprocess.split.{name} is {share:g}. Give some images to it in the "
                f"source, or raise preprocess.split.{name}, which takes them from train."
            )
        if not share:
            return f"preprocess.split.{name} is 0, and the source gives no image to it. Raise it."
        return _explain_share(name, share, records, split)

    return explain


def _explain_share(name: str, share: float, records: Sequence[Record], split: Split) -> str:
    rule = f"preprocess.split.{name} is {share:g} of {len(records)} images"
    if split.group_by:
        return (
            f"{rule}, and groups (preprocess.split.group_by: {split.group_by}) are never divided. "
            "Add images of other groups, or raise it."
        )
    if split.stratify or share * len(records) < 1:
        return f"{rule}, which rounds to none. Add images, or raise preprocess.split.{name}."
    return (
        f"{rule}. Add images, or raise preprocess.split.{name}, or set preprocess.split.stratify: "
        "true, which keeps to the shares exactly."
    )


def explain_from_shards(
    kept: Mapping[str, Sequence[Record]],
    rejected: Iterable[RejectedRecord],
    summaries: Iterable[ShardSummary],
) -> Callable[[str], str]:
    """Explains why a split is empty, after all stages have run.

    `rejected` are all rejected records.
    """
    rejected, summaries = list(rejected), list(summaries)

    def explain(name: str) -> str:
        keys = {record.key for record in kept[name]}
        reasons = Counter(
            f"{record.stage}: {record.reason}" for record in rejected if record.key in keys
        )
        for summary in summaries:
            reasons.update(summary.skipped if summary.split == name else {})
        if not reasons:
            return (
                f"the stages keep no box of its {len(keys)} images. Correct the annotations or the "
                "stages."
            )
        rejects = ", ".join(f"{count} by {reason}" for reason, count in sorted(reasons.items()))
        return (
            f"all of its {len(keys)} images were rejected or skipped ({rejects}). Correct them, or "
            "the stages."
        )

    return explain
