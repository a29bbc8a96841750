"""The images: what is in them, what is not, and as whom they run."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest
from containers import ROOT, wait_until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]

IMAGES = ("airflow", "jobs", "host", "serving", "beam-worker")
JOBS = (
    "beam_jobs.__main__",
    "pipeline_ops.job.study",
    "pipeline_ops.launch.train",
    "pipeline_ops.evaluation.evaluate",
    "pipeline_ops.export.export",
    "pipeline_ops.training.worker",
)
CLOSED = ("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges:true")


@pytest.fixture
def run(docker, image) -> Callable[..., str]:
    """Runs a program in a container of an image, as locked up as in the cluster."""

    def run_program(name: str, *words: str, options: tuple[str, ...] = ()) -> str:
        program, *arguments = words
        entrypoint = f"--entrypoint={program}"
        return docker("run", "--rm", *CLOSED, *options, entrypoint, image(name), *arguments)

    return run_program


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("airflow", ["tensorflow", "apache_beam", "keras", "optuna"]),
        ("jobs", ["airflow"]),
        ("host", ["airflow"]),
        ("serving", ["airflow", "apache_beam"]),
        ("beam-worker", ["airflow", "tensorflow"]),
    ],
)
def test_an_image_lacks_what_it_does_not_need(run, name, absent):
    code = f"import importlib.util as u; print([m for m in {absent} if u.find_spec(m)])"
    assert run(name, "python", "-c", code) == "[]"


def test_the_jobs_can_be_imported_without_airflow(run):
    code = (
        f"import importlib, sys; [importlib.import_module(name) for name in {JOBS}]; "
        "import apache_beam, tensorflow; print('airflow' in sys.modules)"
    )
    assert run("jobs", "python", "-c", code).splitlines()[-1] == "False"


def test_airflow_makes_the_dag_of_a_config(run):
    code = (
        "import runpy; names = runpy.run_path('/opt/trainyard/dags/trainyard.py'); "
        "dags = {name: dag for name, dag in names.items() if type(dag).__name__ == 'DAG'}; "
        "print([name for name, dag in dags.items() if 'broken' not in dag.tags])"
    )
    configs = f"-v={ROOT / 'docker' / 'configs'}:/opt/trainyard/configs:ro"
    output = run("airflow", "python", "-c", code, options=(configs,))
    assert "'digits'" in output.splitlines()[-1]


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_runs_as_a_numeric_user_and_writes_to_its_folder_only(run, docker, image, name):
    user = docker("image", "inspect", "--format", "{{.Config.User}}", image(name))
    assert user == "10001:10001"
    assert run(name, "id", "-u") == "10001"
    script = "touch /work/a /dev/shm/b && ! touch /opt/trainyard/c /tmp/d /etc/e 2>/dev/null"
    run(name, "sh", "-c", script)


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_holds_no_key_and_no_index(docker, image, name):
    """Keys that Debian's packages make would be the same in every container."""
    names = ("ssh_host_*", "pip.conf", ".netrc", "id_*")
    words = [word for each in names for word in ("-o", "-name", each)][1:]
    root = ("run", "--rm", "--user=0", "--workdir=/", "--entrypoint=find")
    found = docker(*root, image(name), "/etc", "/root", "/work", *words)
    assert found == ""
    history = docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", image(name))
    description = docker("image", "inspect", image(name))
    for text in (history, description):
        assert "PIP_INDEX_URL" not in text and "run/secrets" not in text


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_says_what_it_is(docker, image, name):
    labels = json.loads(
        docker("image", "inspect", "--format", "{{json .Config.Labels}}", image(name))
    )
    assert labels["org.opencontainers.image.title"] == f"trainyard-{name}"
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_a_second_build_gives_the_same_files(docker, image, sources):
    """By the other builder, whose cache is empty. Owners, modes and times are the same, too."""
    program = ROOT / "tests" / "docker" / "list_files.py"
    file, again = sources / "docker" / "beam-worker.Dockerfile", "trainyard-again"
    docker.build(again, file, sources, "--no-cache", kit=False)
    listed = []
    for tag in (image("beam-worker"), again):
        root = ("run", "--rm", "--user=0", "--workdir=/", "--entrypoint=python3")
        files = docker(*root, f"-v={program}:/list_files.py:ro", tag, "/list_files.py")
        listed.append(set(files.splitlines()))
    assert listed[0] == listed[1]


def test_the_beam_worker_becomes_healthy(docker, image):
    container = docker("run", "-d", "--rm", *CLOSED, image("beam-worker"))
    try:
        docker.wait_until_healthy(container)
    finally:
        docker("kill", container)


def test_the_compose_file_is_valid(docker):
    done = docker.run("docker-compose", "-f", ROOT / "docker" / "compose.yaml", "config", "-q")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def keys(tmp_path) -> dict[str, object]:
    """Keys of a client and of a host, readable for the container's user, as docker/ makes them."""
    for name in ("client", "ssh_host_key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name]
        subprocess.run(command, check=True)
    (tmp_path / "ssh_host_key").chmod(0o444)
    (tmp_path / "client.pub").rename(tmp_path / "authorized_keys")
    return {name: tmp_path / name for name in ("client", "ssh_host_key", "authorized_keys")}


def test_a_host_lets_in_who_has_the_key_and_nobody_else(engine, docker, image, keys):
    mounts = [
        f"-v={keys[name]}:/run/secrets/{name}:ro" for name in ("ssh_host_key", "authorized_keys")
    ]
    locked_up = ("--rm", "--init", *CLOSED)
    container = docker("run", "-d", "-p", "2222:2222", *locked_up, *mounts, image("host"))
    user, root = (f"{name}@{engine.host_address}" for name in ("trainyard", "root"))
    try:
        ssh = [
            *("ssh", "-T", "-p", "2222", "-o", "StrictHostKeyChecking=no"),
            *("-o", "UserKnownHostsFile=/dev/null", "-o", "IdentitiesOnly=yes"),
        ]
        login = [*ssh, "-o", "BatchMode=yes", "-i", str(keys["client"]), user]
        wait_until(lambda: docker.run(*login, "true").returncode == 0)
        done = docker.run(*login, "python -c 'import tensorflow' && id -u && echo $TMPDIR")
        assert done.stdout.split() == ["10001", "/work"]
        without_key = docker.run(*ssh, "-o", "BatchMode=yes", user, "true")
        assert "Permission denied (publickey)" in without_key.stderr
        as_root = [*login[:-1], root, "true"]
        assert "Permission denied (publickey)" in docker.run(*as_root).stderr
    finally:
        docker("kill", container)
