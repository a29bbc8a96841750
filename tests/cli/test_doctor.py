"""Faults that are planted on this machine and on hosts over real ssh, each found and named by
`trainyard doctor` with its cure."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from fake_kubernetes import KubernetesCluster
from fake_kubernetes.hosts import HOSTS
from launch.network import Network, why_not
from small_disks import mount_small_disk

from pipeline_ops.cli.main import main
from pipeline_ops.cli.place_checks import find_extras, list_requirements
from pipeline_ops.contract.source_code import CODE_ROOT, PACKAGES
from pipeline_ops.launch.place_check import check_packages
from pipeline_ops.system.host import check_host, has_slow_tar_headers

DIGITS = CODE_ROOT / "configs" / "digits.yaml"


INTERPRETER = ["tar headers"] if has_slow_tar_headers(sys.version_info[:3]) else []
"""What is found with the Python that runs these tests, whatever the pipeline."""


class Doctor:
    """A pipeline with nothing wrong, the settings to plant faults, and the command.

    Attributes:
      folder: the folder of the config.
      values: the content of the config.
    """

    def __init__(self, folder: Path, capsys):
        self.folder, self._capsys = folder, capsys
        self.values = yaml.safe_load(DIGITS.read_text())
        self.values["storage"]["root"] = str(folder / "root")
        (folder / "root").mkdir()
        (folder / "raw" / "cat").mkdir(parents=True)
        (folder / "raw" / "cat" / "1.png").write_bytes(b"not looked at")
        self.values["preprocess"]["source"]["path"] = "raw"

    def set(self, section: str, **values: object) -> None:
        self.values[section].update(values)

    def write_hosts(self, name: str, content: dict) -> None:
        (self.folder / "hosts").mkdir(exist_ok=True)
        (self.folder / "hosts" / f"{name}.yaml").write_text(yaml.safe_dump(content))

    def use_interpreter(self, python: str, section: str = "train") -> None:
        self.write_hosts("venv", {"launcher": "local", "python": python})
        self.set(section, runs_on="venv")

    def run_on(self, content: dict, tasks: tuple[str, ...] = ("evaluate",)) -> None:
        """Lets tasks run on the hosts of a hosts file."""
        self.write_hosts("lab", content)
        for task in tasks:
            self.set(task, runs_on="lab")

    def train_on(self, content: dict) -> None:
        """Lets a gang run on the hosts of a hosts file."""
        self.write_hosts("gang", content)
        self.set("train", hosts="gang")

    def write(self) -> str:
        file = self.folder / "digits.yaml"
        file.write_text(yaml.safe_dump(self.values))
        return str(file)

    def examine(self) -> dict[str, str]:
        """The problems by check, each of which has a cure, without those of the interpreter."""
        code = main(["doctor", "--json", self.write()])
        found = json.loads(self._capsys.readouterr().out)
        problems = {
            each["check"]: f"{each['problem']}. {each['cure']}"
            for each in found["findings"]
            if each["problem"] and each["check"].rpartition(": ")[2] not in INTERPRETER
        }
        assert all(bool(each["problem"]) == bool(each["cure"]) for each in found["findings"]), found
        severe = [each for each in found["findings"] if each["problem"] and not each["is_warning"]]
        assert code == (75 if severe else 0)
        assert found["is_healthy"] == (not severe)
        return problems


@pytest.fixture
def doctor(tmp_path, capsys, monkeypatch) -> Doctor:
    monkeypatch.delenv("AIRFLOW__CORE__EXECUTOR", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # an environment for GPUs may have no driver
    return Doctor(tmp_path, capsys)


def write_program(file: Path, text: str) -> str:
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return str(file)


def test_a_healthy_pipeline_has_no_problem(doctor):
    assert doctor.examine() == {}


def test_the_text_is_a_line_for_each_check(doctor, capsys):
    doctor.use_interpreter("/no/such/python")
    assert main(["doctor", doctor.write()]) == 75
    lines = capsys.readouterr().out.splitlines()
    assert "ok       Python" in lines
    problem = "PROBLEM  hosts/venv.yaml: /no/such/python"
    assert any(line.startswith(problem) for line in lines)
    end = f" passed, 1 with a problem, {len(INTERPRETER)} with a warning."
    assert lines[-1].endswith(end)


def test_warnings_are_counted_and_change_no_exit_status(doctor, capsys):
    (doctor.folder / "root").rmdir()
    assert main(["doctor", doctor.write()]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("warning  storage.root: ") for line in lines), lines
    assert lines[-1].endswith(f" 0 with a problem, {1 + len(INTERPRETER)} with a warning.")


@pytest.mark.parametrize(
    ("version", "is_slow"),
    [
        ((3, 11, 9), True),
        ((3, 11, 10), False),
        ((3, 12, 5), True),
        ((3, 12, 6), False),
        ((3, 13, 0), False),
    ],
)
def test_a_python_whose_tarfile_takes_days_is_a_warning(version, is_slow):
    """M3: CVE-2024-6232, and these are its first releases without it."""
    assert has_slow_tar_headers(version) == is_slow
    [found] = [each for each in check_host({}) if each.check == "tar headers"]
    assert bool(found.problem) == has_slow_tar_headers(sys.version_info[:3])
    assert not found.problem or (found.is_warning and "3.11.10, 3.12.6" in found.cure)


def test_the_keys_of_the_json_are_those_of_the_documentation(doctor, capsys):
    main(["doctor", "--json", doctor.write()])
    found = json.loads(capsys.readouterr().out)
    text = (CODE_ROOT / "docs" / "where-jobs-run.md").read_text()
    [example] = re.findall(r"```\n(\{.*?)```", text, re.DOTALL)
    assert json.loads(example).keys() == found.keys()
    assert json.loads(example)["findings"][0].keys() == found["findings"][0].keys()


def test_a_storage_root_that_is_not_mounted_is_found_and_not_made(doctor):
    """Without other hosts, it may be that of the first run, which makes it."""
    doctor.set("storage", root=str(doctor.folder / "mnt" / "root"))
    assert "root does not exist" in doctor.examine()["storage.root"]
    assert not (doctor.folder / "mnt").exists()


def test_a_missing_storage_root_that_hosts_share_is_a_problem(doctor):
    doctor.set("storage", root=str(doctor.folder / "mnt" / "root"))
    doctor.run_on({"launcher": "ssh", "network": "trusted", "hosts": [{"name": "a"}]})
    assert f"mkdir -p {doctor.folder}/mnt/root" in doctor.examine()["storage.root"]
    assert not (doctor.folder / "mnt").exists()


class TestPackages:
    """The check of packages, which a job makes in its own interpreter."""

    def test_what_is_installed_here_is_enough(self):
        for extras in (["preprocess"], ["train"], ["preprocess", "train"]):
            [finding] = check_packages([*map(str, list_requirements(extras))], extras)
            assert (finding.problem, finding.cure) == ("", "")

    def test_each_missing_or_old_package_is_named(self):
        wanted = ["keras<3", "no-such-package>=1", "numpy>=1.26"]
        [finding] = check_packages(wanted, ["preprocess", "train"])
        assert finding.problem == (
            f"keras is {version('keras')}, and <3 is needed; no-such-package is not installed"
        )
        assert "-r docker/locks/jobs.txt, or install the extras preprocess, train" in finding.cure

    def test_tensorflow_for_gpus_stands_for_the_one_without(self):
        for name in ("tensorflow", "tensorflow-cpu"):
            [finding] = check_packages([f"{name}>=2.21"], ["train"])
            assert finding.problem == ""

    def test_a_job_needs_the_packages_of_all_tasks_that_may_run_there(self):
        both = {each.name for each in list_requirements(find_extras(["preprocess", "evaluate"]))}
        assert {"apache-beam", "opencv-python-headless", "keras"} <= both
        assert "apache-beam" not in {
            each.name for each in list_requirements(find_extras(["export"]))
        }


NO_KEYS = "UserKnownHostsFile /dev/null"
CONTAINER = {"launcher": "container", "image": "trainyard"}
POD, BUCKET = {"launcher": "kubernetes", "image": "trainyard:1"}, {"root": "s3://bucket/root"}


def plant_kubernetes_executor(doctor, monkeypatch):
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "KubernetesExecutor")


def plant_executor_in_the_settings(doctor, monkeypatch):
    monkeypatch.setenv("AIRFLOW_HOME", str(doctor.folder))
    executor = "airflow.providers.cncf.kubernetes.executors.kubernetes_executor.KubernetesExecutor"
    (doctor.folder / "airflow.cfg").write_text(f"[core]\nexecutor = {executor}\n")


def plant_missing_daemon(doctor, monkeypatch):
    volume = {"folder": str(doctor.folder), "mount": str(doctor.folder)}
    doctor.run_on(CONTAINER | {"volumes": [volume], "daemon": f"unix://{doctor.folder}/none.sock"})


def plant_missing_slurm(doctor, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    doctor.run_on({"launcher": "slurm", "nodes": 1})


def plant_missing_cluster(doctor, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(doctor.folder / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    image, volume = f"trainyard@sha256:{'0' * 64}", {"claim": "root", "mount": "/"}
    doctor.run_on({"launcher": "kubernetes", "image": image, "volumes": [volume]})


@pytest.mark.parametrize(
    ("fault", "check", "text"),
    [
        ({"train": {"epoch": 3}}, "digits.yaml", "the nearest valid name is 'epochs'"),
        ({"python": "/no/one"}, "hosts/venv.yaml", "/no/one cannot be used"),
        ({"remove": "raw"}, "preprocess.source", "no such folder"),
        ({"remove": "raw/cat"}, "preprocess.source", "raw"),
        (plant_kubernetes_executor, "Airflow's executor", "`runs_on: NAME`"),
        (plant_executor_in_the_settings, "Airflow's executor", "`runs_on: NAME`"),
        ({"train": {"runs_on": "lab"}}, "digits.yaml", "train.runs_on: "),
        ({"hosts": CONTAINER}, "digits.yaml", "which is not seen there"),
        ({"hosts": POD, "storage": BUCKET}, "digits.yaml", "has no digest"),
        (plant_missing_daemon, "hosts/lab.yaml", "none.sock"),
        (plant_missing_slurm, "hosts/lab.yaml", "is not installed on this machine"),
        (plant_missing_cluster, "hosts/lab.yaml", "there is no access to Kubernetes"),
        ({"storage": {"root": "ftp://server/root"}}, "digits.yaml", "must be a folder, or a URI"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.hosts
def test_a_planted_fault_is_found(doctor, monkeypatch, fault, check, text):
    """A fault is a function, or what each of some parts of the pipeline is."""
    if callable(fault):
        fault(doctor, monkeypatch)
        fault = {}
    for part, value in fault.items():
        match part:
            case "hosts":
                doctor.run_on(value)
            case "python":
                doctor.use_interpreter(value, "export")
            case "remove":
                shutil.rmtree(doctor.folder / value)
            case _:
                doctor.set(part, **value)
    problems = doctor.examine()
    assert [problem for name, problem in problems.items() if name.endswith(check)], problems
    assert any(text in problem for problem in problems.values()), problems


def test_validate_refuses_jobs_that_would_end_with_their_pods(doctor, monkeypatch, capsys):
    plant_kubernetes_executor(doctor, monkeypatch)
    assert main(["validate", doctor.write()]) == 78
    message = capsys.readouterr().err
    assert "digits.yaml:12: preprocess runs with Airflow's KubernetesExecutor" in message
    assert "Write `runs_on: NAME` into `preprocess`" in message


def test_a_full_disk_is_found(doctor):
    with mount_small_disk(doctor.folder / "small") as folder:
        doctor.set("storage", root=str(folder))
        problem = doctor.examine()["disk of storage.root"]
    assert "0 MiB free" in problem and "trainyard gc" in problem


def test_a_folder_without_write_access_is_found():
    [finding] = [each for each in check_host({"x": Path("/proc")}) if each.check == "disk of x"]
    assert "/proc can't be written" in finding.problem


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("ulimit -n 512", "open files: a process may open 512 files"),
        ("mount -t tmpfs -o size=1m tmpfs /dev/shm", "shared memory: /dev/shm holds 1 MiB"),
        ("export CUDA_VISIBLE_DEVICES=0", "GPUs: the driver's library can't be opened"),
    ],
)
def test_a_limit_of_the_host_is_found(command, text):
    """In a process with its own limits and mounts."""
    program = f"{sys.executable} -m pipeline_ops.cli.main doctor"
    argv = ["unshare", "--mount", "sh", "-c", f"{command} && exec {program}"]
    done = subprocess.run(argv, cwd=CODE_ROOT, capture_output=True, text=True)
    assert text in done.stdout, done.stdout + done.stderr


@pytest.mark.hosts
def test_a_missing_bucket_and_an_unreachable_store_are_found(doctor, make_root):
    doctor.set("storage", root="s3://no-such-bucket/root", endpoint=make_root("s3").server.address)
    assert "no-such-bucket" in doctor.examine()["storage.root"]
    doctor.set("storage", root="s3://bucket/root", endpoint="http://127.0.0.1:9")
    assert doctor.examine()["storage.root"]


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    if reason := why_not():
        pytest.skip(f"no hosts: {reason}")
    network = Network(tmp_path_factory.mktemp("network"), 2)
    network.up()
    yield network
    network.down()


@pytest.fixture
def hosts(network):
    yield network.hosts_file(2)
    for host in network.hosts:
        network.reconnect(host)


class TestKubernetes:
    """Faults of the access to a cluster, which is a fake one with real rules of access."""

    @pytest.fixture
    def cluster(self, tmp_path, monkeypatch):
        with KubernetesCluster(tmp_path / "cluster") as cluster:
            monkeypatch.setenv("KUBECONFIG", str(cluster.write_kubeconfig("trainyard-airflow")))
            yield cluster

    @pytest.fixture
    def pods(self, doctor):
        doctor.set("storage", root=str(doctor.folder / "root"))
        volume = {"claim": "root", "mount": str(doctor.folder)}
        return HOSTS | {"volumes": [volume]}

    @pytest.mark.hosts
    def test_the_roles_in_rbac_yaml_are_enough(self, doctor, cluster, pods):
        doctor.run_on(pods)
        assert doctor.examine() == {}

    @pytest.mark.hosts
    def test_missing_rights_are_found(self, doctor, cluster, pods, monkeypatch):
        monkeypatch.setenv("KUBECONFIG", str(cluster.write_kubeconfig("trainyard-supervisor")))
        doctor.run_on(pods)
        problem = doctor.examine()["hosts/lab.yaml"]
        assert "does not let this account" in problem and "(403)" in problem
        assert "docker/kubernetes/rbac.yaml" in problem

    @pytest.mark.hosts
    def test_a_gang_needs_the_rights_of_a_supervisor(self, doctor, cluster, pods):
        doctor.train_on(pods | {"workers_per_pod": 2})
        problem = doctor.examine()["jobs on this host"]
        assert "does not let this account create services" in problem
        assert "serviceAccountName: trainyard-supervisor" in problem
        # Pods of this cluster are processes, which do not have the files of their account.
        access = {"KUBECONFIG": str(cluster.write_kubeconfig("trainyard-supervisor"))}
        account = {"pod": {"serviceAccountName": "trainyard-supervisor"}, "environment": access}
        doctor.run_on(pods | account, ("train",))
        assert doctor.examine() == {}

    @pytest.mark.hosts
    def test_a_cluster_that_does_not_answer_is_found(self, doctor, cluster, pods):
        doctor.run_on(pods)
        cluster.stop()
        assert doctor.examine()["hosts/lab.yaml"]


@pytest.mark.hosts
def test_an_interpreter_without_packages_or_with_a_broken_one_is_found(doctor):
    bare = doctor.folder / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    doctor.use_interpreter(str(bare / "bin" / "python"), "evaluate")
    problem = doctor.examine()["hosts/venv.yaml"]
    assert "a job can't start there: No module named" in problem and "pip install" in problem
    (doctor.folder / "broken").mkdir()
    (doctor.folder / "broken" / "tensorflow.py").write_text(
        "raise ImportError('libcudart.so.12: cannot open shared object file')\n"
    )
    environment = {"PYTHONPATH": f"{doctor.folder / 'broken'}{os.pathsep}{CODE_ROOT}"}
    doctor.write_hosts("venv", {"launcher": "local", "environment": environment})
    problems = doctor.examine()
    assert list(problems) == ["hosts/venv.yaml: import tensorflow"]
    assert "libcudart.so.12: cannot open" in problems.popitem()[1]


NOISY_SSH = """
echo 'Welcome to the lab {not JSON}'
echo 'Last login: today' >&2
while [ "$1" != -- ]; do shift; done
shift 2
sh -c "$*"
code=$?
echo '{"logout": "bye"}'
exit $code
"""


@pytest.mark.hosts
def test_what_logins_and_logouts_print_is_no_part_of_an_answer(doctor, monkeypatch):
    """A .bashrc may print without a test for an interactive shell, and so may a trap at the end."""
    (doctor.folder / "programs").mkdir()
    write_program(doctor.folder / "programs" / "ssh", NOISY_SSH)
    monkeypatch.setenv("PATH", str(doctor.folder / "programs"), prepend=os.pathsep)
    hosts = {"launcher": "ssh", "network": "trusted", "hosts": [{"name": "a", "workers": 2}]}
    doctor.run_on(hosts)
    doctor.train_on(hosts)
    assert doctor.examine() == {}


class TestSshHosts:
    """Faults of hosts that are reached over ssh."""

    @pytest.mark.hosts
    def test_healthy_hosts_have_no_problem(self, doctor, hosts):
        doctor.run_on(hosts)
        assert doctor.examine() == {}

    @pytest.mark.hosts
    def test_an_unreachable_host_is_found(self, doctor, hosts, network):
        network.cut(network.hosts[1])
        doctor.run_on(hosts)
        problems = doctor.examine()
        assert list(problems) == [f"hosts/lab.yaml: {network.hosts[1]}"]
        assert "over ssh" in problems.popitem()[1]

    @pytest.mark.hosts
    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"ssh": "User daemon"}, "Permission denied"),
            ({"ssh": NO_KEYS}, "Host key verification failed"),
            ({"ssh": f"{NO_KEYS}\nStrictHostKeyChecking no"}, "Host key verification failed"),
            ({"python": "/no/such/python"}, "/no/such/python"),
            (
                {"code": "/no/such/code", "python": sys.executable},
                "is not the one that Airflow has",
            ),
        ],
        ids=["login", "host key", "lax", "interpreter", "code"],
    )
    def test_a_wrong_setting_is_found(self, doctor, hosts, network, change, text, tmp_path):
        if settings := change.get("ssh"):
            file = network.write_config(tmp_path / "ssh_config", f"Host *\n{settings}")
            change = {"config_file": file}
        if "code" in change:
            for package in PACKAGES:
                shutil.copytree(CODE_ROOT / package, tmp_path / "code" / package)
            (tmp_path / "code" / "pipeline_ops" / "errors.py").open("a").write("\n# changed\n")
            change = {"code": str(tmp_path / "code")}
        doctor.run_on(hosts | change)
        problems = doctor.examine()
        assert any(text in problem for problem in problems.values()), problems

    @pytest.mark.hosts
    def test_a_storage_root_that_hosts_do_not_see_is_found(self, doctor, hosts, network):
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        with mount_small_disk(doctor.folder / "later-disk") as folder:
            doctor.set("storage", root=str(folder))
            doctor.run_on(hosts)
            problems = doctor.examine()
        assert "does not see" in problems[f"hosts/lab.yaml: {network.hosts[0]}"]
