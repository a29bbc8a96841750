"""The locations of a pipeline's runs and versions: all that pages and the orphan reaper need.

The factory stores it with each version of a DAG, so a page needs neither the YAML nor its secrets,
and works while the YAML is broken.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from pipeline_ops.config.pipeline import PIPELINE_PATTERN, PipelineConfig
from pipeline_ops.storage.open_store import check_no_credentials, is_remote, open_near, open_root
from pipeline_ops.storage.store_options import StoreOptions
from pipeline_ops.storage.store_path import StorePath

_Location = Annotated[str, Field(max_length=4096), AfterValidator(check_no_credentials)]


class PipelineRef(BaseModel):
    """The locations of a pipeline. They are the same for all runs.

    Attributes:
      pipeline: the name of the pipeline.
      model: the name of its model.
      storage_root: an absolute folder, or a URI.
      options: how to reach the bucket of the storage root.
      versions: the folder or the URI of the model's versions.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    pipeline: str = Field(pattern=PIPELINE_PATTERN)
    model: str = Field(pattern=PIPELINE_PATTERN)
    storage_root: _Location
    options: StoreOptions
    versions: _Location

    @classmethod
    def from_config(cls, config: PipelineConfig) -> PipelineRef:
        return cls(
            pipeline=config.pipeline,
            model=config.export.model,
            storage_root=config.root_uri,
            options=config.store_options,
            versions=config.registry_uri,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the values as Airflow stores them with a DAG."""
        return self.model_dump(mode="json")

    @property
    def root(self) -> StorePath:
        """The storage root."""
        return open_root(self.storage_root, self.options if is_remote(self.storage_root) else None)

    @property
    def registry(self) -> StorePath:
        """The location of the model's versions. In another bucket, it has no options."""
        return open_near(self.root, self.versions)
