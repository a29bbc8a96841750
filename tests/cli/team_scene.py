"""The scene of an attack by a member of team A on team B.

It has finished runs of both teams, a training of team B, and prepared files of team A.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from answering_server import answering_server
from cli import by_hand
from cli.teams import CANARY, Member, Team, TeamRun, Teams
from cli.touching import TouchMonitor, read_states
from processes import find_processes_using, is_running, wait_until

from pipeline_ops.artifacts.layout import Attempt
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.storage.store_path import StorePath

SECRET = f"{CANARY}\n".encode()
APPROVAL = {"timeout_seconds": 1, "on_timeout": "reject"}
_LONG = {
    "train__epochs": 100_000,
    "train__timeout_seconds": 3600,
    "train__retries": 5,
    "train__callbacks": ["pausing:pause"],
}
_PAUSING = """
import time
import keras
pause = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: time.sleep(2))
"""
"""A callback that makes a training last long without load."""
_TRIGGER = """
import json, sys
from airflow.api.common.trigger_dag import trigger_dag
from airflow.utils.types import DagRunTriggeredByType

for run_id, conf in json.loads(sys.argv[2]).items():
    trigger_dag(sys.argv[1], triggered_by=DagRunTriggeredByType.CLI, run_id=run_id, conf=conf)
"""
_HOSTILE_MODEL = """
import sys
import tensorflow as tf

class Planter(tf.lookup.KeyValueTensorInitializer):
    def initialize(self, table):
        tf.io.write_file(sys.argv[2], "planted")
        return super().initialize(table)

