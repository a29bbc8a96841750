"""The hosts of a gang or of a job: `hosts/<name>.yaml` next to the pipelines.

`train.hosts` names the hosts of a gang, and `runs_on` of any task those that its job runs on. A
hosts file describes where and how something runs. Fields that select the code that runs there are
in the fingerprint (`Hosts.code_digests`). The others cannot change the result. The storage root
must be the same path on all hosts, on a file system that they share, or a bucket.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from pipeline_ops.config.fields import Section, config_field, get_declarations
from pipeline_ops.config.reading import ConfigText, suggest_name
from pipeline_ops.config.train import HOSTS_NAME_PATTERN, Train
from pipeline_ops.config.validation import validate_section
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.checksums import compute_digest


def _match_pattern(pattern: str, rule: str) -> AfterValidator:
    """Checks a string against a pattern. The error message states the rule in words."""

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

    def find_folder_problem(self, folder: Path) -> str:
        """Explains why an absolute folder of Airflow's host is not the same one there.

        Returns the text behind the folder in a sentence, with the cure. Empty if it may be the
        same.
        """
        return ""


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


_SlurmMemory = Annotated[
    str, _match_pattern("[0-9]+[KMGT]?", "a number with K, M, G or T, such as 8G for Slurm")
]
SSH_DAEMON = (
    "Forward the socket of a daemon behind ssh (`ssh -N -L /run/gpu-1.sock:/var/run/docker.sock "
    "user@gpu-1`), and name it: unix:///run/gpu-1.sock"
)
_DaemonAddress = Annotated[
    str,
    _match_pattern(
        "(unix|tcp|https?)://.+",
        f"an address that begins with unix://, tcp:// or https://. {SSH_DAEMON}",
    ),
]
_Namespace = Annotated[
    str,
    _match_pattern(
        "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?",
        "lower-case letters, digits and hyphens, such as training",
    ),
]
_ObjectName = Annotated[
    str,
    _match_pattern(
        r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?",
        "lower-case letters, digits, hyphens and dots, such as trainyard-store",
    ),
]
"""The name of an object in Kubernetes."""
_DIGEST = re.compile("@(sha256:[0-9a-f]{64})$")


_QUEUE_OPTIONS = ("--partition=", "--account=", "--time=")


class SlurmHosts(Hosts):
    """Nodes that Slurm allocates for the training and takes back after it."""

    launcher: Literal["slurm"]
    nodes: int = Field(ge=1, le=1024)
    """Number of hosts for a gang."""
    min_nodes: int | None = Field(None, ge=1, le=1024)
    """The smallest number of nodes to start with if there are no more. Null is all of `nodes`."""
    workers_per_node: int = Field(1, ge=1, le=256)
    """Number of workers that a node can take."""
    cores_per_node: int | None = Field(None, ge=1)
    """Number of cores. Null is whole nodes."""
    memory_per_node: _SlurmMemory | None = None
    """Memory in the format of sbatch, such as `16G`. Null is the default of the partition."""
    gpus_per_node: int = Field(0, ge=0, le=64)
    """Number of GPUs."""
    arguments: list[str] = config_field([], selects_program=True)
    """Further options of sbatch, such as `--partition=gpu`, `--time=2-00:00:00` or
    `--gres=gpu:4`. `--partition`, `--account` and `--time` are not in the fingerprint."""
    queue_timeout_seconds: int = Field(24 * 3600, ge=1)
    """Time to wait in the queue before the task is tried again."""

    @property
    def code_digests(self) -> dict[str, str]:
        arguments = [each for each in self.arguments if not each.startswith(_QUEUE_OPTIONS)]
        return super(SlurmHosts, self.model_copy(update={"arguments": arguments})).code_digests

    @property
    def capacity(self) -> int:
        return self.nodes * self.workers_per_node

    @property
    def num_hosts(self) -> int:
        return self.nodes

    @property
    def num_gpus(self) -> int:
        return self.gpus_per_node


_OWN_FOLDERS = ("/", "/tmp", "/work")  # noqa: S108


class FolderVolume(Section):
    """A folder of the container engine's host that the containers see."""

    folder: str = Field(pattern=r"^/")
    """The folder on the daemon's host."""
    mount: str = Field(pattern=r"^/")
    """The path of the folder in the containers. For a storage root, that on Airflow's host."""
    read_only: bool = False
    """Whether the containers can't write to it."""


