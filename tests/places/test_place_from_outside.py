"""A place in a package of a user's, which an entry point names."""

from __future__ import annotations

import json

import psutil
import pytest
import yaml
from config_files import write_config
from launch.placed_training import PlacedTraining
from outside_place import install_entry_points

from pipeline_ops.cli.commands.schema import render_hosts_schema
from pipeline_ops.cli.main import main
from pipeline_ops.config import hosts
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.gang_protocol import AGENT_MODULE
from pipeline_ops.errors import ConfigError, ExitCode

WRAPPED = {"launcher": "wrapped", "command": ["nice", "-n", "7"]}


def write_pipeline(folder, content, **changes):
    (folder / "root").mkdir(exist_ok=True)
    keys = {f"train.{key}": "lab" for key in changes or ("runs_on",)}
    file = write_config(folder, {"storage.root": str(folder / "root")} | keys)
    (folder / "hosts").mkdir(exist_ok=True)
    (folder / "hosts" / "lab.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return file


@pytest.mark.hosts
def test_the_place_of_the_page_runs_a_job_and_a_gang(outside_place, tmp_path, dataset):
    training = PlacedTraining(tmp_path, str(tmp_path / "root"), dataset, WRAPPED, WRAPPED)
    try:
        training.wait_until(lambda: training.read_steps("train"), 300)
        # Those that end meanwhile have None.
        lines = {each.pid: each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])}
        nice = psutil.Process().nice()
        job, agent = (
            [
                psutil.Process(pid).nice()
                for pid, line in lines.items()
                if module in line and str(tmp_path) in " ".join(line)
            ]
            for module in ("pipeline_ops.launch.train", AGENT_MODULE)
        )
        assert (job, agent) == ([nice + 7], [nice + 14])
        assert training.end(600).workers == 2
    finally:
        training.remove()


def test_its_keys_are_checked_and_described_like_ours(outside_place, tmp_path, capsys):
    file = write_pipeline(tmp_path, WRAPPED | {"comand": []})
    with pytest.raises(ConfigError, match=r"lab.yaml:6: comand: unknown key; .* 'command'"):
        load_config(file)
    with pytest.raises(ConfigError, match="'wraped'; the nearest valid name is 'wrapped'"):
        load_config(write_pipeline(tmp_path, WRAPPED | {"launcher": "wraped"}))
    file = write_pipeline(tmp_path, WRAPPED, runs_on=True, hosts=True)
    assert main(["explain", str(file), "--hosts"]) == ExitCode.SUCCESS
    assert "train       wrapped     hosts/lab.yaml" in capsys.readouterr().out
    assert main(["schema", "--hosts"]) == ExitCode.SUCCESS
    schema = json.loads(capsys.readouterr().out)
    assert "wrapped" in schema["properties"]["launcher"]["enum"]
    assert main(["reference"]) == ExitCode.SUCCESS
    reference = capsys.readouterr().out.partition("`launcher: wrapped`")[2]
    assert "| `command` |" in reference and "The program and its arguments" in reference


def test_a_broken_package_is_named_and_the_other_places_are_described(
    tmp_path, monkeypatch, capsys
):
    with monkeypatch.context() as changes:
        targets = {"lost": "no_such_module:Hosts"}
        install_entry_points(tmp_path / "outside", changes, hosts.ENTRY_POINTS, targets)
        for words in (["schema", "--hosts"], ["reference"]):
            assert main(words) == ExitCode.SUCCESS
            output = capsys.readouterr()
            assert "launcher lost: its entry point no_such_module:Hosts" in output.err
            assert "lost" in output.out and "tf_config" in output.out
        schema = json.loads(render_hosts_schema())
        assert "lost" in schema["properties"]["launcher"]["enum"]
    hosts.find_entry_points.cache_clear()


def test_a_host_without_its_package_is_told_the_entry_point(outside_place, tmp_path):
    request = load_config(write_pipeline(tmp_path, WRAPPED)).find_job_hosts("train").model_dump()
    assert hosts.parse_hosts(request).command == WRAPPED["command"]
    with pytest.raises(ConfigError, match="launcher other is not installed in .*trainyard.places"):
        hosts.parse_hosts(request | {"launcher": "other"})


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_module:Hosts", "can't be imported: ModuleNotFoundError: No module named"),
        ("json:NoSuchName", "can't be imported: AttributeError"),
        ("json:dumps", "must be a class that derives from"),
        ("pathlib:Path", "must be a class that derives from"),
    ],
)
def test_a_wrong_entry_point_is_named(tmp_path, monkeypatch, target, message):
    install_entry_points(tmp_path / "outside", monkeypatch, hosts.ENTRY_POINTS, {"far": target})
    with pytest.raises(ConfigError, match=f"launcher far: its entry point {target}.*{message}"):
        load_config(write_pipeline(tmp_path, {"launcher": "far"}))
    monkeypatch.undo()
    hosts.find_entry_points.cache_clear()


