"""The rules for `runs_on`: each refusal names file, line and key, and what to write."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from config_files import write_config

from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.errors import ConfigError

DIGEST = f"sha256:{'1' * 64}"
POD = {"launcher": "kubernetes", "image": f"jobs@{DIGEST}"}
CONTAINER = {"launcher": "container", "image": "jobs"}
SLURM = {"launcher": "slurm", "nodes": 1}


class Pipeline:
    """A copy of the digits pipeline, in a bucket, with hosts files of its own."""

    def __init__(self, folder: Path):
        self._folder = folder
        (folder / "hosts").mkdir()

    def write_hosts(self, name: str, content: dict, **values: object) -> None:
        text = yaml.safe_dump(content | values, sort_keys=False)
        (self._folder / "hosts" / f"{name}.yaml").write_text(text)

    def load(self, changes: dict) -> PipelineConfig:
        root = {"storage.root": "s3://bucket/root"}
        return load_config(write_config(self._folder, root | changes))

    def refuse(self, changes: dict) -> str:
        """The message of the refusal. Its first line names the pipeline's file and a line in it."""
        with pytest.raises(ConfigError) as raised:
            self.load(changes)
        message = str(raised.value)
        place, _, rule = message.partition(": ")
        file, _, line = place.rpartition(":")
        key = rule.partition(":")[0].rpartition(".")[2]
        assert file == str(self._folder / "digits.yaml")
        lines = Path(file).read_text().splitlines()
        assert lines[int(line) - 1].startswith(f"  {key}:"), message
        return message


@pytest.fixture
def pipeline(tmp_path) -> Pipeline:
    return Pipeline(tmp_path)


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("../x", "must be the name of a file in"),
        ("twise", "twise.yaml; the nearest valid name is 'twice'"),
        ("twice.yaml", "twice.yaml.yaml; write it without .yaml: twice"),
        ("twice.yml", "twice.yml.yaml; write it without .yml: twice"),
    ],
)
@pytest.mark.parametrize("key", ["evaluate.runs_on", "train.hosts"])
def test_a_wrong_name_is_told_file_line_and_key(pipeline, name, cure, key):
    if (name, key) == ("../x", "train.hosts"):
        cure = "must match the pattern"
    pipeline.write_hosts("twice", SLURM)
    message = pipeline.refuse({key: name})
    assert f": {key}: " in message and cure in message


def test_a_wrong_name_that_runs_may_choose_is_told_file_and_line(pipeline):
    pipeline.write_hosts("lab", SLURM)
    with pytest.raises(ConfigError, match=r"digits.yaml:\d+: per_run: train.hosts: there is no"):
        pipeline.load({"per_run": {"train.hosts": ["lap"]}})


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("registry.example:5000/trainyard-jobs", "registry.example:5000/trainyard-jobs"),
        ("registry.example:5000/jobs:1.2", "registry.example:5000/jobs"),
        ("jobs:latest", "jobs"),
        ("jobs@sha256:abc", "jobs"),
        (f"jobs:1@{DIGEST}0", "jobs"),
    ],
)
def test_an_image_without_its_whole_digest_is_told_the_way_to_it(pipeline, image, name):
    pipeline.write_hosts("pod", POD, image=image)
    message = pipeline.refuse({"evaluate.runs_on": "pod"})
    assert f"Write image: {name}@sha256:... " in message
    assert "docker inspect --format '{{index .RepoDigests 0}}' IMAGE" in message


@pytest.mark.parametrize("image", [f"jobs@{DIGEST}", f"registry.example:5000/jobs:1@{DIGEST}"])
def test_an_image_with_its_digest_is_accepted(pipeline, image):
    pipeline.write_hosts("pod", POD, image=image)
    hosts = pipeline.load({"evaluate.runs_on": "pod"}).find_job_hosts("evaluate")
    assert hosts.image_digest == DIGEST


@pytest.mark.parametrize(
    ("hosts", "form"),
    [
        (CONTAINER, "volumes: [{{folder: {0}, mount: {0}}}]"),
        (POD, "volumes: [{{claim: NAME, mount: {0}}}]"),
    ],
    ids=["container", "kubernetes"],
)
def test_a_folder_that_is_not_seen_is_told_the_volume_to_write(pipeline, tmp_path, hosts, form):
    root = tmp_path / "root"
    pipeline.write_hosts("lab", hosts)
    changes = {"storage.root": str(root), "evaluate.runs_on": "lab"}
    message = pipeline.refuse(changes)
    assert f"storage.root is {root} on this host, which is not seen there" in message
    volume = form.format(root)
    assert f"write {volume} into the hosts file" in message
    written = yaml.safe_load(volume.replace("NAME", "claim"))
    pipeline.write_hosts("lab", hosts, **written)
    assert pipeline.load(changes).find_job_hosts("evaluate").volumes[0].mount == str(root)


