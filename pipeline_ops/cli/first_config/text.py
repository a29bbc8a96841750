"""The text of a first config: every key with a short comment, as in `configs/*.yaml`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from pipeline_ops.cli.first_config.settings import FirstSettings

if TYPE_CHECKING:
    from pipeline_ops.cli.first_config.data_summary import DataSummary
    from pipeline_ops.cli.first_config.settings import Budget

_COMMENT_COLUMN, _MAX_CLASSES_SHOWN, _WIDTH = 50, 20, 100_000
_MAX_HEAD_COLUMNS = 145

_HEAD = """\
{reason}
#
# Written   by `trainyard init`. [*] marks values to adjust to your needs.
# Classes   {num_classes:,}, by {noun}: {classes}
{remarks}# Recipe    {measured} (`trainyard init` and `trainyard run`)
{time}# Command   trainyard run, with this file
pipeline: {pipeline} # the name of the DAG and of its folder of results
tags: [{task}] # for the filter in Airflow's list of DAGs
schedule: null # [*] runs by hand only; "0 3 * * *" is every night, in UTC

storage: # a folder, or a bucket: docs/buckets.md
  root: ../.trainyard # artifacts, runs and models; relative to this file

preprocess: # raw images to sharded TFRecords
  source: # the raw data
"""
_PREPROCESS = """\
  stages: # applied in this order; `trainyard stages` lists what there is
    - decode: {{channels: {channels}{bits}}} # {color}
    - resize: {{height: {height}, width: {width}}} # [*] {size_reason}; {sizes}
    - encode: {encode}
  split: {split} # {split_reason}
  shards: {shards} # of each split; at least one for each worker
  rejects: {{max_count: {rejects}}} # [*] more unusable entries fail the task; {seen}

train: # shards to a model
  model: {model} # [*] {model_reason}
  model_parameters: {model_parameters} # [*] arguments of the model, such as its size
{weights}  workers: 1 # [*] processes that train together; more than one on several hosts
  global_batch_size: {batch} # over all workers
  epochs: {epochs} # [*] of {steps:,.0f} steps each{epoch_time}
  seed: 1 # the same seed and data give the same model
"""
_GATE = """
evaluate: # the new model and the one in service, on the test split
  gate: # a model that fails a rule is not published
    - metric: {metric} # {meaning}
      min_skill: 0.1 # [*] raise it later; 0 is as good as without the images, 1 is perfect
      max_regression: 0.01 # the loss, compared with the model in service, that still passes
"""
_FREQUENT = 0.7
"""The share of a class from which accuracy says little about the others."""
_EXPORT = """
export: # to the layout of TensorFlow Serving
  model: {pipeline} # the name under which versions are published
"""
_SOURCE_COMMENTS = {
    "type": "docs/data-sources.md describes it",
    "path": "all files below it belong to the data; relative paths start at this file's folder",
    "class_folder": "the innermost folder of an image names its class",
    "unlisted": "images in no list are left out; `reject` would count them as unusable",
    "image_sets": "the lists that are our splits",
    "manifest": "the file that names every image; a path below `path`",
    "images": "the folder of the images, at which the paths in a manifest start",
    "task": "one class for each image, or boxes",
    "units": "of the boxes",
    "box_format": "the order of the numbers of a box, as the first boxes suggest",
    "label": "the field with the classes",
    "boxes": "the field with the boxes",
    "corners": "the columns with the boxes",
    "annotation": "the member of a sample with its annotation",
    "image": "the column with the images",
    "parts": "files, with the split that their names tell; without one, `split` decides",
    "label_map": "names of the classes",
    "annotations": "the folder of the XML files",
    "columns": "the names of our columns in the file",
    "find_by": "images are found by their file names alone",
    "class_names": "in the order of the label map",
}


class ConfigFacts(NamedTuple):
    """The name, the source, the reason for it, the figures of the data, and the chosen values.

    `budget` is None if no time was measured, and `weights` is empty without a warm start.
    """

    pipeline: str
    source: Mapping[str, Any]
    reason: str
    data: DataSummary
    settings: FirstSettings
    weights: str = ""
    budget: Budget | None = None


def render_config(facts: ConfigFacts) -> str:
    """Returns the YAML, with the comments in one column."""
    data = facts.data
    noun = "boxes" if data.task == "detection" else "images"
    head = _HEAD.format(
        reason=_wrap(f"{facts.reason}."),
        num_classes=len(data.labels),
        noun=noun,
        classes=describe_classes(data.labels, with_counts=True),
        remarks="".join(f"# Sampled   {make_printable(remark)}\n" for remark in data.remarks),
        measured=facts.settings.recipe.measured,
        time=f"# Time      {facts.budget.describe()}\n" if facts.budget else "",
        pipeline=facts.pipeline,
        task=data.task,
    )
    metric, meaning = _choose_gate_metric(data)
    lines = [
        *map(_align, head.splitlines()),
        *_render_source(facts.source),
        *map(_align, _render_preprocess(facts).splitlines()),
        *map(_align, facts.settings.recipe.training.splitlines()),
        *map(_align, _GATE.format(metric=metric, meaning=meaning).splitlines()),
        *map(_align, _EXPORT.format(pipeline=facts.pipeline).splitlines()),
    ]
    return "".join(f"{line}\n" for line in lines)


def _choose_gate_metric(data: DataSummary) -> tuple[str, str]:
    """The metric of the gate, and its meaning."""
    if data.task == "detection":
        return "map_50", "mean average precision at an IoU of 0.5"
    share = max(data.labels.values()) / data.labels.total()
    if share >= _FREQUENT:
        return (
            "macro_recall",
            f"mean recall of the classes, because one has {share:.0%} of the images",
        )
    return "accuracy", "share of right answers"


def make_printable(text: str) -> str:
    """The text with escapes for control characters, which would end a comment or move a cursor."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def describe_classes(labels: Mapping[str, int], with_counts: bool = False) -> str:
    """The names of the classes, or the first of them."""
    names = sorted(labels)
    shown = [
        f"{name} ({labels[name]:,})" if with_counts else name for name in names[:_MAX_CLASSES_SHOWN]
    ]
    more = f" and {len(names) - len(shown):,} more" if len(names) > len(shown) else ""
    return make_printable(", ".join(shown)) + more


