from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline_ops.config.hosts import load_hosts, parse_hosts
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.fingerprint import Fingerprint
from pipeline_ops.errors import ConfigError
from pipeline_ops.planning.plan import plan_job

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
TWO = "launcher: ssh\nhosts:\n  - {name: a}\n  - {name: b, workers: 2}\nnetwork: trusted\n"


@pytest.fixture
def write(tmp_path):
    """Writes `hosts/lab.yaml` next to a copy of the digits pipeline; returns that."""

    def write_hosts(text: str) -> Path:
        (tmp_path / "hosts").mkdir(exist_ok=True)
        (tmp_path / "hosts" / "lab.yaml").write_text(text)
        return Path(shutil.copy(CONFIGS / "digits.yaml", tmp_path))

    return write_hosts


@pytest.fixture
def refuse(write):
    """Returns the error of a gang on the hosts of a text."""

    def refuse(text: str, **train: object) -> str:
        changes = {"train.hosts": "lab"} | {f"train.{key}": value for key, value in train.items()}
        with pytest.raises(ConfigError) as raised:
            load_config(write(text), changes)
        return str(raised.value)

    return refuse


@pytest.mark.parametrize("name", [path.stem for path in sorted((CONFIGS / "hosts").glob("*.yaml"))])
def test_every_example_is_valid_and_travels_in_a_request(name):
    hosts = load_hosts(CONFIGS / "hosts", name)
    assert hosts.launcher == {"gpus": "ssh", "containers": "container"}.get(name, name)
    assert parse_hosts(hosts.model_dump(mode="json")) == hosts


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "launcher: ssh",
            "launcher: shh",
            "lab.yaml:1: launcher: unknown name 'shh'; the nearest valid name is 'ssh'",
        ),
        ("launcher: ssh", "launcher: docker", "the nearest valid name is 'container'"),
        ("launcher: ssh", "launcher: k8s", "the nearest valid name is 'kubernetes'"),
        (
            "launcher: ssh",
            "python: x",
            "lab.yaml:1: launcher: required, but not given; "
            "valid names are container, kubernetes, local, slurm, ssh",
        ),
        (
            "launcher: ssh",
            "launcher: ssh\nconfig: x",
            "lab.yaml:2: config: unknown key; the nearest valid name is 'config_file'",
        ),
        (
            "{name: a}",
            "{nme: a}",
            "lab.yaml:3: hosts.0.nme: unknown key; the nearest valid name is 'name'",
        ),
        (
            "{name: b, workers: 2}",
            "{name: a}",
            "lab.yaml:2: hosts: must have different names, got a twice",
        ),
        (
            "{name: a}",
            "{name: -oProxyCommand=x}",
            "lab.yaml:3: hosts.0.name: must be the name or the address of a host alone",
        ),
        (
            "launcher: ssh",
            "launcher: ssh\nfirst_port: 4000",
            "lab.yaml:2: first_port: needs last_port. Give both, or none of them.",
        ),
        (
            "launcher: ssh",
            "launcher: ssh\nfirst_port: 4001\nlast_port: 4000",
            "lab.yaml:2: first_port: must not be above last_port, got 4001 and 4000",
        ),
        ("{name: a}", "{name: me@a}", "hosts.0.name: must be the name or the address of a host"),
        ("{name: a}", "{name: 'a:22'}", "are User and Port in ~/.ssh/config, or in config_file"),
        (
            "{name: a}",
            "{name: a, address: '10.0.0.1:22'}",
            "lab.yaml:3: hosts.0.address: must be a name or an address of IPv4, without port",
        ),
        (
            "launcher: ssh",
            "launcher: ssh\npython: ~/venv/bin/python",
            "lab.yaml:2: python: must not begin with ~, which is not replaced there",
        ),
        (
            "launcher: ssh",
            "launcher: ssh\ncode: $HOME/code",
            "lab.yaml:2: code: has $HOME, and neither environment variables nor templates",
        ),
        (
            "launcher: ssh",
            "launcher: ssh\nenvironment: {PATH: '/opt/cuda/bin:$PATH'}",
            "lab.yaml:2: environment: PATH has $PATH, and variables are not replaced in it",
        ),
        (
            "launcher: ssh",
            "launcher: ssh\nenvironment: {LIBRARIES: '${LIBRARIES}'}",
            "environment: LIBRARIES has ${LIBRARIES}, and variables are not replaced in it",
        ),
        (
            "launcher: ssh",
            "launcher: ssh\nenvironment: {'A=B': c}",
            "environment: 'A=B' can't be the name of a variable",
        ),
        ("{name: a}", "gpu-1:2", "lab.yaml:3: hosts.0: must be a section with name: ..., got 'gp"),
        ("trusted", "yes", "lab.yaml:5: network: must be one of trusted, isolated, got True"),
    ],
)
def test_a_wrong_hosts_file_is_told_file_line_key_and_rule(refuse, old, new, message):
    assert message in refuse(TWO.replace(old, new))


