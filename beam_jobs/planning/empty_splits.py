"""The cause of an empty split, for the message that ends the job. Pure: no Beam, no files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from beam_jobs.planning.plan import Record
from beam_jobs.planning.splits import split_records
from beam_jobs.statistics.summary import RejectedRecord, ShardSummary
from pipeline_ops.config.preprocess import Split


def cause_in_plan(
    records: Sequence[Record], kept: Mapping[str, Sequence[Record]], split: Split
) -> Callable[[str], str]:
    """Explains why a split is empty, before any image is read.

    Args:
      records: all records that the source has found.
      kept: the records that stay when duplicates are removed, by split.
      split: `preprocess.split`.
    """

    def cause(name: str) -> str:
        share, count = getattr(split, name), len(split_records(records, split)[name])
        if kept[name]:
            return (
                f"none of its {len(kept[name])} images has a label or a box that the stages keep; "
                "correct the annotations or the stages"
            )
        if count:
            return (
                f"all of its {count} images are equal to others or contradict them; add other "
                "images, or set preprocess.duplicates: keep"
            )
        if records and all(record.split for record in records):
            given = ", ".join(sorted({record.split for record in records}))
            return (
                f"the source gives every image a split ({given}), none of them {name}, and "
                f"preprocess.split.{name} is {share:g}; give some "
                f"images to it in the source, or raise preprocess.split.{name}, which takes them "
                "from train"
            )
        if not share:
            return f"preprocess.split.{name} is 0, and the source gives no image to it; raise it"
        return _cause_of_share(name, share, records, split)

    return cause


def _cause_of_share(name: str, share: float, records: Sequence[Record], split: Split) -> str:
    rule = f"preprocess.split.{name} is {share:g} of {len(records)} images"
    if split.group_by:
        return (
            f"{rule}, and groups (preprocess.split.group_by: {split.group_by}) are never divided; "
            "add images of other groups, or raise it"
        )
    if split.stratify or share * len(records) < 1:
        return f"{rule}, which rounds to none; add images, or raise preprocess.split.{name}"
    return (
        f"{rule}; add images, or raise preprocess.split.{name}, or set preprocess.split.stratify: "
        "true, which keeps to the shares exactly"
    )


def cause_in_shards(
    kept: Mapping[str, Sequence[Record]],
    rejected: Iterable[RejectedRecord],
    summaries: Iterable[ShardSummary],
) -> Callable[[str], str]:
    """Explains why a split is empty, after all stages have run.

    `rejected` is everything that was kept out.
    """
    rejected, summaries = list(rejected), list(summaries)

    def cause(name: str) -> str:
        keys = {record.key for record in kept[name]}
        reasons = Counter(
            f"{record.stage}: {record.reason}" for record in rejected if record.key in keys
        )
        for summary in summaries:
            reasons.update(summary.skipped if summary.split == name else {})
        if not reasons:
            return (
                f"its {len(keys)} images are there, but no box of them is left; correct the "
                "annotations or the stages"
            )
        kept_out = ", ".join(f"{count} by {reason}" for reason, count in sorted(reasons.items()))
        return (
            f"its {len(keys)} images were kept out ({kept_out}); correct them, or the stages that "
            "keep them out"
        )

    return cause
