"""`models`: list, promote, roll back."""

from __future__ import annotations

import pytest

from pipeline_ops.cli.main import main


def test_an_empty_registry_says_so(config_file, capsys):
    assert main(["models", str(config_file)]) == 0
    assert "nothing published yet" in capsys.readouterr().out


def test_versions_are_listed_with_metrics_champion_and_history(config_file, publish, capsys):
    publish(1)
    publish(2)
    assert main(["models", str(config_file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("     1  accuracy 0.9800")
    assert lines[1].startswith("*    2  accuracy 0.9800")
    assert lines[2] == "* in service: version 2"
    assert [line.split("  ", 2)[2] for line in lines[3:]] == ["version 1: passed the gate", "version 2: passed the gate"]


def test_root_and_model_do_instead_of_a_config(config_file, publish, capsys):
    publish(1)
    assert main(["models", "--root", str(config_file.parent / "root"), "--model", "digits"]) == 0
    assert "* in service: version 1" in capsys.readouterr().out


def test_a_registry_must_be_named(capsys):
    assert main(["models", "--model", "digits"]) == 78
    assert "--root" in capsys.readouterr().err


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