def test_two_packages_with_one_name_are_both_named(outside_place, tmp_path, monkeypatch):
    """Which of them is meant can't be known."""
    metadata = tmp_path / "another" / "another-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: another\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{hosts.ENTRY_POINTS}]\nwrapped = json:loads\n")
    monkeypatch.syspath_prepend(str(metadata.parent))
    hosts.find_entry_points.cache_clear()
    both = "json:loads, wrapped_place:WrappedHosts. Remove all but one"
    with pytest.raises(ConfigError, match=both):
        load_config(write_pipeline(tmp_path, WRAPPED))


LIMITED = '''
from typing import Literal
from pipeline_ops.places.local import LocalLauncher, LocalPlace
from pipeline_ops.places.place import PlaceSection


class JobsOnly(PlaceSection):
    """Jobs, and no gangs."""

    launcher: Literal["jobs_only"]

    def open_place(self):
        return LocalPlace()


class GangsOnly(PlaceSection):
    """Gangs, and no jobs."""

    launcher: Literal["gangs_only"]

    @property
    def capacity(self):
        return 4

    def make_launcher(self, job):
        return LocalLauncher()

    def list_hosts(self):
        return LocalLauncher().allocate(lambda: None)


class Nothing(PlaceSection):
    """No jobs, and no gangs."""

    launcher: Literal["nothing"]


class Unfinished(PlaceSection):
    """Gangs of an unknown size, and a mistake."""

    launcher: Literal["unfinished"]

    def make_launcher(self, job):
        return LocalLauncher()

    def open_place(self):
        return no_such_name


class Misnamed(PlaceSection):
    """Another name."""

    launcher: Literal["other"]
'''
NAMES = {
    "jobs_only": "JobsOnly",
    "gangs_only": "GangsOnly",
    "nothing": "Nothing",
    "unfinished": "Unfinished",
    "misnamed": "Misnamed",
}


@pytest.fixture
def limited(tmp_path, monkeypatch):
    """A package of places that lack something."""
    targets = {launcher: f"limited:{name}" for launcher, name in NAMES.items()}
    with monkeypatch.context() as changes:
        install_entry_points(tmp_path / "outside", changes, hosts.ENTRY_POINTS, targets)
        (tmp_path / "outside" / "limited.py").write_text(LIMITED)
        yield
    hosts.find_entry_points.cache_clear()


@pytest.mark.parametrize(
    ("launcher", "key", "message"),
    [
        (
            "jobs_only",
            "hosts",
            "train.hosts: lab has launcher: jobs_only, which has no hosts for a gang: its class "
            "JobsOnly does not override make_launcher, capacity, list_hosts. Write runs_on: lab",
        ),
        (
            "gangs_only",
            "runs_on",
            "launcher: gangs_only, which runs no jobs: its class GangsOnly does not override "
            "open_place. Name it in train.hosts",
        ),
        ("nothing", "hosts", "class Nothing does not override make_launcher, capacity, list_hosts"),
        ("nothing", "runs_on", "its class Nothing does not override open_place. $"),
        ("unfinished", "hosts", "its class Unfinished does not override capacity, list_hosts"),
    ],
)
def test_what_a_place_does_not_have_is_refused_where_it_is_named(
    limited, tmp_path, launcher, key, message
):
    other = {"hosts": "runs_on", "runs_on": "hosts"}[key]
    if launcher.endswith("_only"):
        load_config(write_pipeline(tmp_path, {"launcher": launcher}, **{other: True}))
    with pytest.raises(ConfigError, match=rf"digits.yaml:\d+: .*{message}"):
        load_config(write_pipeline(tmp_path, {"launcher": launcher}, **{key: True}))


def test_another_name_in_the_class_is_told_as_one_of_the_class(limited, tmp_path):
    message = r"the class limited:Misnamed .* has launcher: Literal\['other'\]. Give both the same"
    with pytest.raises(ConfigError, match=message):
        load_config(write_pipeline(tmp_path, {"launcher": "misnamed"}))


def test_a_mistake_in_the_class_is_a_finding_of_the_doctor(limited, tmp_path, capsys):
    file = write_pipeline(tmp_path, {"launcher": "unfinished"})
    assert main(["doctor", str(file)]) == ExitCode.RETRY
    found = capsys.readouterr().out
    assert "PROBLEM  hosts/lab.yaml: NameError: name 'no_such_name' is not defined" in found
    assert "limited.py:" in found and "with a warning." in found.splitlines()[-1]
