"""`export` of a pipeline config: the checked SavedModel, published as a new version."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from pipeline_ops.config.fields import (
    SAME_FOR_ALL_RUNS,
    Section,
    TaskSection,
    advanced_field,
    fixed_field,
    operational_field,
)
from pipeline_ops.storage.open_store import check_no_credentials, is_remote
from pipeline_ops.storage.store_options import SCHEMES

FormatName = Literal["saved_model", "tflite", "tflite_int8", "onnx"]


class Int8(Section):
    """A TFLite model with weights and activations of eight bits."""

    tolerance: float = Field(0.3, gt=0, le=1)
    """The largest allowed difference of a probability."""
    top1_agreement: float = Field(0.95, ge=0, le=1)
    """The smallest allowed share of test examples that get the same class."""


class Export(TaskSection):
    """The checked SavedModel, published as a new version."""

    model: str = fixed_field(..., SAME_FOR_ALL_RUNS, pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    """The model's name in the registry."""
    tolerance: float = advanced_field(1e-4, gt=0, le=1)
    """The largest difference of a probability at which two models count as the same."""
    box_agreement: float = advanced_field(0.95, ge=0, le=1)
    """The smallest allowed share of test images that get the same boxes, for a detector in another
    format than `saved_model`."""
    formats: list[FormatName] = advanced_field(["saved_model"])
    """The published formats. `saved_model` is always one of them. `onnx` needs
    the extra `onnx`. Each is checked against the trained model."""
    int8: Int8 = advanced_field(Int8())
    """Settings of `tflite_int8`, and how far it may be from the trained model."""
    card: dict[str, str] = advanced_field({})
    """Texts of the model card that only a person can give, by heading: `Intended use`,
    `Limitations`, `Contact`, or others."""
    registry: str | None = fixed_field(
        None, SAME_FOR_ALL_RUNS, is_path=True, is_operational=True, is_advanced=True
    )
    """The location where versions are published: a folder, or a URI in an object store such as
    s3://bucket/models. Null is models/ below storage.root."""
    shared_with: list[str] = fixed_field(
        [], "it decides whose models a run may replace", is_operational=True, is_advanced=True
    )
    """Other pipelines that publish this model, too. A champion of a pipeline that is neither this
    one nor among them is not compared with, trained from or replaced. A renamed pipeline lists its
    earlier name."""
    keep_versions: int | None = operational_field(None, ge=1, is_advanced=True)
    """Number of newest versions that stay after a publication. Null keeps all. A version that an
    alias names always stays."""

    @field_validator("formats")
    @classmethod
    def _validate_formats(cls, value: list[FormatName]) -> list[FormatName]:
        if "saved_model" not in value or len(set(value)) < len(value):
            raise ValueError(f"must name saved_model, and nothing twice, got {value}")
        return value

    @field_validator("registry")
    @classmethod
    def _validate_registry(cls, value: str | None) -> str | None:
        check_no_credentials(value or "")
        if value is not None and is_remote(value) and value.partition("://")[0] not in SCHEMES:
            raise ValueError(
                "must be a folder, "
                f"or begin with {' or '.join(f'{scheme}://' for scheme in SCHEMES)}, got {value}. "
                "Other stores are not known to support conditional puts."
            )
        return value
