"""Launchers beside programs that fail. Nothing is started."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from launch.running import make_agent_spec

from pipeline_ops.config.hosts import SlurmHosts
from pipeline_ops.errors import MachineError
from pipeline_ops.launch import launchers
from pipeline_ops.launch.host_pool import HostPool


@pytest.mark.parametrize("broken", ["", "hostnames", "node"])
def test_an_allocation_of_slurm_is_given_back_if_its_nodes_cannot_be_read(
    monkeypatch, tmp_path, broken
):
    calls = []

    def run_slurm(program, *words, **_):
        calls.append([program, *words])
        if broken and program == "scontrol" and words[1] == broken:
            raise MachineError("scontrol: unable to contact the controller")
        answers = {"sbatch": "7", "scancel": "", "scontrol": "n1" if "hostnames" in words else ""}
        return answers.get(program, "RUNNING" if "--states=all" in words else "n1")

    monkeypatch.setattr(launchers, "run_slurm", run_slurm)
    job = SimpleNamespace(
        attempt=SimpleNamespace(folder=tmp_path),
        request=SimpleNamespace(pipeline="digits"),
        stored_attempt="",
    )
    launcher = launchers.SlurmLauncher(SlurmHosts(launcher="slurm", nodes=1), job)
    if broken:
        with pytest.raises(MachineError, match="unable to contact"):
            launcher.allocate(lambda: None)
    else:
        assert [host.name for host in launcher.allocate(lambda: None)] == ["n1"]
    assert (["scancel", "--quiet", "7"] in calls) == bool(broken)
    assert launcher.is_intact() == (not broken)


class SlowLauncher(launchers.LocalLauncher):
    """A cluster whose API takes two seconds to say where an agent goes."""

    def build_command(self, host, agent):
        time.sleep(2.0)
        return super().build_command(host, agent)


def test_a_slow_api_of_a_cluster_does_not_stop_the_pings_of_the_other_hosts(tmp_path):
    pool = HostPool(SlowLauncher(), make_agent_spec(tmp_path))
    try:
        pool.allocate(lambda: None)
        durations, deadline = [], time.monotonic() + 60
        while not pool.ready:
            began = time.monotonic()
            assert began < deadline
            pool.poll()
            durations.append(time.monotonic() - began)
        assert max(durations) < 1.0 and sum(durations) > 2.0
    finally:
        pool.close()
