"""The hosts of a gang or of a job: `hosts/<name>.yaml` next to the pipelines.

`train.hosts` names the hosts of a gang, and `runs_on` of any task those that its job runs on. A
hosts file describes where and how something runs. Fields that select the code that runs there are
in the fingerprint (`Hosts.code_digests`). The others cannot change the result. The storage root
must be the same path on all hosts, on a file system that they share, or a bucket.

Each kind of hosts is a file in `places/`, with its section. It is found by the name of its
launcher, here or among the entry points `trainyard.places` of installed packages.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from pydantic import Field, field_validator, model_validator

from pipeline_ops.config.fields import FieldError, Section, config_field, get_declarations
from pipeline_ops.config.reading import ConfigText, suggest_name
from pipeline_ops.config.train import HOSTS_NAME_PATTERN, Train
from pipeline_ops.config.validation import validate_section
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.checksums import compute_digest

ENTRY_POINTS = "trainyard.places"
_CATALOGUE: Mapping[str, str] = {
    "local": "pipeline_ops.places.local:LocalHosts",
    "ssh": "pipeline_ops.places.ssh:SshHosts",
    "container": "pipeline_ops.places.container:ContainerHosts",
    "slurm": "pipeline_ops.places.slurm:SlurmHosts",
    "kubernetes": "pipeline_ops.places.kubernetes:KubernetesHosts",
    "tf_config": "pipeline_ops.places.tf_config:TfConfigHosts",
}
_REFERENCE = re.compile(r"(?:^|[:=/,;\s])(\$[A-Z_][A-Z0-9_]*|\$\{\w+\})(?=$|[:/,;\s])")
"""Another variable as a part of a value, as a shell replaces it."""
_OTHER_NAMES = {"docker": "container", "k8s": "kubernetes"}


class Hosts(Section):
    """The fields that all launchers have in common.

    A launcher derives from its subclass `places.place.PlaceSection`.
    """

    is_this_host: ClassVar[bool] = False
    """Whether processes run on the host of the process that starts them."""

    launcher: str
    """The kind of hosts."""
    python: str | None = config_field(None, is_path=True, selects_program=True)
    """The interpreter on the hosts. Null is the same path as on this machine, and in an image its
    `python`. With launcher `local`, the interpreter of a job instead of Airflow's: it needs the
    packages of the job, and no Airflow."""
    code: str | None = config_field(None, is_path=True, selects_program=True)
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

    @field_validator("python", "code")
    @classmethod
    def _validate_program(cls, value: str | None) -> str | None:
        if value and value.startswith("~") and not cls.is_this_host:
            raise ValueError(f"must not begin with ~, which is not replaced there, got {value!r}")
        return value

    @field_validator("environment")
    @classmethod
    def _validate_environment(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not name or re.search(r"[=\s\0]", name):
                raise ValueError(f"{name!r} can't be the name of a variable. Correct it.")
            if found := _REFERENCE.search(text):
                raise ValueError(
                    f"{name} has {found[1]}, and variables are not replaced in it. Write the whole "
                    f"value, got {text!r}"
                )
        return value

    @model_validator(mode="after")
    def _validate_ports(self) -> Hosts:
        if (self.first_port is None) != (self.last_port is None):
            given, other = ("first", "last") if self.first_port else ("last", "first")
            raise FieldError(f"{given}_port", f"needs {other}_port. Give both, or none of them.")
        if self.ports and self.ports[0] > self.ports[1]:
            raise FieldError(
                "first_port",
                f"must not be above last_port, got {self.first_port} and {self.last_port}",
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
    def num_hosts(self) -> int:
        return 1

    @property
    def capacity(self) -> int:
        """The number of workers that all hosts can take."""
        raise NotImplementedError

    @property
    def num_gpus(self) -> int:
        """The number of GPUs that each host is asked for. 0 if the hosts file names none."""
        return 0

    def validate_gang(self, train: Train, location: str) -> None:
        """Raises ConfigError if the gang can never run on these hosts."""
        is_alone = train.effective_max_workers == 1 and train.strategy != "parameter_server"
        if self.num_hosts > 1 and not is_alone and self.network != "trusted":
            raise ConfigError(
                f"{location}: train.hosts: {train.hosts} has {self.num_hosts} hosts, "
                "and their workers talk unencrypted, and in part without credentials. "
                f"Write `network: trusted` into hosts/{train.hosts}.yaml "
                "if only trusted people reach the hosts' ports, or train on one host"
                + (
                    ", which is all that `network: isolated` can be for"
                    * (self.network is not None)
                )
            )
        if self.capacity < train.effective_min_workers:
            raise ConfigError(
                f"{location}: train.hosts: {train.hosts} can take {self.capacity} workers, "
                f"and the gang has at least {train.effective_min_workers} "
                f"(train.{'min_workers' if train.min_workers else 'workers'}). "
                "Add hosts, or lower it."
            )

    def find_job_problems(self, task: str, file: str, gang: Hosts | None) -> Iterator[str]:
        """Yields why the job of a task can't run on these hosts, each with its cure.

        Args:
          task: the task whose `runs_on` names these hosts.
          file: the name of their file, for messages.
          gang: the hosts of `train.hosts`, or None.
        """
        yield from ()

    def find_folder_problem(self, folder: Path) -> str:
        """Explains why an absolute folder of Airflow's host is not the same one there.

        Returns the text behind the folder in a sentence, with the cure. Empty if it may be the
        same.
        """
        return ""


def list_launchers() -> list[str]:
    """The names of all launchers: ours, and those of installed packages."""
    return [*_CATALOGUE, *sorted(find_entry_points().keys() - _CATALOGUE)]


def find_sections() -> tuple[dict[str, type[Hosts]], dict[str, str]]:
    """The sections of all launchers by name, and why those of other packages can't be used."""
    found, problems = {}, {}
    for launcher in list_launchers():
        try:
            found[launcher] = find_section(launcher)
        except ConfigError as error:
            problems[launcher] = str(error)
    return found, problems


