"""Launchers beside programs and APIs that fail or are slow."""

from __future__ import annotations

import contextlib
import os
import time
from types import SimpleNamespace

import pytest
from launch.running import make_agent_spec

from pipeline_ops.errors import ConfigError, MachineError
from pipeline_ops.launch.host_pool import HostPool
from pipeline_ops.places.local import LocalLauncher
from pipeline_ops.places.slurm import SlurmHosts, SlurmLauncher
from pipeline_ops.places.ssh import SshHosts, build_ssh_command


@pytest.mark.parametrize("broken", ["nothing", "hostnames", "node"])
def test_an_allocation_of_slurm_is_given_back_if_its_nodes_cannot_be_read(
    monkeypatch, tmp_path, broken
):
    programs, jobs = tmp_path / "programs", tmp_path / "jobs"
    programs.mkdir()
    jobs.mkdir()
    for name, lines in {
        "sbatch": f"touch {jobs}/7; echo 7",
        "squeue": f'[ -e {jobs}/7 ] || exit 0; case "$*" in *%N*) echo n1;; *) echo RUNNING;; esac',
        "scontrol": f"""[ $2 = {broken} ] && echo Unable to contact slurm controller >&2 && exit 1
            [ $2 = hostnames ] && echo $3 || echo NodeAddr=10.0.0.1""",
        "scancel": f'[ "$*" = "--quiet 7" ] && rm {jobs}/7',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{lines}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    job = SimpleNamespace(
        attempt=SimpleNamespace(folder=tmp_path),
        request=SimpleNamespace(pipeline="digits"),
        stored_attempt="",
    )
    launcher = SlurmLauncher(SlurmHosts(launcher="slurm", nodes=1), job)
    if broken == "nothing":
        [host] = launcher.allocate(lambda: None)
        assert (host.name, host.address) == ("n1", "10.0.0.1")
        assert launcher.is_intact()
        launcher.release()
    else:
        with pytest.raises(MachineError, match="Unable to contact"):
            launcher.allocate(lambda: None)
    assert list(jobs.iterdir()) == []
    assert not launcher.is_intact()


class SlowLauncher(LocalLauncher):
    """A cluster whose API takes seconds to answer. It has this machine and hosts without an agent.

    Args:
      others: the errors of the API about the other hosts, by their names.
    """

    def __init__(self, **others: Exception):
        super().__init__()
        self._others, self.seconds = others, 2.0

    def allocate(self, check):
        [here] = super().allocate(check)
        return [*(here.model_copy(update={"name": name}) for name in self._others), here]

    def build_command(self, host, agent):
        time.sleep(self.seconds)
        if host.name in self._others:
            raise self._others[host.name]
        return super().build_command(host, agent)

    def is_intact(self):
        time.sleep(self.seconds)
        raise MachineError("no answer")


@contextlib.contextmanager
def open_pool(folder, launcher, **values):
    """Yields a pool and the durations of its polls, once this machine is ready."""
    with contextlib.closing(HostPool(launcher, make_agent_spec(folder, **values))) as pool:
        pool.allocate(lambda: None)
        durations, deadline = [], time.monotonic() + 60
        while not pool.ready:
            began = time.monotonic()
            assert began < deadline
            pool.poll()
            durations.append(time.monotonic() - began)
        yield pool, durations


def test_a_slow_api_of_a_cluster_does_not_stop_the_pings_of_the_other_hosts(tmp_path):
    lost = {f"lost-{number}": MachineError("no answer") for number in range(20)}
    with open_pool(tmp_path, SlowLauncher(**lost)) as (_, durations):
        assert max(durations) < 1.0 and sum(durations) > 2.0


def test_an_error_of_the_api_about_a_host_is_no_error_of_the_others(tmp_path):
    errors = {"away": MachineError("no answer (503)"), "denied": ConfigError("no right (403)")}
    with open_pool(tmp_path, SlowLauncher(**errors)) as (pool, _):
        deadline = time.monotonic() + 60
        while min(pool.hosts[name].tries for name in errors) < 2:
            assert time.monotonic() < deadline
            pool.poll()
        assert "host away: no answer (503)" in pool.describe_problems()
        assert "host denied: no right (403)" in pool.describe_problems()
        assert pool.hosts["denied"].is_permanent_failure
        assert not pool.hosts["away"].is_permanent_failure
        assert [host.name for host in pool.ready] == ["localhost"]


def test_hosts_are_kept_while_the_api_says_nothing_about_them(tmp_path):
    launcher = SlowLauncher()
    launcher.seconds = 0.0
    with open_pool(tmp_path, launcher, silence_timeout_seconds=3) as (pool, _):
        connection = pool.hosts["localhost"].connection
        launcher.seconds = 5.0
        pool.allocate(lambda: None)
        assert pool.ready and pool.hosts["localhost"].connection is connection
        assert pool.wait_for(lambda: "an answer") == "an answer"


def test_an_ssh_config_file_may_be_in_the_home_of_the_user(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    hosts = SshHosts(launcher="ssh", hosts=[{"name": "a"}], config_file="~/.ssh/other")
    assert build_ssh_command(hosts, "a", ["true"])[:4] == ["ssh", "-T", "-F", "/home/me/.ssh/other"]
