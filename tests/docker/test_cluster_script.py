"""Tests of docker/cluster.sh without a daemon: its calls of a `docker` that writes them down."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from containers import ROOT

DOCKER = """#!/bin/sh
echo "$*" >> "$CALLS"
case "$*" in
    *" find "*) echo "${UNREADABLE:-}" ;;
    *" ps -a -q") echo data ;;
    "inspect "*) echo "/data ${STATE:-exited0}" ;;
esac
"""
"""It is compose, too. As in compose v2, `ps -q` alone lists no containers that have ended."""


class Script:
    """A copy of the script in a folder of its own."""

    def __init__(self, folder: Path):
        self.folder = folder / "docker"
        self._calls = folder / "calls"
        self._programs = folder / "programs"
        (self.folder / "configs").mkdir(parents=True)
        (self.folder / "configs" / "digits.yaml").touch()
        shutil.copy(ROOT / "docker" / "cluster.sh", self.folder)
        self._programs.mkdir()
        (self._programs / "docker").write_text(DOCKER)
        (self._programs / "docker").chmod(0o755)

    def __call__(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        path = f"{self._programs}:{os.environ['PATH']}"
        return subprocess.run(
            ["sh", str(self.folder / "cluster.sh"), *words],
            env={"PATH": path, "CALLS": str(self._calls), "WAIT_SECONDS": "0"} | environment,
            capture_output=True,
            text=True,
        )

    def list_calls(self, word: str) -> list[str]:
        lines = self._calls.read_text().splitlines() if self._calls.exists() else []
        return [line for line in lines if word in line.split()]

    def find_secrets(self, name: str) -> Path:
        """The folder of a cluster's secrets, with the one that `up` prints."""
        folder = self.folder / ".secrets" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "airflow_passwords").write_text('{"admin": "secret"}')
        return folder


@pytest.fixture
def script(tmp_path) -> Script:
    script = Script(tmp_path)
    script.find_secrets("trainyard")
    return script


@pytest.mark.parametrize("words", [(), ("start",), ("make_secrets",)])
def test_an_unknown_command_prints_the_usage(script, words):
    done = script(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: cluster.sh up | run")


def test_up_builds_the_images_and_prints_the_login(script):
    done = script("up")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("user admin   password secret\n")
    assert script.list_calls("build")


def test_images_of_a_registry_are_pulled_and_not_built(script):
    images = {
        "AIRFLOW_IMAGE": "registry.example/airflow:1",
        "HOST_IMAGE": "registry.example/host:1",
    }
    program = script.folder.parent / "programs" / "docker"
    program.write_text(
        DOCKER.replace('"inspect "*)', '"image inspect "*) exit 1 ;;\n "inspect "*)')
    )
    assert script("up", BUILD="no", **images).returncode == 0
    assert script.list_calls("build") == []
    assert [call.split()[-1] for call in script.list_calls("pull")] == list(images.values())
    [up] = script.list_calls("up")
    assert "--no-build" in up


def test_images_that_are_there_are_not_pulled(script):
    assert script("up", BUILD="no").returncode == 0
    assert script.list_calls("pull") == []


def test_a_container_that_has_failed_is_named(script):
    done = script("up", STATE="exited1", WAIT_SECONDS="-1")
    assert done.returncode == 1
    assert "/data exited1" in done.stderr


def test_configs_that_the_containers_cannot_read_are_named_before_the_start(script):
    done = script("up", UNREADABLE="/configs/digits.yaml")
    assert done.returncode == 1
    assert "/configs/digits.yaml" in done.stderr
    assert f"chmod -R a+rX {script.folder}/configs" in done.stderr
    assert script.list_calls("up") == []


def test_each_cluster_has_its_own_secrets(script):
    first, second = script.find_secrets("trainyard"), script.find_secrets("second")
    assert script("down", COMPOSE_PROJECT_NAME="second").returncode == 0
    assert first.exists() and not second.exists()
    compose = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
    for name, secret in compose["secrets"].items():
        assert secret["file"] == f"./.secrets/${{COMPOSE_PROJECT_NAME:-trainyard}}/{name}"


def test_a_run_names_its_config_and_its_settings(script):
    (script.folder / "configs" / "own.yaml").touch()
    assert script("run", "own.yaml", "--set", "train.epochs=3").returncode == 0
    [call] = script.list_calls("exec")
    assert call.endswith("/opt/trainyard/configs/own.yaml --set train.epochs=3")


def test_a_config_that_is_not_there_is_named(script):
    done = script("run", "own.yaml")
    assert done.returncode == 1
    assert f"{script.folder}/configs/own.yaml does not exist" in done.stderr


def test_services_of_the_cluster_are_reached_without_a_proxy():
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    airflow = [name for name, one in services.items() if "AIRFLOW_IMAGE" in one["image"]]
    for name in airflow:
        excluded = services[name]["environment"]["NO_PROXY"].split(",")
        assert {"127.0.0.1", "api-server", "worker", "triggerer", "s3"} <= set(excluded)
    for name in ("s3", "data"):
        assert services[name]["environment"]["NO_PROXY"] == "*"