def find_section(launcher: str) -> type[Hosts]:
    """Returns the section of a launcher. Raises ConfigError if its package can't be used."""
    target, *others = [_CATALOGUE[launcher]] if launcher in _CATALOGUE else _list_targets(launcher)
    if others:
        raise ConfigError(
            f"launcher {launcher}: several packages have an entry point of this name "
            f"({ENTRY_POINTS}): {', '.join([target, *others])}. Remove all but one of them."
        )
    module, _, name = target.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise ConfigError(
            f"launcher {launcher}: its entry point {target} ({ENTRY_POINTS}) can't be imported: "
            f"{type(error).__name__}: {error}. Correct or remove the package that has it."
        ) from error
    if not (isinstance(found, type) and issubclass(found, Hosts)):
        raise ConfigError(
            f"launcher {launcher}: its entry point {target} ({ENTRY_POINTS}) must be a class that "
            "derives from pipeline_ops.places.place.PlaceSection"
        )
    if (own := get_args(found.model_fields["launcher"].annotation)) != (launcher,):
        raise ConfigError(
            f"launcher {launcher}: the class {target} of its entry point ({ENTRY_POINTS}) has "
            f"launcher: Literal[{', '.join(map(repr, own))}]. Give both the same name."
        )
    return found


def _is_known(launcher: str) -> bool:
    return launcher in _CATALOGUE or launcher in find_entry_points()


def _list_targets(launcher: str) -> list[str]:
    return sorted(find_entry_points().get(launcher, ()))


@functools.cache  # reads the metadata of all installed packages
def find_entry_points() -> dict[str, set[str]]:
    """The classes of installed packages, as `module:class` by launcher."""
    targets: dict[str, set[str]] = {}
    for each in importlib.metadata.entry_points(group=ENTRY_POINTS):
        targets.setdefault(each.name, set()).add(each.value)
    return targets


def load_hosts(folder: Path, name: str, key: str = "train.hosts") -> Hosts:
    """Reads and checks the file `name` in the folder `hosts/`, which a key of the config names.

    Raises ConfigError if the file is wrong or does not exist, with a line for each problem, or the
    nearest name. `key` is for messages, with its file and line if they are known.
    """
    if not re.fullmatch(HOSTS_NAME_PATTERN, name):
        raise ConfigError(
            f"{key}: {name!r} must be the name of a file in {folder}, "
            "without a folder and without .yaml"
        )
    file = folder / f"{name}.yaml"
    if not file.exists():
        known = sorted(path.stem for path in folder.glob("*.yaml"))
        hint = suggest_name(name, known) if known else f"{folder} has no hosts files"
        if name.endswith((".yaml", ".yml")):
            stem, _, suffix = name.rpartition(".")
            hint = f"write it without .{suffix}: {stem}"
        raise ConfigError(f"{key}: there is no {file}; {hint}")
    text = ConfigText.read(file)
    launcher = text.values.get("launcher")
    if not isinstance(launcher, str) or not _is_known(launcher):
        where, name = text.locate(["launcher"]), str(launcher)
        rule = "required, but not given" if launcher is None else f"unknown name {launcher!r}"
        hint = suggest_name(_OTHER_NAMES.get(name, name), list_launchers())
        hint += f". No package in {sys.executable} has an entry point of this name ({ENTRY_POINTS})"
        raise ConfigError(f"{where}: launcher: {rule}; {hint}")
    return validate_section(find_section(launcher), text)


def parse_hosts(values: Mapping[str, Any]) -> Hosts:
    """Returns the hosts in a request. Raises ConfigError if this host lacks their launcher."""
    launcher = values["launcher"]
    if not _is_known(launcher):
        raise ConfigError(
            f"launcher {launcher} is not installed in {sys.executable}, and the hosts of this job "
            f"need it. Install the package with its entry point ({ENTRY_POINTS}) there, too."
        )
    return find_section(launcher).model_validate(values)
