"""The hosts that a gang may run on: `hosts/<name>.yaml` beside the pipelines, named by `train.hosts`.

A hosts file says where and how a training runs. Fields that select the code that runs there are in the training's
fingerprint (`Hosts.program`); the others cannot change what comes out. The storage root must be the same path on all
hosts, on a file system that they share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from pipeline_ops.config.base import Section, declared
from pipeline_ops.config.train import Train
from pipeline_ops.config.train_options import HOSTS_NAME
from pipeline_ops.config.validation import checked
from pipeline_ops.config.yaml_source import ConfigText, nearest
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.digest import digest_of


class Hosts(Section):
    """What all launchers have in common."""

    launcher: str
    python: str | None = declared(None, selects_program=True)
    """The interpreter on the hosts; null: the same path as here."""
    code: str | None = declared(None, selects_program=True)
    """The folder on the hosts that holds `pipeline_ops/`; null: the same path as here. It must be the same code."""
    environment: dict[str, str] = declared({}, selects_program=True)
    """For every process of the gang."""
    network: Literal["trusted"] | None = None
    """`trusted`: Everyone who reaches the ports of these hosts may read and change the training.

    Workers on several hosts talk to each other unencrypted, and TensorFlow's servers (parameter
    servers, GPUs) ask for no credentials. Without it, a gang stays on one host and opens no port.
    """
    first_port: int | None = Field(None, ge=1024, le=65535)
    """With last_port: the ports that a firewall lets through. Null: any that is free."""
    last_port: int | None = Field(None, ge=1024, le=65535)

    @model_validator(mode="after")
    def _whole_range(self) -> Hosts:
        if (self.first_port is None) != (self.last_port is None):
            raise ValueError("first_port and last_port must be given together")
        if self.ports and self.ports[0] > self.ports[1]:
            raise ValueError(f"first_port must not be above last_port, got {self.first_port} and {self.last_port}")
        return self

    @property
    def ports(self) -> tuple[int, int] | None:
        return (self.first_port, self.last_port) if self.first_port and self.last_port else None

    @property
    def program(self) -> dict[str, str]:
        """Digests of the fields that select the code which the hosts run, without those that are left at their default."""
        chosen = {name: getattr(self, name) for name, field in type(self).model_fields.items()
                  if (field.json_schema_extra or {}).get("selects_program")}
        return {name: digest_of(value) for name, value in chosen.items() if value}

    @property
    def capacity(self) -> int:
        """How many workers all hosts can take."""
        raise NotImplementedError

    @property
    def num_hosts(self) -> int:
        raise NotImplementedError

    def refuse_misfit(self, train: Train, place: str) -> None:
        """Raises ConfigError if the gang can never run on these hosts."""
        is_alone = train.most_workers == 1 and train.strategy != "parameter_server"
        if self.num_hosts > 1 and not is_alone and self.network != "trusted":
            raise ConfigError(
                f"{place}: train.hosts: {train.hosts} has {self.num_hosts} hosts, and their workers would talk over a network that is not "
                f"said to be trusted: unencrypted, and in part without credentials. Write `network: trusted` into hosts/{train.hosts}.yaml "
                "if only trusted people reach the hosts' ports, or train on one host")
        if self.capacity < train.fewest_workers:
            raise ConfigError(f"{place}: train.hosts: {train.hosts} has room for {self.capacity} workers, and the gang has at least "
                              f"{train.fewest_workers} (train.{'min_workers' if train.min_workers else 'workers'}); add hosts or lower it")


class LocalHosts(Hosts):
    """This machine, with more to say about it than nothing."""

    launcher: Literal["local"]
    workers: int = Field(1024, ge=1, le=1024)
    """How many workers it can take."""
    cores: int | None = Field(None, ge=1)
    """What its workers share; null: all that it has."""

    @property
    def capacity(self) -> int:
        return self.workers

    @property
    def num_hosts(self) -> int:
        return 1


class SshHost(Section):
    """One machine that is reached by ssh."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """As ssh knows it, and in messages."""
    address: str | None = None
    """Where the other hosts reach it, for example in a faster network; null: its name."""
    workers: int = Field(1, ge=1, le=256)
    cores: int | None = Field(None, ge=1)
    """What its workers share; null: all that it has."""


class SshHosts(Hosts):
    """Machines that are reached by ssh, without a password and with known host keys."""

    launcher: Literal["ssh"]
    hosts: list[SshHost] = Field(min_length=1)
    user: str | None = None
    port: int | None = Field(None, ge=1, le=65535)
    identity_file: str | None = None
    known_hosts: str | None = None
    """Null: the user's own. A host whose key is not in it is refused."""
    jump: list[str] = []
    """Hosts to go through, in order: `user@gateway:22`."""
    config_file: str | None = declared(None, selects_program=True)
    """An ssh_config of its own."""
    connect_timeout_seconds: int = Field(5, ge=1, le=300)

    @model_validator(mode="after")
    def _different(self) -> SshHosts:
        names = [host.name for host in self.hosts]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"hosts must have different names, got {', '.join(twice)} twice")
        return self

    @property
    def capacity(self) -> int:
        return sum(host.workers for host in self.hosts)

    @property
    def num_hosts(self) -> int:
        return len(self.hosts)