class ContainerHosts(Resources, Hosts):
    """Containers of a Docker daemon, one for each job. A gang runs inside that of its train job.

    Containers run with a read-only root file system, without capabilities, and as the image's user,
    which must not be root. They share no folder with Airflow unless `volumes` names one.
    """

    launcher: Literal["container"]
    image: str = config_field(..., selects_program=True, min_length=1)
    """The image. It must have this project's code and packages (`docker/jobs.Dockerfile`)."""
    daemon: _DaemonAddress | None = None
    """The daemon's address, such as `tcp://gpu-1.example:2376`. Null is the one that DOCKER_HOST
    names, or the local one. For TLS, DOCKER_CERT_PATH names the folder of the certificates."""
    docker_network: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """The Docker network of the containers, from which they must reach the store. Null is Docker's
    default network."""
    pull: Literal["missing", "never"] = "missing"
    """Whether the daemon pulls an image that it does not have."""
    volumes: list[FolderVolume] = config_field([], selects_program=True)

    @model_validator(mode="after")
    def _validate_network_and_volumes(self) -> ContainerHosts:
        if self.docker_network == "none":
            raise ValueError(
                "docker_network must be a network from which the store can be reached, got none"
            )
        for volume in self.volumes:
            if volume.mount in _OWN_FOLDERS:
                raise ValueError(
                    f"volumes must not be mounted at {volume.mount}, which each container has of "
                    "its own"
                )
        return self

    def validate_gang(self, train: Train, location: str) -> None:
        """Refuses a gang: a daemon has one machine, and one container can have all of its cores and
        GPUs.
        """
        raise ConfigError(
            f"{location}: train.hosts: {train.hosts} is a Docker daemon, which runs the job of a "
            f"training with its whole gang in one container. Write runs_on: {train.hosts} in the "
            "place of hosts, or name hosts with launcher ssh, slurm or kubernetes"
        )

    def find_folder_problem(self, folder: Path) -> str:
        cure = f"volumes: [{{folder: {folder}, mount: {folder}}}]"
        covering = [
            volume
            for volume in self.volumes
            if folder.is_relative_to(volume.mount) and not volume.read_only
        ]
        if not covering:
            return f"which is not seen there. {_describe_volume_cure(cure)}"
        volume = max(covering, key=lambda each: len(each.mount))
        address, mount = self.daemon or os.environ.get("DOCKER_HOST") or "unix://", volume.mount
        # A daemon around the container of this process may see a folder that is missing here.
        if (
            address.startswith("unix://")
            and os.path.exists(volume.folder)
            and not (os.path.exists(mount) and os.path.samefile(volume.folder, mount))
        ):
            return (
                f"and a container has another folder there: {volume.folder}. "
                f"{_describe_volume_cure(cure)}"
            )
        return ""


def _describe_volume_cure(form: str) -> str:
    return (
        f"Use a URI such as s3://bucket/folder, or write {form} into the hosts file, which "
        "mounts it at the same path"
    )


class Volume(Section):
    """A persistent volume claim that all pods share."""

    claim: _ObjectName
    """The name of the claim."""
    mount: str = Field(pattern=r"^/")
    """The path of the volume in the pods. For a storage root, that on Airflow's host."""


_OWN_POD_FIELDS = ("containers", "initContainers", "volumes", "restartPolicy")


