"""`trainyard run` whose programs are killed at a random moment: the next one finishes it.

`TRAINYARD_KILLS=30` is the number of runs.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from cli.trainyard_command import Trainyard, parse_summary
from processes import wait_until

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.gang_protocol import AGENT_MODULE
from pipeline_ops.contract.layout import Layout, iterate_manifests
from pipeline_ops.contract.manifest import find_damage
from pipeline_ops.planning.job_kinds import JOBS
from pipeline_ops.registry.registry import Registry

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("TRAINYARD_KILLS", "3"))
SECONDS = 30
"""A little less than a run takes on two cores, so that most kills meet one."""
VICTIMS = {
    "the command": lambda words: "pipeline_ops.cli.main" in words,
    "airflow": lambda words: any("airflow" in word for word in words),
    "a job": lambda words: "--request" in words or AGENT_MODULE in words,
    "everything": lambda words: True,
}


def list_processes(trainyard: Trainyard) -> list[psutil.Process]:
    """The command, Airflow and the jobs. Airflow's processes overwrite their environment."""
    home, found = f"TRAINYARD_HOME={trainyard.folder}", set[psutil.Process]()
    with contextlib.suppress(psutil.NoSuchProcess):
        command = psutil.Process(trainyard.process.pid)
        found |= {command, *command.children(recursive=True)}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if home in Path(f"/proc/{process.pid}/environ").read_text(errors="replace").split("\0"):
                found |= {process, *process.children(recursive=True)}
    return [each for each in found if each.is_running() and each.pid != os.getpid()]


def kill_some(trainyard: Trainyard, victim: str, draw: random.Random) -> int:
    chosen = []
    for process in sorted(list_processes(trainyard), key=lambda each: each.pid):
        with contextlib.suppress(psutil.Error):
            if VICTIMS[victim](process.cmdline()):
                chosen.append(process)
    if victim in ("airflow", "a job") and chosen:
        chosen = [draw.choice(chosen)]
    for process in chosen:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return len(chosen)


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_run_whose_programs_are_killed_at_any_moment_is_finished_by_the_next_one(tmp_path, seed):
    draw = random.Random(seed)
    victim = [*VICTIMS][seed % len(VICTIMS)]
    trainyard = Trainyard(tmp_path, train__epochs=2, train__model="dense")
    pipe = subprocess.PIPE
    process = trainyard.start("run", "--json", str(trainyard.config), stdout=pipe, stderr=pipe)
    moment = draw.uniform(0.5, SECONDS)
    time.sleep(moment)
    while not (count := kill_some(trainyard, victim, draw)) and process.poll() is None:
        time.sleep(0.1)  # none of the victims runs at this moment
    output, errors = process.communicate(timeout=600)
    print(f"killed {count} of {victim} after {moment:.0f} s: exit {process.returncode}")
    if process.returncode:
        assert "Traceback" not in errors, errors
    for _ in range(3):
        if (last := trainyard.run()).returncode == 0:
            break
    summary = parse_summary(last)
    assert summary["state"] == "success"
    config = load_config(trainyard.config)
    layout = Layout(config.root, config.pipeline)
    for job in JOBS:
        [(path, manifest)] = iterate_manifests(layout.artifacts(job))
        assert find_damage(path, manifest, checksums=True) == []
    registry = Registry(config.registry)
    [version] = registry.list_versions()
    assert registry.find_champion() == version
    assert len(registry.read_history().moves) == 1
    wait_until(lambda: not list_processes(trainyard), 60)
