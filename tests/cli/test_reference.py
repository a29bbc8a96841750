"""The reference of the YAML's keys: made from the declarations, and current."""

from __future__ import annotations

from pipeline_ops.artifacts.source_code import CODE_ROOT
from pipeline_ops.cli.commands.reference import render_reference
from pipeline_ops.cli.main import main
from pipeline_ops.config.fields import collect_fields
from pipeline_ops.config.pipeline import PipelineConfig


def test_the_reference_beside_the_configs_is_current():
    assert (CODE_ROOT / "configs" / "REFERENCE.md").read_text() == render_reference(), (
        "run `trainyard reference > configs/REFERENCE.md`"
    )


def test_it_has_every_key_once_with_who_may_set_it(capsys):
    assert main(["reference"]) == 0
    rows = [
        line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| `")
    ]
    owners = {row[0].strip("|` "): row[3] for row in rows}
    leaves = collect_fields(PipelineConfig)
    assert len(rows) == len(owners) and owners.keys() == leaves.keys()
    assert {key for key, owner in owners.items() if owner.startswith("run")} == {
        key for key, leaf in leaves.items() if leaf.is_per_run
    }
    assert (owners["train.hosts"], owners["train.python"], owners["evaluate.gate[].at_least"]) == (
        "author",
        "author, always",
        "author, always",
    )
    assert [row for row in rows if not all(cell.strip() for cell in row[:4])] == []
