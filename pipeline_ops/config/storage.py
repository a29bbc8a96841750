"""`storage` of a pipeline config: where everything lies, and how long it stays there."""

from __future__ import annotations

from pydantic import Field, field_validator

from pipeline_ops.config.fields import SAME_FOR_ALL_RUNS, Section, fixed_field
from pipeline_ops.storage.local_files import parse_relative_path
from pipeline_ops.storage.open_store import check_no_credentials
from pipeline_ops.storage.store_options import SCHEMES


class Keep(Section):
    """The rules for what stays below the storage root.

    The inputs of published versions and of the next run stay as well.
    """

    runs: int = Field(30, ge=1)
    """Number of newest successful runs that stay, with their logs and artifacts."""
    days: int = Field(30, ge=0)
    """Days after its last activity for which any other run stays, with its logs and artifacts."""
    datasets: int | None = Field(None, ge=1)
    """Number of newest data sets of these runs that stay. Null keeps all of them."""


class Storage(Section):
    """The location of artifacts, runs and models."""

    root: str = fixed_field("../.trainyard", SAME_FOR_ALL_RUNS, is_path=True)
    """A folder that all hosts share, or a URI in a bucket: s3://, gs:// or az://bucket/folder. The
    bucket's credentials come from `connection`, or from the environment."""
    endpoint: str | None = fixed_field(None, SAME_FOR_ALL_RUNS, is_advanced=True)
    """The URL of a store that is compatible with S3 or Azure. Null is the cloud's own."""
    ca_file: str | None = fixed_field(None, SAME_FOR_ALL_RUNS, is_path=True, is_advanced=True)
    """A PEM file with the certificates that sign the endpoint's own. Null is the system's."""
    connection: str | None = fixed_field(
        None, SAME_FOR_ALL_RUNS, pattern=r"^[A-Za-z0-9_.-]{1,200}$", is_advanced=True
    )
    """An Airflow connection with the bucket's credentials, such as aws_default. Null takes them
    from the environment."""
    keep: Keep | None = fixed_field(None, SAME_FOR_ALL_RUNS, is_advanced=True)
    """What `trainyard gc` leaves. Null keeps every run and every artifact."""

    @field_validator("root")
    @classmethod
    def _validate_root(cls, value: str) -> str:
        scheme, separator, rest = check_no_credentials(value).partition("://")
        if separator:
            if scheme not in SCHEMES:
                raise ValueError(
                    "must be a folder, or a URI that begins with "
                    f"{', '.join(f'{each}://' for each in SCHEMES)}, got {value}"
                )
            parse_relative_path(rest.rstrip("/"))
        return value

    @field_validator("endpoint")
    @classmethod
    def _validate_endpoint(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError(f"must begin with https:// or http://, got {value}")
        return None if value is None else check_no_credentials(value)
