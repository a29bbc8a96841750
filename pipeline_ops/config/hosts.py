"""The hosts of a gang: `hosts/<name>.yaml` next to the pipelines, named by `train.hosts`.

A hosts file describes where and how a training runs. Fields that select the code that runs there
are in the training's fingerprint (`Hosts.code_digests`). The others cannot change the result. The
storage root must be the same path on all hosts, on a file system that they share, or a bucket.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from pipeline_ops.config.base import Section, config_field, get_declarations
from pipeline_ops.config.train import Train
from pipeline_ops.config.train_options import HOSTS_NAME_PATTERN
from pipeline_ops.config.validation import validate_section
from pipeline_ops.config.yaml_source import ConfigText, suggest_name
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.digest import compute_digest


class Hosts(Section):
    """The fields that all launchers have in common."""

    launcher: str
    python: str | None = config_field(None, selects_program=True)
    """The interpreter on the hosts. Null is the same path as on this machine."""
    code: str | None = config_field(None, selects_program=True)
    """The folder on the hosts that holds `pipeline_ops/`, with the same code as on this machine.
    Null is the same path as on this machine."""
    environment: dict[str, str] = config_field({}, selects_program=True)
    """Environment variables of every process of the gang."""
    network: Literal["trusted"] | None = None
    """`trusted`: Everyone who reaches the ports of these hosts may read and change the training.

    Workers on several hosts talk to each other unencrypted, and TensorFlow's servers (parameter
    servers, GPUs) ask for no credentials. Without it, a gang stays on one host and opens no port.
    """
    first_port: int | None = Field(None, ge=1024, le=65535)
    """The first of the ports that a firewall lets through, up to `last_port`. Null is any free
    port."""
    last_port: int | None = Field(None, ge=1024, le=65535)

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
        selected = {
            name: getattr(self, name)
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


class LocalHosts(Hosts):
    """This machine, with settings of its own."""

    launcher: Literal["local"]
    workers: int = Field(1024, ge=1, le=1024)
    """Number of workers that it can take."""
    cores: int | None = Field(None, ge=1)
    """Number of cores that its workers share. Null is all of its cores."""

    @property
    def capacity(self) -> int:
        return self.workers

    @property
    def num_hosts(self) -> int:
        return 1


class SshHost(Section):
    """One machine that is reached by ssh."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """The name for ssh and in messages."""
    address: str | None = None
    """The address for the other hosts, for example in a faster network. Null is the name."""
    workers: int = Field(1, ge=1, le=256)
    cores: int | None = Field(None, ge=1)
    """Number of cores that its workers share. Null is all of its cores."""


class SshHosts(Hosts):
    """Machines that are reached by ssh, without a password and with known host keys."""

    launcher: Literal["ssh"]
    hosts: list[SshHost] = Field(min_length=1)
    user: str | None = None
    port: int | None = Field(None, ge=1, le=65535)
    identity_file: str | None = None
    known_hosts: str | None = None
    """The known_hosts file. Null is the user's own. A host whose key is not in it is refused."""
    jump: list[str] = []
    """Hosts to go through, in order, such as `user@gateway:22`."""
    config_file: str | None = config_field(None, selects_program=True)
    """A separate ssh_config file."""
    connect_timeout_seconds: int = Field(5, ge=1, le=300)

    @model_validator(mode="after")
    def _validate_names(self) -> SshHosts:
        names = [host.name for host in self.hosts]
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            raise ValueError(f"hosts must have different names, got {', '.join(duplicates)} twice")
        return self

    @property
    def capacity(self) -> int:
        return sum(host.workers for host in self.hosts)

    @property
    def num_hosts(self) -> int:
        return len(self.hosts)


class SlurmHosts(Hosts):
    """Nodes that Slurm allocates for the training and takes back after it."""

    launcher: Literal["slurm"]
    nodes: int = Field(ge=1, le=1024)
    min_nodes: int | None = Field(None, ge=1, le=1024)
    """The smallest number of nodes to start with if there are no more. Null is all of `nodes`."""
    workers_per_node: int = Field(1, ge=1, le=256)
    cores_per_node: int | None = Field(None, ge=1)
    partition: str | None = None
    account: str | None = None
    time_limit: str | None = None
    """The time limit in the format of sbatch, such as `2-00:00:00`. Null is that of the
    partition."""
    arguments: list[str] = config_field([], selects_program=True)
    """Further options of sbatch, such as `--gres=gpu:4` or `--exclusive`."""
    queue_timeout_seconds: int = Field(24 * 3600, ge=1)
    """Time to wait in the queue before the task is tried again."""

    @property
    def capacity(self) -> int:
        return self.nodes * self.workers_per_node

    @property
    def num_hosts(self) -> int:
        return self.nodes


class Volume(Section):
    """A persistent volume claim that all pods share. It must hold the storage root."""

    claim: str
    mount: str


class KubernetesHosts(Hosts):
    """Pods of an Indexed Job, which the launcher creates for the training and deletes after it."""

    launcher: Literal["kubernetes"]
    image: str = config_field(..., selects_program=True)
    """The container image. It must have this project's code and packages."""
    pods: int = Field(ge=1, le=1024)
    workers_per_pod: int = Field(1, ge=1, le=64)
    namespace: str = "default"
    volumes: list[Volume] = Field(min_length=1)
    cpus: str = "1"
    memory: str = "4Gi"
    gpus: int = Field(0, ge=0, le=64)
    service_account: str | None = None
    node_selector: dict[str, str] = {}
    image_pull_secrets: list[str] = []
    context: str | None = None
    """The context of kubectl. Null is the current one."""

    @property
    def capacity(self) -> int:
        return self.pods * self.workers_per_pod

    @property
    def num_hosts(self) -> int:
        return self.pods


_LAUNCHERS: Mapping[str, type[Hosts]] = {
    "local": LocalHosts,
    "ssh": SshHosts,
    "slurm": SlurmHosts,
    "kubernetes": KubernetesHosts,
}


def load_hosts(folder: Path, name: str) -> Hosts:
    """Reads and checks a hosts file.

    Raises:
      ConfigError: the file is wrong or does not exist. The message has a line for each problem, or
        the nearest name.
    """
    if not re.fullmatch(HOSTS_NAME_PATTERN, name):
        raise ConfigError(
            f"train.hosts: {name!r} must be the name of a file in {folder}, "
            "without a folder and without .yaml"
        )
    file = folder / f"{name}.yaml"
    if not file.exists():
        known = sorted(path.stem for path in folder.glob("*.yaml"))
        raise ConfigError(
            f"train.hosts: there is no {file}; "
            + (suggest_name(name, known) if known else f"{folder} has no hosts files")
        )
    text = ConfigText.read(file)
    launcher = text.values.get("launcher")
    model = _LAUNCHERS.get(launcher) if isinstance(launcher, str) else None
    if model is None:
        raise ConfigError(
            f"{text.locate(['launcher'])}: launcher must be one of {', '.join(_LAUNCHERS)}, "
            f"got {launcher!r}; {suggest_name(str(launcher), _LAUNCHERS)}"
        )
    return validate_section(model, text)


def parse_hosts(values: Mapping[str, Any]) -> Hosts:
    """Returns the hosts in a request."""
    return _LAUNCHERS[values["launcher"]].model_validate(values)
