"""`export` of a pipeline config: the checked SavedModel, published as a new version."""

from __future__ import annotations

from pydantic import Field, field_validator

from pipeline_ops.contracts.section import TaskSection, operational
from pipeline_ops.contracts.shelf import STORES, is_remote


class Export(TaskSection):
    """The checked SavedModel, published as a new version."""

    model: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    """The model's name in the registry."""
    tolerance: float = Field(1e-4, gt=0, le=1)
    """The largest difference of a probability that is still the same model."""
    registry: str | None = operational(None)
    """Where versions are published: a folder, or a place in an object store such as s3://bucket/models; null is models/ below
    storage.root."""
    keep_versions: int | None = operational(None, ge=1)
    """How many of the newest versions stay after a publication; null keeps all. A version that an alias names always stays."""

    @field_validator("registry")
    @classmethod
    def _known_store(cls, value: str | None) -> str | None:
        if value is not None and is_remote(value) and value.partition("://")[0] not in STORES:
            raise ValueError(f"must be a folder, or begin with {' or '.join(f'{store}://' for store in STORES)}, got {value}; "
                             "other stores were not shown to refuse the second of two conditional puts")
        return value