def test_a_value_with_a_dollar_that_no_shell_would_replace_is_kept(write):
    text = f"{TWO}environment: {{SECRET: pa$word, PRICE: 5$, BOTH: 'a$B:c'}}\n"
    hosts = load_config(write(text), {"train.hosts": "lab"}).hosts
    assert hosts.environment == {"SECRET": "pa$word", "PRICE": "5$", "BOTH": "a$B:c"}


KUBERNETES = "launcher: kubernetes\nimage: i\n"
CONTAINER = "launcher: container\nimage: i\n"
SLURM = "launcher: slurm\nnodes: 1\n"
MEMORY = "must be a number with Ki, Mi, Gi, Ti, k, M, G or T, such as 8Gi, and at least 64Mi, got "


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (CONTAINER, "cpu: '0'", "must be a number of cores, at least 1m, such as 4, 0.5 or 500m"),
        (CONTAINER, "cpu: 0", "cpu: must be a number of cores, at least 1m"),
        (CONTAINER, "cpu: 0.0000000001", "cpu: must be a number of cores, at least 1m"),
        (KUBERNETES, "cpu: 0m", "cpu: must be a number of cores, at least 1m"),
        (KUBERNETES, "cpu: true", "cpu: must be a number of cores, at least 1m"),
        (KUBERNETES, "cpu: -4", "cpu: must be a number of cores, at least 1m"),
        (CONTAINER, "memory: 8", f"memory: {MEMORY}8"),
        (CONTAINER, "memory: '1'", f"memory: {MEMORY}'1'"),
        (CONTAINER, "memory: 63Mi", f"memory: {MEMORY}'63Mi'"),
        (KUBERNETES, "memory: 8GB", f"memory: {MEMORY}'8GB'"),
        (KUBERNETES, "memory: 8g", f"memory: {MEMORY}'8g'"),
        (CONTAINER, "daemon: gpu-1:2375", "begins with unix://, tcp:// or https://."),
        (CONTAINER, "daemon: ssh://gpu-1", "name it: unix:///run/gpu-1.sock, got 'ssh://gpu-1'"),
        (SLURM, "memory_per_node: 8Gi", "with K, M, G or T, such as 8G for Slurm, got '8Gi'"),
        (SLURM, "arguments: ['--partition=a --gres=b']", "must be one option of sbatch each"),
        (SLURM, "arguments: ['#SBATCH --partition=a']", "one option of sbatch each, such as"),
        (SLURM, "arguments: [partition=a]", "such as --gres=gpu:4, got 'partition=a'"),
        (SLURM, "arguments: [--nodes=4]", "must not have --nodes. Write the keys nodes"),
        (SLURM, "arguments: [-J, a]", "must not have -J. Trainyard sets it"),
        (SLURM, "min_nodes: 4", "min_nodes: must not be above nodes (1), got 4"),
        (KUBERNETES, "pod: {nodeSelector: {gpu: true}}", "pod: nodeSelector has gpu: True. Put"),
        (KUBERNETES, "pod: {node_selector: {}}", "no node_selector; the nearest valid name is 'no"),
        (KUBERNETES, "pod: {imagePullSecret: a}", "the nearest valid name is 'imagePullSecrets'"),
        (KUBERNETES, "pod: {spec: {}}", "pod: is a PodSpec itself. Write the keys of spec into it"),
        (KUBERNETES, "namespace: Training Space", "namespace: must be lower-case letters"),
        (KUBERNETES, "namespace: team.a", "namespace: must be lower-case letters"),
        (KUBERNETES, "secret: not a name", "secret: must be lower-case letters"),
        (KUBERNETES, "pod: {volumes: []}", "pod: must not set volumes"),
        (KUBERNETES, "volumes: [{claim: '', mount: /}]", "volumes.0.claim: must be lower-case"),
    ],
)
def test_a_wrong_value_is_told_the_rule_in_words_and_an_example(refuse, text, line, message):
    error = refuse(text + line + "\n")
    assert message in error and "hosts/lab.yaml:3: " in error
    assert "pattern" not in error


def test_options_of_sbatch_may_be_in_two_words(write):
    text = f"{SLURM}arguments: [-p, main, --gres=gpu:4, --comment=two words]\n"
    hosts = load_config(write(text), {"train.hosts": "lab", "train.workers": 1}).hosts
    assert hosts.arguments == ["-p", "main", "--gres=gpu:4", "--comment=two words"]