class SlurmHosts(Hosts):
    """Nodes that Slurm allocates for the training, and takes back after it."""

    launcher: Literal["slurm"]
    nodes: int = Field(ge=1, le=1024)
    min_nodes: int | None = Field(None, ge=1, le=1024)
    """Content with so few, if there are no more; null: all of `nodes`."""
    workers_per_node: int = Field(1, ge=1, le=256)
    cores_per_node: int | None = Field(None, ge=1)
    partition: str | None = None
    account: str | None = None
    time_limit: str | None = None
    """As sbatch understands it: `2-00:00:00`. Null: that of the partition."""
    arguments: list[str] = declared([], selects_program=True)
    """More options of sbatch, as `--gres=gpu:4` or `--exclusive`."""
    queue_timeout_seconds: int = Field(24 * 3600, ge=1)
    """How long to wait in the queue before the task is tried again."""

    @property
    def capacity(self) -> int:
        return self.nodes * self.workers_per_node

    @property
    def num_hosts(self) -> int:
        return self.nodes


class Volume(Section):
    """A persistent volume claim that all pods share: it must hold the storage root."""

    claim: str
    mount: str


class KubernetesHosts(Hosts):
    """Pods of an Indexed Job, which the launcher creates for the training and deletes after it."""

    launcher: Literal["kubernetes"]
    image: str = declared(..., selects_program=True)
    """It must have this project's code and packages."""
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
    """Of kubectl; null: the current one."""

    @property
    def capacity(self) -> int:
        return self.pods * self.workers_per_pod

    @property
    def num_hosts(self) -> int:
        return self.pods


_KINDS: Mapping[str, type[Hosts]] = {"local": LocalHosts, "ssh": SshHosts, "slurm": SlurmHosts, "kubernetes": KubernetesHosts}


def load_hosts(folder: Path, name: str) -> Hosts:
    """Reads and checks a hosts file.

    Raises:
      ConfigError: with a line for each thing that is wrong, or with the nearest name if there is no such file.
    """
    if not re.fullmatch(HOSTS_NAME, name):
        raise ConfigError(f"train.hosts: {name!r} must be the name of a file in {folder}, without a folder and without .yaml")
    file = folder / f"{name}.yaml"
    if not file.exists():
        known = sorted(path.stem for path in folder.glob("*.yaml"))
        raise ConfigError(f"train.hosts: there is no {file}; " + (nearest(name, known) if known else f"{folder} has no hosts files"))
    text = ConfigText.read(file)
    launcher = text.values.get("launcher")
    if launcher not in _KINDS:
        raise ConfigError(f"{text.place(['launcher'])}: launcher must be one of {', '.join(_KINDS)}, got {launcher!r}; "
                          f"{nearest(str(launcher), _KINDS)}")
    return checked(_KINDS[launcher], text)


def parse_hosts(values: Mapping[str, Any]) -> Hosts:
    """Hosts as a request carries them."""
    return _KINDS[values["launcher"]].model_validate(values)