class TestAFolderOfALocalDaemon:
    @pytest.fixture
    def other(self, pipeline, tmp_path, monkeypatch) -> Path:
        """A hosts file with another folder at the path of the storage root."""
        monkeypatch.delenv("DOCKER_HOST", raising=False)
        (tmp_path / "other").mkdir()
        return tmp_path / "other"

    def write(self, pipeline, other: Path, **values: object) -> dict:
        root = other.parent / "root"
        volume = {"folder": str(other), "mount": str(root)}
        pipeline.write_hosts("box", CONTAINER, volumes=[volume], **values)
        return {"storage.root": str(root)}

    @pytest.mark.parametrize("has_root", [True, False])
    def test_that_is_not_the_storage_root_is_refused(self, pipeline, other, has_root):
        changes = self.write(pipeline, other)
        if has_root:
            (other.parent / "root").mkdir()
        message = pipeline.refuse(changes | {"evaluate.runs_on": "box"})
        assert f"and a container has another folder there: {other}. " in message
        assert f"[{{folder: {other.parent / 'root'}, mount: " in message

    def test_that_is_the_storage_root_by_another_name_is_accepted(self, pipeline, other):
        (other.parent / "root").symlink_to(other)
        volume = {"folder": str(other), "mount": str(other)}
        alias = {"folder": str(other.parent / "root"), "mount": str(other)}
        for each in (volume, alias):
            pipeline.write_hosts("box", CONTAINER, volumes=[each])
            pipeline.load({"storage.root": str(other.parent / "root"), "evaluate.runs_on": "box"})

    def test_that_is_missing_here_may_be_one_of_the_host_around_this_container(
        self, pipeline, other
    ):
        changes = self.write(pipeline, other)
        other.rmdir()
        pipeline.load(changes | {"evaluate.runs_on": "box"})

    def test_is_free_for_a_remote_daemon(self, pipeline, other, monkeypatch):
        changes = self.write(pipeline, other, daemon="tcp://gpu-1.example:2376")
        pipeline.load(changes | {"evaluate.runs_on": "box"})
        self.write(pipeline, other)
        monkeypatch.setenv("DOCKER_HOST", "tcp://gpu-1.example:2376")
        pipeline.load(changes | {"evaluate.runs_on": "box"})


def test_a_supervisor_in_a_pod_needs_an_account_for_the_pods_of_its_gang(pipeline):
    changes = {"train.runs_on": "k", "train.hosts": "k"}
    pipeline.write_hosts("k", POD, workers_per_pod=2)
    message = pipeline.refuse(changes)
    account = {"serviceAccountName": "trainyard-supervisor"}
    cure = "Write pod: {serviceAccountName: trainyard-supervisor} (docker/kubernetes/rbac.yaml)"
    assert cure in message and "into hosts/k.yaml" in message
    pipeline.load({"train.hosts": "k"})
    pipeline.load({"train.runs_on": "k"})
    pipeline.write_hosts("k", POD, workers_per_pod=2, pod=account)
    pipeline.load(changes)


def test_a_gang_in_another_cluster_has_its_access_in_a_file(pipeline):
    pipeline.write_hosts("here", POD)
    pipeline.write_hosts("there", POD, workers_per_pod=2, context="other")
    pipeline.load({"train.runs_on": "here", "train.hosts": "there"})


@pytest.mark.parametrize(
    ("hosts", "key"), [(POD, "gpus"), (CONTAINER, "gpus"), (SLURM, "gpus_per_node")]
)
def test_a_gang_in_one_job_needs_a_gpu_for_each_of_its_devices(pipeline, hosts, key):
    changes = {"train.runs_on": "gpu", "train.workers": 2, "train.devices_per_worker": 2}
    pipeline.write_hosts("gpu", hosts, **{key: 1})
    message = pipeline.refuse(changes)
    assert "has 1 GPUs, and train.workers (2) x train.devices_per_worker (2) is 4" in message
    assert "Ask for 4 GPUs in hosts/gpu.yaml, or lower" in message
    assert "is 3" in pipeline.refuse({"train.runs_on": "gpu", "train.workers": 3})
    pipeline.write_hosts("gpu", hosts, **{key: 4})
    pipeline.load(changes)
    pipeline.write_hosts("gpu", hosts)
    pipeline.load(changes)  # its devices are CPUs


def test_gpus_of_a_supervisor_are_not_those_of_its_gang(pipeline):
    pipeline.write_hosts("box", CONTAINER, gpus=1)
    pipeline.write_hosts("gang", SLURM, workers_per_node=2)
    pipeline.load({"train.runs_on": "box", "train.hosts": "gang"})