@pytest.mark.parametrize(
    ("cpu", "cores"), [("4", 4.0), ("'4'", 4.0), ("0.5", 0.5), ("500m", 0.5), ("1m", 0.001)]
)
def test_cores_are_a_number_or_a_text(write, cpu, cores):
    values = f"cpu: {cpu}\nmemory: 64Mi\nworkers_per_pod: 2\nvolumes: [{{claim: c, mount: /}}]\n"
    config = write(KUBERNETES + values)
    hosts = load_config(config, {"train.hosts": "lab"}).hosts
    assert (hosts.num_cores, hosts.memory_bytes) == (cores, 64 << 20)
    assert parse_hosts(hosts.model_dump(mode="json")) == hosts


def test_a_gang_that_no_set_of_these_hosts_can_seat_is_refused(write, refuse):
    message = "lab can take 3 workers, and the gang has at least 4 (train.workers). "
    assert message + "Add hosts, or lower it" in refuse(TWO, workers=4)
    fewer = {"train.hosts": "lab", "train.workers": 4, "train.min_workers": 3}
    assert load_config(write(TWO), fewer).hosts.capacity == 3


@pytest.mark.parametrize(
    "text",
    [
        TWO,
        "launcher: slurm\nnodes: 2\nnetwork: trusted\n",
        KUBERNETES + "pods: 2\nvolumes: [{claim: c, mount: /}]\nnetwork: trusted\n",
    ],
    ids=["ssh", "slurm", "kubernetes"],
)
def test_a_gang_on_several_hosts_is_refused_unless_their_network_is_trusted(write, refuse, text):
    """F5."""
    config = write(text)
    assert load_config(config, {"train.hosts": "lab"}).hosts.network == "trusted"
    error = refuse(text.replace("network: trusted\n", ""))
    assert "train.hosts: lab has 2 hosts" in error
    assert (
        "Write `network: trusted` into hosts/lab.yaml if only trusted people reach "
        "the hosts' ports, or train on one host"
    ) in error
    alone = {"train.hosts": "lab", "train.workers": 1, "train.strategy": "one_device"}
    assert load_config(config, alone).hosts.num_hosts == 2, "a single worker has no peers"


def test_a_docker_daemon_is_no_host_of_a_gang(write, refuse):
    error, bucket = refuse(CONTAINER), {"storage.root": "s3://bucket/root"}
    assert "train.hosts: lab is a Docker daemon" in error
    assert "Write runs_on: lab in the place of hosts" in error
    assert load_config(write(CONTAINER), bucket | {"train.runs_on": "lab"}).hosts is None


def test_where_a_training_runs_is_not_what_it_is(write):
    config = write(TWO)
    here = load_config(config)
    elsewhere = {"train.hosts": "lab", "train.min_workers": 1, "train.max_workers": 3}
    there = load_config(config, elsewhere)
    assert here.train.to_fingerprint_dict() == there.train.to_fingerprint_dict()


@pytest.mark.parametrize(
    "name", ["/etc/lab", "../hosts/lab", "lab/../lab", "..", ".lab", "", "lab\n", "~/lab"]
)
def test_hosts_are_a_plain_name_and_never_a_path(write, tmp_path, name):
    """F1: a path would select any YAML file on the disk, and with it a program."""
    config = write(TWO)
    (tmp_path / "lab.yaml").write_text(TWO)
    with pytest.raises(ConfigError, match=r"train\.hosts"):
        load_config(config, {"train.hosts": name})
    with pytest.raises(ConfigError, match=r"train\.hosts: .* must be the name of a file in"):
        load_hosts(tmp_path / "hosts", name)


def test_the_queue_of_slurm_is_not_in_the_fingerprint():
    def digest(*arguments: str) -> dict[str, str]:
        values = {"launcher": "slurm", "nodes": 1, "arguments": [*arguments]}
        return parse_hosts(values).code_digests

    queue = ["--partition=gpu", "--account=a", "--time=1:00:00"]
    assert digest(*queue) == digest() == {}
    assert digest(*queue, "--export=PATH=/x") == digest("--export=PATH=/x") != {}


@pytest.mark.parametrize(
    ("line", "is_program"),
    [
        ("python: /opt/other/python", True),
        ("code: /opt/other", True),
        ("environment: {PYTHONPATH: /opt/other}", True),
        ("config_file: /opt/ssh_config", True),
        ("first_port: 2222\nlast_port: 2223", False),
    ],
)
def test_what_selects_the_code_on_the_hosts_is_in_the_fingerprint_of_the_training(
    write, dataset, line, is_program
):
    """F1: an honest run must not take the weights that foreign code has made."""

    def fingerprint(text: str) -> Fingerprint:
        config = load_config(write(text), {"train.hosts": "lab"} if text else {})
        return plan_job("train", config, "run", {"preprocess": dataset}).request.fingerprint

    alone = fingerprint("")
    assert fingerprint(TWO) == alone
    assert (fingerprint(f"{TWO}{line}\n") != alone) == is_program
    assert "/opt/other" not in fingerprint(f"{TWO}{line}\n").model_dump_json()
