"""`preprocess.source` with a type of the user's own.

    source: {type: "patients:patients", path: ../data, min_age: 18}    a file next to the YAML
    source: {type: my_package.my_module:patients, path: ../data}       an installed package
    source: {type: patients, path: ../data}                            an entry point

All keys besides `type`, `path` and `class_names` are parameters, which the source itself checks
(`beam_jobs/sources/user_source.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, get_args

from pydantic import Field, Tag, model_validator

from pipeline_ops.config.entry_points import find_module_path
from pipeline_ops.config.source_base import AnnotatedSource
from pipeline_ops.config.sources import AnySource

ENTRY_POINT_GROUP = "trainyard.sources"
"""The group of entry points in which sources are published."""
CATALOGUE_TAG, _USER_TAG = "catalogue", "user"
CATALOGUE_TYPES = frozenset(
    name
    for member in get_args(AnySource)
    for name in get_args(member.model_fields["type"].annotation)
)


class UserSource(AnnotatedSource):
    """A function of the user's own that finds images and their annotations."""

    type: str = Field(pattern=r"^([A-Za-z_]\w*(\.[A-Za-z_]\w*)*:)?[A-Za-z_]\w*$")
    """For a source of your own: `module:function`, with the module next to the YAML or in an
    installed package, or the name of an entry point in the group `trainyard.sources`."""
    parameters: dict[str, Any] = {}
    """Parameters of a source of your own. They may also stand next to `type`."""

    @model_validator(mode="before")
    @classmethod
    def _collect_parameters(cls, value: Any) -> Any:
        """Reads the short form of YAML, with the parameters next to `type`."""
        if not isinstance(value, dict) or "parameters" in value:
            return value
        own = {name: value[name] for name in value if name not in cls.model_fields}
        return {name: value[name] for name in value if name not in own} | {"parameters": own}


def select_source_tag(value: Any) -> str:
    """Returns the tag of the section that reads a source: that of the catalogue, or UserSource."""
    name = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    is_own = isinstance(name, str) and name not in CATALOGUE_TYPES and bool(_find_path(name))
    return _USER_TAG if is_own else CATALOGUE_TAG


def _find_path(name: str) -> str | None:
    return find_module_path(ENTRY_POINT_GROUP, name)


CatalogueOrUserSource = (
    Annotated[Annotated[AnySource, Field(discriminator="type")], Tag(CATALOGUE_TAG)]
    | Annotated[UserSource, Tag(_USER_TAG)]
)