def _wrap(comment: str) -> str:
    """The lines of a comment."""
    return textwrap.fill(
        make_printable(comment), _MAX_HEAD_COLUMNS, initial_indent="# ", subsequent_indent="# "
    )


def _align(line: str) -> str:
    """Moves the comment of a line of a template to its column."""
    content, separator, comment = line.partition(" # ")
    is_whole_comment = line.startswith("#") or not separator
    return line if is_whole_comment else f"{content:<{_COMMENT_COLUMN}} # {comment}"


def _render_source(source: Mapping[str, Any]) -> Iterator[str]:
    for key, value in source.items():
        comment = _SOURCE_COMMENTS.get(key, "docs/data-sources.md describes it")
        yield f"    {_dump({key: value})[1:-1]:<{_COMMENT_COLUMN - 4}} # {comment}"


def _render_preprocess(facts: ConfigFacts) -> str:
    data, settings = facts.data, facts.settings
    split, bits = data.split, data.sample.bits
    shares = f"train: {split.train}, validation: {split.validation}, test: {split.test}"
    return _PREPROCESS.format(
        channels=settings.channels,
        bits=f", bits: {bits}" if bits < 16 else "",
        color=(
            "every image of the sample is grey" if settings.channels == 1 else "red, green, blue"
        )
        + (f"; files of 16 bits have values below {1 << bits:,}" if bits < 16 else ""),
        height=settings.height,
        width=settings.width,
        size_reason=settings.size_reason,
        sizes=describe_sizes(data),
        encode="{format: png} # without loss, as the files"
        if data.sample.is_lossless
        else "{format: jpeg, quality: 95} # a tenth of the size of png",
        split=f"{{{shares}{', stratify: true' if split.stratify else ''}}}",
        split_reason=_describe_split(data),
        shards=settings.shards,
        rejects=data.allowed_rejects,
        seen=_describe_rejects(data),
        model=settings.recipe.model,
        model_reason=settings.recipe.reason,
        model_parameters=_dump(dict(settings.recipe.parameters)),
        weights=_render_weights(facts),
        batch=settings.global_batch_size,
        epochs=settings.epochs,
        steps=settings.steps_per_epoch,
        epoch_time=f", {facts.budget.epoch_seconds:.1f} s on this machine" if facts.budget else "",
    )


def _describe_rejects(data: DataSummary) -> str:
    seen = f"{data.num_rejects:,} are expected now" if data.num_rejects else "none was found"
    if data.allowed_rejects == data.num_rejects:
        return seen
    decoded = f"{data.num_decoded:,} of {data.total:,} images were decoded"
    return f"{decoded}, {seen}, and a hundredth is allowed besides"


def _render_weights(facts: ConfigFacts) -> str:
    """The lines of a warm start, or a comment that says what it would bring."""
    if facts.weights:
        return (
            f"  {_dump({'warm_start': facts.weights})[1:-1]} # the weights to begin with\n"
            "  freeze_epochs: 2 # [*] in these first ones only layers that the file lacks learn\n"
        )
    return f"  warm_start: null # [*] {facts.settings.recipe.weights_hint}\n"


def describe_sizes(data: DataSummary) -> str:
    """The range of the sizes of the decoded images, as width x height."""
    heights, widths = zip(*data.sample.sizes, strict=True)
    low, high = f"{min(widths)}x{min(heights)}", f"{max(widths)}x{max(heights)}"
    sizes = low if low == high else f"{low} to {high}"
    return f"{len(heights):,} decoded images have {sizes} pixels (width x height)"


def _describe_split(data: DataSummary) -> str:
    numbers = ", ".join(f"{number:,} {name}" for name, number in data.num_images.items())
    given = data.given_splits
    if len(given) == 3:
        return f"not used: the data has splits ({numbers})"
    if given:
        missing = " and ".join(name for name in data.num_images if name not in given)
        return f"the data has {' and '.join(given)}; {missing} is cut from train ({numbers})"
    exact = "; stratify keeps to the shares in each class" if data.split.stratify else ""
    return f"{numbers}{exact}"


def _dump(value: Any) -> str:
    """A value as YAML in one line."""
    return yaml.safe_dump(
        value, default_flow_style=True, allow_unicode=True, sort_keys=False, width=_WIDTH
    ).rstrip("\n")
