"""The hosts of a gang or of a job: `hosts/<name>.yaml` next to the pipelines.

`train.hosts` names the hosts of a gang, and `runs_on` of any task those that its job runs on. A
hosts file describes where and how something runs. Fields that select the code that runs there are
in the fingerprint (`Hosts.code_digests`). The others cannot change the result. The storage root
must be the same path on all hosts, on a file system that they share, or a bucket.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from pipeline_ops.config.base import Section, config_field
from pipeline_ops.config.hosts_base import Hosts
from pipeline_ops.config.hosts_clusters import ContainerHosts, KubernetesHosts, SlurmHosts
from pipeline_ops.config.train_options import HOSTS_NAME_PATTERN
from pipeline_ops.config.validation import validate_section
from pipeline_ops.config.yaml_source import ConfigText, suggest_name
from pipeline_ops.errors import ConfigError


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
    """The address for the other hosts of a gang, for example in a faster network. Null is the
    name."""
    workers: int = Field(1, ge=1, le=256)
    """Number of a gang's workers that it can take."""
    cores: int | None = Field(None, ge=1)
    """Number of cores that a gang's workers share there. Null is all of its cores."""


class SshHosts(Hosts):
    """Machines that are reached by ssh, without a password and with known host keys."""

    launcher: Literal["ssh"]
    hosts: list[SshHost] = Field(min_length=1)
    user: str | None = None
    """The user to log in as. Null is that of the ssh configuration."""
    port: int | None = Field(None, ge=1, le=65535)
    """The port of the ssh servers. Null is that of the ssh configuration."""
    identity_file: str | None = None
    """The file of the private key. Null is the user's own."""
    known_hosts: str | None = None
    """The known_hosts file. Null is the user's own. A host whose key is not in it is refused."""
    jump: list[str] = []
    """Hosts to go through, in order, such as `user@gateway:22`."""
    config_file: str | None = config_field(None, selects_program=True)
    """A separate ssh_config file."""
    connect_timeout_seconds: int = Field(5, ge=1, le=300)
    """Time after which a host that does not answer counts as unreachable."""

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


LAUNCHERS: Mapping[str, type[Hosts]] = {
    "local": LocalHosts,
    "ssh": SshHosts,
    "container": ContainerHosts,
    "slurm": SlurmHosts,
    "kubernetes": KubernetesHosts,
}
_OTHER_NAMES = {"docker": "container", "k8s": "kubernetes"}


def load_hosts(folder: Path, name: str, key: str = "train.hosts") -> Hosts:
    """Reads and checks the hosts file that a key of the config names.

    Args:
      folder: the folder `hosts/`.
      name: the file's name, without `.yaml`.
      key: the key for messages, with its file and line if they are known.

    Raises:
      ConfigError: the file is wrong or does not exist. The message has a line for each problem, or
        the nearest name.
    """
    if not re.fullmatch(HOSTS_NAME_PATTERN, name):
        raise ConfigError(
            f"{key}: {name!r} must be the name of a file in {folder}, "
            "without a folder and without .yaml"
        )
    file = folder / f"{name}.yaml"
    if not file.exists():
        known = sorted(path.stem for path in folder.glob("*.yaml"))
        raise ConfigError(f"{key}: there is no {file}; {_suggest_file(name, folder, known)}")
    text = ConfigText.read(file)
    launcher = text.values.get("launcher")
    model = LAUNCHERS.get(launcher) if isinstance(launcher, str) else None
    if model is None:
        where, name = text.locate(["launcher"]), str(launcher)
        rule = "required, but not given" if launcher is None else f"unknown name {launcher!r}"
        hint = suggest_name(_OTHER_NAMES.get(name, name), LAUNCHERS)
        raise ConfigError(f"{where}: launcher: {rule}; {hint}")
    return validate_section(model, text)


def _suggest_file(name: str, folder: Path, known: list[str]) -> str:
    if name.endswith((".yaml", ".yml")):
        return f"write it without .yaml: {name.rpartition('.')[0]}"
    return suggest_name(name, known) if known else f"{folder} has no hosts files"


def parse_hosts(values: Mapping[str, Any]) -> Hosts:
    """Returns the hosts in a request."""
    return LAUNCHERS[values["launcher"]].model_validate(values)