class Model(tf.Module):
    def __init__(self):
        super().__init__()
        self.weights = tf.Variable(tf.zeros([3, 3, 1, 8]), name="kernel")
        self.table = tf.lookup.StaticHashTable(Planter(tf.constant(["a"]), tf.constant([1])), 0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def __call__(self, names):
        return self.table.lookup(names)

tf.saved_model.save(Model(), sys.argv[1])
"""


@dataclasses.dataclass
class Scene:
    """The state for exploits. `alice` is the attacker, and `bob` belongs to team B."""

    teams: Teams
    alice: Member
    victor: Member
    bob: Member
    finished_a: TeamRun
    finished_b: TeamRun
    training_b: TeamRun
    their_evaluation: Path
    """The manifest of an evaluation of team B."""
    requests: list[str]
    """The requests to a server on loopback, which must stay empty."""
    address: str

    @property
    def a(self) -> Team:
        return self.teams.a

    @property
    def b(self) -> Team:
        return self.teams.b

    @property
    def quiet(self) -> list[Path]:
        """Folders of team B that its own processes do not use during an attack."""
        return [self.b.raw, self.b.registry, self.b.folder / "storage", self.b.folder / "private"]

    @property
    def secret(self) -> Path:
        return self.b.folder / "private" / "secret.txt"

    @property
    def planted(self) -> Path:
        """A file that an exploit tries to write."""
        return self.b.folder / "storage" / "planted"

    def trigger_unchecked(self, dag: str, confs: Sequence[Mapping[str, Any]]) -> list[TeamRun]:
        """Triggers runs of team A without the checks of the API server."""
        ids = [f"manual__unchecked-{number}" for number in range(len(confs))]
        self.teams.python(_TRIGGER, dag, json.dumps(dict(zip(ids, confs, strict=True))))
        return [TeamRun(self.alice, dag, run_id) for run_id in ids]

    def attempt(self, run: TeamRun) -> Attempt[StorePath]:
        """The newest attempt of a training."""
        team = self.a if run.dag.startswith("a_") else self.b
        return team.layout(run.dag, "live").newest_attempt(run.run_id, "train")

    def wait_for_steps(self, run: TeamRun) -> None:
        """Waits until a run trains, and its task has deferred."""
        run.wait_for("train", ("deferred",))
        progress = self.attempt(run).progress
        wait_until(lambda: progress.exists() and b'"train"' in progress.read(), 120)

    def processes(self, run: TeamRun) -> list[psutil.Process]:
        """The processes of a training."""
        return find_processes_using(self.attempt(run).folder)


def add_pipelines(teams: Teams) -> None:
    """`*_digits` have run, `*_long` train until the end, `a_gated` may have many runs at once."""
    for team in (teams.a, teams.b):
        short = team.name[-1]
        (team.configs / "pausing.py").write_text(_PAUSING)
        team.add_pipeline(f"{short}_digits")
        team.add_pipeline(f"{short}_long", "live", **_LONG)
        by_hand.finish(
            load_config(team.configs / f"{short}_digits.yaml"),
            CANARY.encode() if team is teams.b else b"bytes",
        )
    gate = [{"metric": "accuracy", "at_least": 1.0}]
    for name in ("a_gated", "a_unchecked"):
        teams.a.add_pipeline(name, evaluate__approval=APPROVAL, evaluate__gate=gate)
    private = teams.b.folder / "private"
    private.mkdir()
    (private / "secret.txt").write_bytes(SECRET)
    (private / "hosts.yaml").write_text(
        f"launcher: local\nworkers: 4\nenvironment: {{SECRET: {CANARY}}}\n"
    )
    (private / "list.csv").write_text(f"{CANARY},label\nimage.png,0\n")


def lay_out(scene: Scene) -> None:
    """Files of team A: a hosts file with an interpreter, and raw images that are links."""
    outside = scene.a.folder / "brought"
    outside.mkdir()
    python = outside / "python"
    python.write_text(f'#!/bin/sh\necho planted > {scene.planted}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (outside / "hosts.yaml").write_text(f"launcher: local\nworkers: 4\npython: {python}\n")
    shutil.copytree(scene.a.raw, scene.a.folder / "raw_links")
    (scene.a.folder / "raw_links" / "0" / "link.png").symlink_to(scene.secret)
    (scene.a.folder / "raw_links" / "linked").symlink_to(scene.secret.parent)


def write_hostile_model(scene: Scene, folder: Path) -> None:
    """A SavedModel whose graph writes below team B's storage when it is loaded."""
    subprocess.run(
        [sys.executable, "-c", _HOSTILE_MODEL, folder, scene.planted],
        check=True,
        capture_output=True,
    )
    assert scene.planted.exists(), "the graph runs while it is made"
    scene.planted.unlink()


@contextmanager
def open_scene(teams: Teams) -> Iterator[Scene]:
    """Airflow with both teams, from the first start to the end of every process."""
    add_pipelines(teams)
    [evaluation] = teams.b.layout("b_digits").artifacts("evaluate").local.glob("*/manifest.json")
    try:
        teams.begin()
        alice, bob = teams.log_in("alice"), teams.log_in("bob")
        for member, short in ((bob, "b"), (alice, "a")):
            for name in ("digits", "long"):
                member.wait_for_dag(f"{short}_{name}")
        for name in ("a_gated", "a_unchecked"):
            alice.wait_for_dag(name)
        starts = ((alice, "a_digits"), (bob, "b_digits"), (bob, "b_long"))
        runs = [member.trigger(dag) for member, dag in starts]
        asked: list[str] = []
        # Like the metadata server of a cloud.
        with answering_server(lambda _, path: (200, asked.append(path) or CANARY.encode())) as host:
            address = f"http://{host}/latest/manifest.json"
            scene = Scene(
                teams, alice, teams.log_in("victor"), bob, *runs, evaluation, asked, address
            )
            lay_out(scene)
            for run in runs[:2]:
                assert set(run.wait_for_end().values()) == {"success"}, run.log("preprocess")
            scene.wait_for_steps(scene.training_b)
            yield scene
    finally:
        teams.end()


@contextmanager
def untouched(scene: Scene) -> Iterator[None]:
    """Fails if the block opens or changes anything of team B, or disturbs its training."""
    before, training = read_states(scene.quiet), scene.processes(scene.training_b)
    assert training
    monitor = TouchMonitor(scene.quiet)
    try:
        yield
        assert not (touched := monitor.touched()), touched
    finally:
        monitor.close()
    assert read_states(scene.quiet) == before
    assert all(map(is_running, training)), "the training of team B has lost processes"
    assert not scene.attempt(scene.training_b).cancellation.exists(), (
        "the training of team B was cancelled"
    )
    assert not scene.requests, scene.requests
