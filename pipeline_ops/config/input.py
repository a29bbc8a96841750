"""`train.input` of a pipeline config: how examples come from the shards to the step."""

from __future__ import annotations

from typing import Literal

from pipeline_ops.config.base import Section, operational, per_run


class Scale(Section):
    """By what images are scaled, anything between the two being equally likely. Where one gets larger, a random part of it is shown; where it gets
    smaller, it lies at a random place."""

    least: float = per_run(1.0, ge=0.1, le=1)
    most: float = per_run(1.0, ge=1, le=10)


class Augment(Section):
    """Random changes of training images, drawn from (seed, epoch, example): no worker and no restart changes them.

    Boxes go with the pixels. What comes into sight from beyond an image is its edge, repeated; for a detector it is grey, of the value 128.
    """

    flip_left_right: bool = per_run(False)
    """Mirrors every second image."""
    flip_top_bottom: bool = per_run(False)
    """Turns every second image upside down."""
    shift: float = per_run(0.0, ge=0, le=0.5)
    """Moves an image by up to this fraction of its height and width; a mosaic's parts lie at random places anyway."""
    scale: Scale | None = None
    """Enlarges images, or makes them smaller."""
    brightness: float = per_run(0.0, ge=0, le=1)
    """Adds up to this fraction of the range of values, or takes it away."""
    contrast: float = per_run(0.0, ge=0, lt=1)
    """Stretches values away from the image's mean, or pulls them to it, by up to this fraction."""
    saturation: float = per_run(0.0, ge=0, le=1)
    """Stretches the colours of a pixel away from their mean, or pulls them to it, by up to this fraction."""
    mosaic: float = per_run(0.0, ge=0, le=1)
    """For detectors: this share of the examples is made of four images, which meet at a random point."""
    least_visible: float = per_run(0.3, gt=0, le=1)
    """For detectors: of an object with less than this part of its box in sight, nothing is learned."""


class Input(Section):
    """How examples come from the shards to the step. Evaluation reads without a cache and without augmentation."""

    augment: Augment = Augment()
    cache: Literal["none", "memory", "disk"] = operational("memory")
    """Where decoded training images are kept from one epoch to the next: each worker's memory, or, for classification, a file that a host's
    workers share."""
    cache_limit_mib: int = operational(256, ge=1)
    """A split whose decoded images need more than this is not cached, and the log says so."""
    stage: Literal["auto", "always"] = operational("auto")
    """`auto` copies the shards to the host's disk where they lie in an object store; `always` also where they lie in a folder, which
    pays where that folder is a slow share."""
    local_folder: str | None = operational(None, is_path=True)
    """On the host's own disk: staged shards and decoded images, which may be removed while no training runs. Null: what the host's
    TRAINYARD_LOCAL_FOLDER says, or ~/.cache. They lie below `trainyard-cache/` in it, and nothing beside that is ever removed."""
    local_limit_gib: int = operational(100, ge=1)
    """What is not in use there is removed, the oldest first, until no more than this is left."""
