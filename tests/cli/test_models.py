"""`models`: list, promote, roll back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import publishers
import pytest
import yaml

from pipeline_ops.artifacts.damage import find_damage
from pipeline_ops.artifacts.manifest import read_manifest
from pipeline_ops.cli.main import main
from pipeline_ops.registry.registry import Registry


def test_an_empty_registry_says_so(config_file, capsys):
    assert main(["models", str(config_file)]) == 0
    assert "no published versions" in capsys.readouterr().out


def test_versions_are_listed_with_metrics_champion_and_history(config_file, publish, capsys):
    publish(1)
    publish(2)
    assert main(["models", str(config_file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("     1  accuracy 0.9800")
    assert lines[1].startswith("*    2  accuracy 0.9800")
    assert lines[2] == "* in service: version 2"
    assert [line.split("  ", 2)[2] for line in lines[3:]] == [
        "version 1: passed the gate",
        "version 2: passed the gate",
    ]


def test_place_and_model_do_instead_of_a_config(config_file, publish, capsys):
    publish(1)
    assert (
        main(
            [
                "models",
                "--registry",
                str(config_file.parent / "root" / "models"),
                "--model",
                "digits",
            ]
        )
        == 0
    )
    assert "* in service: version 1" in capsys.readouterr().out


def test_a_registry_must_be_named(capsys):
    assert main(["models", "--model", "digits"]) == 78
    assert "--registry" in capsys.readouterr().err


def test_promote_and_roll_back_move_the_champion(config_file, publish, capsys):
    publish(1)
    publish(2)
    assert main(["models", "rollback", str(config_file)]) == 0
    assert "version 1 is in service again" in capsys.readouterr().out
    assert main(["models", "promote", str(config_file), "2"]) == 0
    assert "version 2 is in service" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["promote", "{}", "7"], ["rollback", "{}"]])
def test_what_is_not_there_can_not_come_into_service(config_file, publish, capsys, words):
    publish(1)
    assert main(["models", *(word.format(config_file) for word in words)]) == 78
    assert capsys.readouterr().err


def test_an_alias_names_a_version_and_is_listed_until_it_is_taken_away(
    config_file, publish, capsys
):
    publish(1)
    publish(2)
    assert (
        main(
            [
                "models",
                "alias",
                str(config_file),
                "canary",
                "1",
                "--reason",
                "for a tenth of the users",
            ]
        )
        == 0
    )
    assert main(["models", str(config_file)]) == 0
    output = capsys.readouterr().out
    assert "@canary" in output and "@canary version 1: for a tenth of the users" in output
    assert main(["models", "alias", str(config_file), "canary"]) == 0
    assert "@canary is removed" in capsys.readouterr().out


def test_retiring_says_what_went_and_never_takes_the_champion_or_the_one_before(
    config_file, publish, capsys
):
    for number in (1, 2, 3, 4):
        publish(number)
    assert main(["models", "retire", str(config_file), "--keep", "1"]) == 0
    assert capsys.readouterr().out == "retired: version 1, version 2\n"
    assert main(["models", "retire", str(config_file), "--keep", "0"]) == 78
    assert "--keep 0: must be at least 1" in capsys.readouterr().err


def test_programs_get_json(config_file, publish, capsys):
    publish(1)
    assert main(["models", str(config_file), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["aliases"] == {"champion": 1} and output["versions"][0]["aliases"] == ["champion"]
    assert output["versions"][0]["figures"]["metrics"]["accuracy"] == 0.98


def test_a_registry_on_s3_is_promoted_rolled_back_and_fetched_from(
    config_file, s3_uri, tmp_path, capsys
):
    values = yaml.safe_load(config_file.read_text())
    values["export"]["registry"] = s3_uri.removesuffix("/digits")
    config_file.write_text(yaml.safe_dump(values))
    registry = Registry(s3_uri)
    for digest in "ab":
        publishers.publish(registry, digest)
    for words in (["promote", "1"], ["promote", "2"], ["rollback"]):
        assert main(["models", words[0], str(config_file), *words[1:]]) == 0
    assert f"version 1 is in service again: {s3_uri}/1" in capsys.readouterr().out
    assert main(["models", "fetch", str(config_file), "champion", str(tmp_path / "here")]) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert folder == tmp_path / "here" / "1" and (folder / "saved_model.pb").exists()
    assert (
        find_damage(
            folder / "manifest.json", read_manifest(folder / "manifest.json"), checksums=True
        )
        == []
    )


def test_a_store_that_was_not_tested_is_refused_with_the_reason(config_file, capsys):
    values = yaml.safe_load(config_file.read_text())
    values["export"]["registry"] = "ftp://host/models"
    config_file.write_text(yaml.safe_dump(values))
    assert main(["models", str(config_file)]) == 78
    assert (
        "export.registry: must be a folder, or begin with s3:// or gs:// or az://, "
        "got ftp://host/models" in capsys.readouterr().err
    )


def test_a_bucket_that_is_not_there_is_named(s3_uri, capsys):
    assert main(["models", "--registry", "s3://no-such-bucket/models", "--model", "digits"]) == 78
    assert "Create it, or name another" in capsys.readouterr().err


def test_a_store_that_can_not_be_reached_is_a_machine_failure(s3_uri):
    command = [
        sys.executable,
        "-m",
        "pipeline_ops.cli.main",
        "models",
        "--registry",
        s3_uri.removesuffix("/digits"),
        "--model",
        "digits",
    ]
    environment = os.environ | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 75, ended.stderr
    assert "Check that the store can be reached" in ended.stderr
