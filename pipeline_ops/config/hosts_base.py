"""The fields that the hosts files of all launchers have in common, and their checks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from pipeline_ops.config.base import Section, config_field, get_declarations
from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.digest import compute_digest


def match_pattern(pattern: str, rule: str) -> AfterValidator:
    """A check of a whole text, whose message has a rule in words in the place of the pattern."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"must be {rule}, got {value!r}")
        return value

    return AfterValidator(check)


class Hosts(Section):
    """The fields that all launchers have in common."""

    launcher: str
    """The kind of hosts."""
    python: str | None = config_field(None, selects_program=True)
    """The interpreter on the hosts. Null is the same path as on this machine, and in an image its
    `python`."""
    code: str | None = config_field(None, selects_program=True)
    """The folder on the hosts that holds `pipeline_ops/`, with the same code as on this machine.
    Null is the same path as on this machine, and in an image the installed package."""
    environment: dict[str, str] = config_field({}, selects_program=True)
    """Environment variables of the job, or of every process of the gang."""
    network: Literal["trusted", "isolated"] | None = None
    """`trusted`: Everyone who reaches the ports of these hosts may read and change the training.

    TensorFlow's servers, by which workers reach each other, listen on all interfaces, talk
    unencrypted and ask for no credentials. `isolated`: A gang on one host runs in a network
    namespace of its own, or not at all. Null is one where the kernel allows it, and a warning
    where it does not. A gang on several hosts needs `trusted`.
    """
    first_port: int | None = Field(None, ge=1024, le=65535)
    """The first of the ports that a firewall lets through, up to `last_port`. Null is any free
    port."""
    last_port: int | None = Field(None, ge=1024, le=65535)
    """The last of these ports."""

    @model_validator(mode="after")
    def _validate_ports(self) -> Hosts:
        if (self.first_port is None) != (self.last_port is None):
            raise ValueError("first_port and last_port must be given together")
        if self.ports and self.ports[0] > self.ports[1]:
            raise ValueError(
                "first_port must not be above last_port, got "
                f"{self.first_port} and {self.last_port}"
            )
        return self

    @property
    def ports(self) -> tuple[int, int] | None:
        return (self.first_port, self.last_port) if self.first_port and self.last_port else None

    @property
    def code_digests(self) -> dict[str, str]:
        """Digests of the fields that select the hosts' code, without those at the default."""
        values = self.model_dump(mode="json")
        selected = {
            name: values[name]
            for name, field in type(self).model_fields.items()
            if get_declarations(field).get("selects_program")
        }
        return {name: compute_digest(value) for name, value in selected.items() if value}

    @property
    def capacity(self) -> int:
        """The number of workers that all hosts can take."""
        raise NotImplementedError

    @property
    def num_hosts(self) -> int:
        raise NotImplementedError

    def validate_gang(self, train: Train, location: str) -> None:
        """Raises ConfigError if the gang can never run on these hosts."""
        is_alone = train.effective_max_workers == 1 and train.strategy != "parameter_server"
        if self.num_hosts > 1 and not is_alone and self.network != "trusted":
            raise ConfigError(
                f"{location}: train.hosts: {train.hosts} has {self.num_hosts} hosts, "
                "and their workers talk unencrypted, and in part without credentials. "
                f"Write `network: trusted` into hosts/{train.hosts}.yaml "
                "if only trusted people reach the hosts' ports, or train on one host"
            )
        if self.capacity < train.effective_min_workers:
            raise ConfigError(
                f"{location}: train.hosts: {train.hosts} can take {self.capacity} workers, "
                f"and the gang has at least {train.effective_min_workers} "
                f"(train.{'min_workers' if train.min_workers else 'workers'}). "
                "Add hosts, or lower it."
            )

    @property
    def num_gpus(self) -> int:
        """The number of GPUs that each host is asked for. 0 if the hosts file names none."""
        return 0

    def find_folder_problem(self, folder: Path) -> str:
        """Explains why an absolute folder of Airflow's host is not the same one there.

        Returns the text behind the folder in a sentence, with the cure. Empty if it may be the
        same.
        """
        return ""


_UNITS = {"": 1} | {
    f"{letter}{suffix}": factor**power
    for suffix, factor in (("", 1000), ("i", 1024))
    for power, letter in enumerate("kMGT" if not suffix else "KMGT", start=1)
}


_MIN_CORES = 0.001
_MIN_MEMORY = "64Mi"
"""No job starts with less."""


def _count_cores(cpu: str) -> float:
    return float(cpu[:-1]) / 1000 if cpu.endswith("m") else float(cpu)


def _count_bytes(memory: str) -> int:
    number = memory.rstrip("KMGTki")
    return int(float(number) * _UNITS[memory.removeprefix(number)])


def _parse_cpu(value: Any) -> str:
    """Reads a number as in Kubernetes, where `cpu: 4` and `cpu: "4"` are the same."""
    text = str(value)
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?|[0-9]+m", text) or _count_cores(text) < _MIN_CORES:
        raise ValueError(
            f"must be a number of cores, at least 1m, such as 4, 0.5 or 500m, got {value!r}"
        )
    return text


def _parse_memory(value: Any) -> str:
    is_text = isinstance(value, str) and re.fullmatch(
        r"[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?", value
    )
    if not is_text or _count_bytes(value) < _count_bytes(_MIN_MEMORY):
        raise ValueError(
            f"must be a number with Ki, Mi, Gi, Ti, k, M, G or T, such as 8Gi, and at least "
            f"{_MIN_MEMORY}, got {value!r}"
        )
    return str(value)


Cpu = Annotated[str, BeforeValidator(_parse_cpu)]
Memory = Annotated[str, BeforeValidator(_parse_memory)]


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
        return None if self.cpu is None else _count_cores(self.cpu)

    @property
    def memory_bytes(self) -> int | None:
        """`memory` as a number."""
        return None if self.memory is None else _count_bytes(self.memory)
