"""`train.input` of a pipeline config: how examples come from the shards to the step."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from pipeline_ops.config.base import Section, advanced_field, operational_field, per_run_field


class Scale(Section):
    """The range of factors by which images are scaled. All values in it are equally likely.

    A random part of a larger image is shown. A smaller image lies at a random position.
    """

    min: float = per_run_field(1.0, ge=0.1, le=1)
    max: float = per_run_field(1.0, ge=1, le=10)


class AugmentOptions(Section):
    """Random changes of training images, drawn from (seed, epoch, example).

    They do not depend on the worker or on restarts. Boxes move with the pixels. The area beyond an
    image repeats its edge. For a detector it is grey, with the value 128.
    """

    flip_left_right: bool = per_run_field(False)
    """Mirrors every second image."""
    flip_top_bottom: bool = per_run_field(False)
    """Turns every second image upside down."""
    shift: float = per_run_field(0.0, ge=0, le=0.5, is_advanced=True)
    """Moves an image by up to this fraction of its height and width. A mosaic's parts lie at random
    places anyway."""
    scale: Scale | None = None
    """Enlarges or shrinks images."""
    brightness: float = per_run_field(0.0, ge=0, le=1)
    """Adds or subtracts up to this fraction of the range of values."""
    contrast: float = per_run_field(0.0, ge=0, lt=1)
    """Stretches values away from the image's mean, or pulls them to it, by up to this fraction."""
    saturation: float = per_run_field(0.0, ge=0, le=1)
    """Stretches the colours of a pixel away from their mean, or pulls them to it, by up to this
    fraction."""
    mosaic: float = per_run_field(0.0, ge=0, le=1)
    """The share of examples that are made of four images, which meet at a random point. Only for
    detectors."""
    min_visible: float = per_run_field(0.3, gt=0, le=1, is_advanced=True)
    """The smallest visible part of a box. An object with less in sight is not learned. Only for
    detectors."""


class InputOptions(Section):
    """The input pipeline, which brings examples from the shards to the step.

    Evaluation reads without a cache and without augmentation.
    """

    augment: AugmentOptions = AugmentOptions()
    shuffle: Literal["examples", "shards"] = advanced_field("examples")
    """The order of the training examples, in which each of them comes once in an epoch. `examples`
    permutes all of them. `shards` permutes the shards, and then the examples of `shuffle_window`
    shards at a time, which a data set in a store needs if it is larger than `local_limit_gib`."""
    shuffle_window: int = advanced_field(8, ge=1)
    """The number of shards whose examples `shuffle: shards` permutes together."""
    cache: Literal["none", "memory", "disk"] = operational_field("memory")
    """The place where decoded training images are kept from one epoch to the next. `memory` is each
    worker's memory. `disk`, for classification, is a file that a host's workers share."""
    cache_limit_mib: int = operational_field(256, ge=1, is_advanced=True)
    """A split whose decoded images need more than this is not cached, and the log says so."""
    local_copy: Literal["auto", "always"] = operational_field("auto", is_advanced=True)
    """`auto` keeps copies of shards on the host's disk if they lie in an object store. `always`
    also does so for a folder, which pays if that folder is a slow share. Training begins before
    the copies are there."""
    local_folder: str | None = operational_field(None, is_path=True, is_advanced=True)
    """A folder on the host's own disk for copies of shards and for decoded images, which may be
    removed while no training runs. Null is the host's TRAINYARD_LOCAL_FOLDER, or ~/.cache. They lie
    below `trainyard-cache/` in it, and no other file of the folder is ever removed."""
    local_limit_gib: float = operational_field(100, gt=0, is_advanced=True)
    """The limit for this folder. Files that are not in use are removed, the oldest first, until no
    more than this is left. Of a larger data set in a store, the remaining records are read one by
    one."""

    @field_validator("local_folder")
    @classmethod
    def _validate_local_folder(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("/", "~")):
            raise ValueError(
                f"must begin with / or ~, because it is on the hosts' own disks, got {value}"
            )
        return value

    @property
    def window(self) -> int | None:
        """The number of shards whose examples are permuted together. None is the whole split."""
        return self.shuffle_window if self.shuffle == "shards" else None
