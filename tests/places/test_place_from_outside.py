"""A place in a package of a user's, which an entry point names."""

from __future__ import annotations

import json

import psutil
import pytest
import yaml
from config_files import write_config
from launch.placed_training import PlacedTraining
from outside_place import install_entry_points

from pipeline_ops.cli.main import main
from pipeline_ops.config import hosts
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.gang_protocol import AGENT_MODULE
from pipeline_ops.errors import ConfigError, ExitCode

WRAPPED = {"launcher": "wrapped", "command": ["nice", "-n", "7"]}


def write_pipeline(folder, content, **changes):
    file = write_config(folder, {f"train.{key}": "lab" for key in changes or ("runs_on",)})
    (folder / "hosts").mkdir(exist_ok=True)
    (folder / "hosts" / "lab.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return file


@pytest.mark.hosts
def test_the_place_of_the_page_runs_a_job_and_a_gang(outside_place, tmp_path, dataset):
    training = PlacedTraining(tmp_path, str(tmp_path / "root"), dataset, WRAPPED, WRAPPED)
    try:
        training.wait_until(lambda: training.read_steps("train"), 300)
        lines = {each.pid: each.cmdline() for each in psutil.process_iter()}
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
'''


@pytest.mark.parametrize(
    ("launcher", "key", "message"),
    [
        ("jobs_only", "hosts", "train.hosts: lab has launcher: jobs_only, which runs jobs and has"),
        ("gangs_only", "runs_on", "launcher: gangs_only, with which no job can be started"),
    ],
)
def test_what_a_place_does_not_have_is_refused_where_it_is_named(
    tmp_path, monkeypatch, launcher, key, message
):
    folder, targets = tmp_path / "outside", ("JobsOnly", "GangsOnly")
    named = dict(zip(("jobs_only", "gangs_only"), (f"limited:{n}" for n in targets), strict=True))
    install_entry_points(folder, monkeypatch, hosts.ENTRY_POINTS, named)
    (folder / "limited.py").write_text(LIMITED)
    other = {"hosts": "runs_on", "runs_on": "hosts"}[key]
    content = {"launcher": launcher}
    load_config(write_pipeline(tmp_path, content, **{other: True}))
    with pytest.raises(ConfigError, match=rf"digits.yaml:\d+: .*{message}"):
        load_config(write_pipeline(tmp_path, content, **{key: True}))
    monkeypatch.undo()
    hosts.find_entry_points.cache_clear()
