"""`train.input` of a pipeline config: how examples come from the shards to the step."""

from __future__ import annotations

from typing import Literal

from pipeline_ops.config.base import Section, operational, per_run


class Scale(Section):
    """The range of factors by which images are scaled. All values in it are equally likely.

    A random part of a larger image is shown. A smaller image lies at a random place.
    """

    least: float = per_run(1.0, ge=0.1, le=1)
    most: float = per_run(1.0, ge=1, le=10)


class AugmentOptions(Section):
    """Random changes of training images, drawn from (seed, epoch, example).

    They do not depend on the worker or on restarts. Boxes move with the pixels. The area beyond an
    image repeats its edge. For a detector it is grey, with the value 128.
    """

    flip_left_right: bool = per_run(False)
    """Mirrors every second image."""
    flip_top_bottom: bool = per_run(False)
    """Turns every second image upside down."""
    shift: float = per_run(0.0, ge=0, le=0.5)
    """Moves an image by up to this fraction of its height and width. A mosaic's parts lie at random
    places anyway."""
    scale: Scale | None = None
    """Enlarges or shrinks images."""
    brightness: float = per_run(0.0, ge=0, le=1)
    """Adds or subtracts up to this fraction of the range of values."""
    contrast: float = per_run(0.0, ge=0, lt=1)
    """Stretches values away from the image's mean, or pulls them to it, by up to this fraction."""
    saturation: float = per_run(0.0, ge=0, le=1)
    """Stretches the colours of a pixel away from their mean, or pulls them to it, by up to this
    fraction."""
    mosaic: float = per_run(0.0, ge=0, le=1)
    """The share of examples that are made of four images, which meet at a random point. Only for
    detectors."""
    least_visible: float = per_run(0.3, gt=0, le=1)
    """The smallest visible part of a box. An object with less in sight is not learned. Only for
    detectors."""


class InputOptions(Section):
    """The input pipeline, which brings examples from the shards to the step.

    Evaluation reads without a cache and without augmentation.
    """

    augment: AugmentOptions = AugmentOptions()
    cache: Literal["none", "memory", "disk"] = operational("memory")
    """The place where decoded training images are kept from one epoch to the next. `memory` is each
    worker's memory. `disk`, for classification, is a file that a host's workers share."""
    cache_limit_mib: int = operational(256, ge=1)
    """A split whose decoded images need more than this is not cached, and the log says so."""
    stage: Literal["auto", "always"] = operational("auto")
    """`auto` copies the shards to the host's disk if they lie in an object store. `always` also
    copies them from a folder, which pays if that folder is a slow share."""
    local_folder: str | None = operational(None, is_path=True)
    """A folder on the host's own disk for staged shards and decoded images, which may be removed
    while no training runs. Null is the host's TRAINYARD_LOCAL_FOLDER, or ~/.cache. They lie below
    `trainyard-cache/` in it, and no other file of the folder is ever removed."""
    local_limit_gib: int = operational(100, ge=1)
    """The limit for this folder. Files that are not in use are removed, the oldest first, until no
    more than this is left."""
