"""`trainyard runs`, over summaries that runs have left."""

from __future__ import annotations

import json
import os

import pytest
from config_files import write_config

from pipeline_ops.cli.main import main
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.outcome import RunOutcome
from pipeline_ops.contract.run_summary import MetricSummary, RunSummary, write_summary
from pipeline_ops.errors import ExitCode

KINDS = ("published", "unchanged", "refused")


@pytest.fixture
def config(tmp_path):
    """A pipeline with three runs, the last of which is the newest."""
    file = write_config(tmp_path, {"storage.root": str(tmp_path / "root")})
    layout = Layout(load_config(file).root, "digits")
    for number, kind in enumerate(KINDS):
        metric = MetricSummary(value=0.98, champion=0.99)
        summary = RunSummary(
            run_id=f"run {number}",
            outcome=RunOutcome(kind=kind, sentence=f"It was {kind}."),
            ended=1_796_000_000 + 60 * number,
            triggered_by="anna",
            metrics={"accuracy": metric},
            num_examples={"train": 1437, "test": 360},
            num_rejected=2,
            values={"train.epochs": 3},
        )
        write_summary(layout, summary)
        os.utime(layout.run_summary(summary.run_id).local, (number, number))
    return file


def test_the_newest_run_comes_first_with_its_sentence(config, capsys):
    assert main(["runs", str(config)]) == ExitCode.SUCCESS
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "2026-11-30 00:55 UTC  anna  accuracy 0.9800 (−0.0100)  1,797 examples  2 rejected  "
        "train.epochs=3",
        "    It was refused.",
    ]
    assert [line.strip() for line in lines[1::2]] == [f"It was {kind}." for kind in KINDS[::-1]]


def test_unchanged_ones_can_be_left_out_and_the_number_is_limited(config, capsys):
    assert main(["runs", str(config), "--changed"]) == ExitCode.SUCCESS
    assert "unchanged" not in capsys.readouterr().out
    assert main(["runs", str(config), "--newest", "1"]) == ExitCode.SUCCESS
    out = capsys.readouterr().out
    assert "It was refused." in out and "It was published." not in out
    assert "and 2 older ones: --newest 3" in out


def test_json_has_an_object_a_line(config, capsys):
    assert main(["runs", str(config), "--json"]) == ExitCode.SUCCESS
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [run["outcome"]["kind"] for run in found] == [*KINDS[::-1]]
    assert found[0]["metrics"]["accuracy"] == {
        "value": 0.98,
        "champion": 0.99,
        "low": None,
        "high": None,
    }


def test_a_damaged_summary_is_named_and_the_others_are_listed(config, capsys):
    layout = Layout(load_config(config).root, "digits")
    layout.run_summary("run 1").write(b"[")
    assert main(["runs", str(config)]) == ExitCode.SUCCESS
    printed = capsys.readouterr()
    assert "summary.json: not a valid RunSummary" in printed.err
    assert "It was refused." in printed.out and "It was published." in printed.out


def test_a_pipeline_without_runs_says_so(tmp_path, capsys):
    file = write_config(tmp_path, {"storage.root": str(tmp_path / "root")})
    assert main(["runs", str(file)]) == ExitCode.SUCCESS
    assert capsys.readouterr().out.startswith("no run of digits has ended yet below ")
