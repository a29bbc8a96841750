"""`models`: list, promote, roll back."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import publishers
import pytest
import yaml
from polling_server import PollingServer

from pipeline_ops.contract.manifest import find_damage, read_manifest
from pipeline_ops.registry.registry import Registry


def set_registry(config_file: Path, uri: str) -> None:
    values = yaml.safe_load(config_file.read_text())
    values["export"]["registry"] = uri
    config_file.write_text(yaml.safe_dump(values))


def test_an_empty_registry_says_so(config_file, command):
    assert "no published versions" in command("models", config_file)


def test_versions_are_listed_with_metrics_champion_and_history(config_file, publish, command):
    publish(1)
    publish(2)
    lines = command("models", config_file).splitlines()
    figures = "0.0 MiB accuracy 0.9800 macro_precision 0.9700"
    assert [" ".join(line.split()) for line in lines[:2]] == [
        f"1 {figures} @previous",
        f"* 2 {figures}",
    ]
    assert lines[2] == "* in service: version 2"
    assert lines[3] == f"  the folder of version N is {config_file.parent}/root/models/digits/N"
    assert [line.split("  ", 2)[2] for line in lines[4:]] == [
        "version 1: passed the gate",
        "version 2: passed the gate",
    ]


def test_a_version_has_its_date_its_size_and_its_run_in_lines_of_at_most_100_columns(
    config_file, publish, command
):
    run_id = "scheduled__2026-11-01T03:00:00+00:00" + "-again" * 20
    change_manifest(
        config_file,
        publish,
        made_by={"run_id": run_id, "time": "2026-11-01T04:05:06Z"},
        metrics={f"a_long_name_of_a_metric_{number}": 0.5 for number in range(4)},
        files=[{"path": "saved_model.pb", "num_bytes": 3 << 20, "crc32c": "00000000"}],
    )
    reason = "the customers in the north have complained about sevens that are ones; " * 5
    command("models", "alias", config_file, "canary", "1", "--reason", reason)
    output = command("models", config_file)
    lines = [line for line in output.splitlines() if "the folder of version" not in line]
    assert max(map(len, lines)) <= 100
    assert lines[0] == (
        "*    1  2026-11-01 04:05 UTC      3.0 MiB  a_long_name_of_a_metric_0 0.5000  @canary"
    )
    words = output.split()
    assert run_id in "".join(words) and " ".join(reason.split()) in " ".join(words)


def change_manifest(config_file, publish, metrics, **fields) -> None:
    """Publishes version 1 with other fields in its manifest."""
    publish(1)
    file = config_file.parent / "root" / "models" / "digits" / "1" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["figures"]["metrics"] = metrics
    file.write_text(json.dumps(manifest | fields))


def test_place_and_model_do_instead_of_a_config(config_file, publish, command):
    publish(1)
    registry = config_file.parent / "root" / "models"
    output = command("models", "--registry", registry, "--model", "digits")
    assert "* in service: version 1" in output
    assert "--registry" in command("models", "--model", "digits", status=78)


def test_promote_and_roll_back_move_the_champion(config_file, publish, command):
    publish(1)
    assert command("models", "promote", config_file, "7", status=78)
    assert command("models", "rollback", config_file, status=78)
    publish(2)
    assert "version 1 is in service again" in command("models", "rollback", config_file)
    assert "version 2 is in service" in command("models", "promote", config_file, "2")


def test_an_alias_names_a_version_and_is_listed_until_it_is_taken_away(
    config_file, publish, command
):
    publish(1)
    publish(2)
    reason = "for a tenth of the users"
    command("models", "alias", config_file, "canary", "1", "--reason", reason)
    output = command("models", config_file)
    assert "@canary" in output and f"@canary version 1: {reason}" in output
    assert "@canary is removed" in command("models", "alias", config_file, "canary")


def test_retiring_says_what_went_and_never_takes_the_champion_or_the_one_before(
    config_file, publish, command
):
    for number in (1, 2, 3, 4):
        publish(number)
    output = command("models", "retire", config_file, "--keep", "1")
    assert output == "retired: version 1, version 2\n"
    output = command("models", "retire", config_file, "--keep", "0", status=78)
    assert "--keep 0: must be at least 1" in output


def test_programs_get_json(config_file, publish, command):
    publish(1)
    output = json.loads(command("models", config_file, "--json"))
    assert output["aliases"] == {"champion": 1} and output["versions"][0]["aliases"] == ["champion"]
    assert output["versions"][0]["figures"]["metrics"]["accuracy"] == 0.98
    assert output["versions"][0]["made_by"] is None and output["versions"][0]["num_bytes"] == 0


def test_a_registry_on_s3_is_promoted_rolled_back_and_fetched_from(
    config_file, s3_uri, tmp_path, command
):
    set_registry(config_file, s3_uri.removesuffix("/digits"))
    registry = Registry(s3_uri)
    for digest in "ab":
        publishers.publish(registry, digest)
    command("models", "promote", config_file, "1")
    command("models", "promote", config_file, "2")
    output = command("models", "rollback", config_file)
    assert f"version 1 is in service again: {s3_uri}/1" in output
    folder = Path(command("models", "fetch", config_file, "champion", tmp_path / "here").strip())
    assert folder == tmp_path / "here" / "1" and (folder / "saved_model.pb").exists()
    manifest = folder / "manifest.json"
    assert find_damage(manifest, read_manifest(manifest), checksums=True) == []


def test_a_server_of_the_documented_folder_follows_a_rollback(
    config_file, publish, command, tmp_path
):
    page = (Path(__file__).parents[2] / "docs/publish-and-serve.md").read_text()
    [line] = re.findall("^trainyard (models fetch .*)$", page, re.MULTILINE)[:1]
    words = shlex.split(line, comments=True)
    assert words == ["models", "fetch", "CONFIG", "champion", "/srv/digits"]
    served = tmp_path / "srv" / "digits"
    fetch = [{"CONFIG": config_file, "/srv/digits": served}.get(word, word) for word in words]
    for number in (1, 2):
        publish(number)
    with PollingServer(served) as server:
        assert command(*fetch) == f"{served}/2\n"
        server.wait()
        command("models", "rollback", config_file)
        output = command(*fetch)
        server.wait()
        command("models", "promote", config_file, "2")
        assert command(*fetch) == f"{served}/2\n"
    assert server.served == ["2", "1", "2"] and server.damage == []
    assert output.splitlines() == [
        f"{served}/1",
        f"withdrawn and removed: {served}/2",
        f"a server that polls {served} serves version 1 (@champion)",
    ]


def test_a_store_that_was_not_tested_is_refused_with_the_reason(config_file, command):
    set_registry(config_file, "ftp://host/models")
    assert (
        "export.registry: must be a folder, or begin with s3:// or gs:// or az://, "
        "got ftp://host/models"
    ) in command("models", config_file, status=78)


@pytest.mark.usefixtures("s3_uri")
def test_a_bucket_that_is_not_there_is_named(command):
    words = ("models", "--registry", "s3://no-such-bucket/models", "--model", "digits")
    assert "Create it, or name another" in command(*words, status=78)


@pytest.mark.stores
def test_a_store_that_can_not_be_reached_is_a_machine_failure(s3_uri):
    words = ["models", "--registry", s3_uri.removesuffix("/digits"), "--model", "digits"]
    argv = [sys.executable, "-m", "pipeline_ops.cli.main", *words]
    environment = os.environ | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}
    ended = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert ended.returncode == 75, ended.stderr
    assert "Check that the store can be reached" in ended.stderr
