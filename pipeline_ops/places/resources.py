"""The resources of a container or pod, and forms of text that sections of places share."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from pipeline_ops.config.fields import Section


def match_pattern(pattern: str, rule: str) -> AfterValidator:
    """Checks a string against a pattern. The error message states the rule in words."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"must be {rule}, got {value!r}")
        return value

    return AfterValidator(check)


_UNITS = {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def _parse_quantity(text: str) -> float:
    """Reads a number with a unit of Kubernetes."""
    number = text.rstrip("KMGTkim")
    return float(number) * _UNITS[text.removeprefix(number)]


def _quantity(pattern: str, least: str, rule: str) -> BeforeValidator:
    """A check as in Kubernetes, where `cpu: 4` and `cpu: "4"` are the same."""

    def check(value: Any) -> str:
        text = str(value)
        if not re.fullmatch(pattern, text) or _parse_quantity(text) < _parse_quantity(least):
            raise ValueError(f"must be {rule}, got {value!r}")
        return text

    return BeforeValidator(check)


_TEXT_OR_NUMBER = WithJsonSchema({"type": ["string", "number"]})
Cpu = Annotated[
    str,
    _quantity(
        r"[0-9]+(\.[0-9]+)?|[0-9]+m", "1m", "a number of cores, at least 1m, such as 4, 0.5 or 500m"
    ),
    _TEXT_OR_NUMBER,
]
Memory = Annotated[
    str,
    _quantity(
        r"[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?",
        "64Mi",
        "a number with Ki, Mi, Gi, Ti, k, M, G or T, such as 8Gi, and at least 64Mi",
    ),
    _TEXT_OR_NUMBER,
]


class Resources(Section):
    """The resources of a container or pod. A job that needs more memory is killed and retried."""

    cpu: Cpu | None = None
    """Number of cores: `4`, `0.5` or `500m`. Null is no limit."""
    memory: Memory | None = None
    """Bytes of memory, such as `8Gi`. Null is no limit."""
    gpus: int = Field(0, ge=0, le=64)
    """Number of NVIDIA GPUs."""

    @property
    def num_cores(self) -> float | None:
        """`cpu` as a number."""
        return None if self.cpu is None else _parse_quantity(self.cpu)

    @property
    def memory_bytes(self) -> int | None:
        """`memory` as a number."""
        return None if self.memory is None else int(_parse_quantity(self.memory))

    @property
    def num_gpus(self) -> int:
        return self.gpus


def describe_volume_cure(form: str) -> str:
    return (
        f"Use a URI such as s3://bucket/folder, or write {form} into the hosts file, which "
        "mounts it at the same path"
    )
