"""`train.input` of a pipeline config: how examples come from the shards to the step."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline_ops.contracts.section import Section, operational


class Augment(Section):
    """Random changes of training images, drawn from (seed, epoch, example): no worker and no restart changes them."""

    flip_left_right: bool = False
    """Mirrors every second image."""
    shift: float = Field(0.0, ge=0, le=0.5)
    """Moves an image by up to this fraction of its height and width; the edge is repeated where it came from."""
    brightness: float = Field(0.0, ge=0, le=1)
    """Adds up to this fraction of the range of values, or takes it away."""
    contrast: float = Field(0.0, ge=0, lt=1)
    """Stretches values away from the image's mean, or pulls them to it, by up to this fraction."""

    @property
    def is_on(self) -> bool:
        return self != Augment()


class Input(Section):
    """How examples come from the shards to the step. Evaluation reads without a cache and without augmentation."""

    augment: Augment = Augment()
    cache: Literal["none", "memory", "disk"] = operational("memory")
    """Where decoded training images are kept from one epoch to the next: each worker's memory, or a file that a host's workers share."""
    cache_limit_mib: int = operational(256, ge=1)
    """A split whose decoded images need more than this is not cached, and the log says so."""
    stage: Literal["auto", "always"] = operational("auto")
    """`auto` copies the shards to the host's disk where they lie in an object store; `always` also where they lie in a folder, which
    pays where that folder is a slow share."""
    local_folder: str | None = operational(None)
    """On the host's own disk: staged shards and decoded images, which may be removed while no training runs. Null: what the host's
    TRAINYARD_LOCAL_FOLDER says, or ~/.cache/trainyard."""
    local_limit_gib: int = operational(100, ge=1)
    """What is not in use there is removed, the oldest first, until no more than this is left."""