class KubernetesHosts(Resources, Hosts):
    """Pods, which are created for a job or a gang and deleted after it."""

    launcher: Literal["kubernetes"]
    image: str = config_field(..., selects_program=True, min_length=1)
    """The container image. It must have this project's code and packages
    (`docker/jobs.Dockerfile`). For `runs_on` it ends with its digest, `@sha256:...`."""
    pods: int = Field(1, ge=1, le=1024)
    """Number of hosts for a gang."""
    workers_per_pod: int = Field(1, ge=1, le=64)
    """Number of workers that a pod can take."""
    namespace: _Namespace = "default"
    """The namespace of the pods."""
    volumes: list[Volume] = config_field([], selects_program=True)
    cpu: Cpu | None = "1"
    memory: Memory | None = "4Gi"
    secret: _ObjectName | None = None
    """A Secret whose entries become variables of the pods, such as the access to a bucket. With
    a `secret` or a service account, Airflow's own credentials are not sent, so one of them must
    have the access."""
    pod: dict[str, Any] = {}
    """A part of Kubernetes' PodSpec, such as `nodeSelector`, `tolerations`, `priorityClassName`,
    `imagePullSecrets` or `serviceAccountName`. It is merged into the specification of the pods, and
    may not have `containers`, `initContainers`, `volumes` or `restartPolicy`. A training with
    `runs_on` needs a service account that may create its gang's pods. Without one, pods have no
    token."""
    queue_timeout_seconds: int = Field(3600, ge=1)
    """Time to wait until the pods run before the task is tried again."""
    context: str | None = None
    """The context in the kubeconfig file. Null is the current one, or the cluster around the
    process."""

    @field_validator("pod")
    @classmethod
    def _validate_pod(cls, pod: dict[str, Any]) -> dict[str, Any]:
        if refused := [name for name in _OWN_POD_FIELDS if name in pod]:
            raise ValueError(
                f"must not set {', '.join(refused)}, which Trainyard writes. The keys image, "
                "environment, cpu, memory, gpus and volumes describe the container"
            )
        return pod

    @property
    def service_account(self) -> str | None:
        return self.pod.get("serviceAccountName")

    @property
    def capacity(self) -> int:
        return self.pods * self.workers_per_pod

    @property
    def num_hosts(self) -> int:
        return self.pods

    @property
    def image_digest(self) -> str | None:
        """The digest that the image ends with, `sha256:...`, or None."""
        found = _DIGEST.search(self.image)
        return found[1] if found else None

    @property
    def image_name(self) -> str:
        """The image without its tag and its digest."""
        return re.sub(r"(:[^/@]*)?(@.*)?$", "", self.image, count=1)

    def find_folder_problem(self, folder: Path) -> str:
        if any(folder.is_relative_to(volume.mount) for volume in self.volumes):
            return ""
        cure = f"volumes: [{{claim: NAME, mount: {folder}}}]"
        return f"which is not seen there. {_describe_volume_cure(cure)}"


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


class SshHost(Section):
    """One machine that is reached by ssh."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """The name for ssh, such as a `Host` of its configuration, and in messages."""
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
    config_file: str | None = config_field(None, selects_program=True)
    """An ssh_config file in the place of the user's own, with `User`, `Port`, `IdentityFile`,
    `UserKnownHostsFile` or `ProxyJump`. It should set `ConnectTimeout`, which is 5 seconds without
    such a file. A host whose key is not known is refused in any case."""

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


class TfConfigHosts(Hosts):
    """Machines on which a cluster manager starts a worker each, with TF_CONFIG."""

    launcher: Literal["tf_config"]
    workers: int = Field(ge=1, le=1024)
    """The number of workers in TF_CONFIG, with its chief."""
    queue_timeout_seconds: int = Field(3600, ge=1)
    """Time to wait until all workers have joined before the task is tried again."""

    @model_validator(mode="after")
    def _validate_keys(self) -> TfConfigHosts:
        names = ("python", "code", "environment", "first_port")
        if given := [name for name in names if getattr(self, name)]:
            raise ValueError(
                f"must not set {', '.join(given)}, which the cluster manager decides: it starts "
                "the workers"
            )
        return self

    @property
    def capacity(self) -> int:
        return self.workers

    @property
    def num_hosts(self) -> int:
        return self.workers

    def validate_gang(self, train: Train, location: str) -> None:
        if train.strategy == "parameter_server":
            raise ConfigError(
                f"{location}: train.hosts: {train.hosts} has launcher: tf_config, whose workers "
                "train together, and train.strategy is parameter_server. Write strategy: "
                "multi_worker_mirrored, or name hosts with another launcher"
            )
        super().validate_gang(train, location)


LAUNCHERS: Mapping[str, type[Hosts]] = {
    "local": LocalHosts,
    "ssh": SshHosts,
    "container": ContainerHosts,
    "slurm": SlurmHosts,
    "kubernetes": KubernetesHosts,
    "tf_config": TfConfigHosts,
}
_OTHER_NAMES = {"docker": "container", "k8s": "kubernetes"}


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
    model = LAUNCHERS.get(launcher) if isinstance(launcher, str) else None
    if model is None:
        where, name = text.locate(["launcher"]), str(launcher)
        rule = "required, but not given" if launcher is None else f"unknown name {launcher!r}"
        hint = suggest_name(_OTHER_NAMES.get(name, name), LAUNCHERS)
        raise ConfigError(f"{where}: launcher: {rule}; {hint}")
    return validate_section(model, text)


def parse_hosts(values: Mapping[str, Any]) -> Hosts:
    """Returns the hosts in a request."""
    return LAUNCHERS[values["launcher"]].model_validate(values)
