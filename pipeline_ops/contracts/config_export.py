"""`export` of a pipeline config: the checked SavedModel, published as a new version."""

from __future__ import annotations

from pydantic import Field

from pipeline_ops.contracts.section import TaskSection


class Export(TaskSection):
    """The checked SavedModel, published as a new version."""

    model: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    """The model's name in the registry."""
    tolerance: float = Field(1e-4, gt=0, le=1)
    """The largest difference of a probability that is still the same model."""
