"""The reference of the YAML's keys: made from the declarations, and current."""

from __future__ import annotations

from pipeline_ops.cli.commands.reference import render_reference
from pipeline_ops.cli.main import main
from pipeline_ops.config.fields import collect_fields
from pipeline_ops.config.hosts import find_section, list_launchers
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.planning.job_kinds import JOBS


def test_the_reference_beside_the_configs_is_current():
    assert (CODE_ROOT / "configs" / "REFERENCE.md").read_text() == render_reference(), (
        "run `trainyard reference > configs/REFERENCE.md`"
    )


def read_rows(text: str) -> list[list[str]]:
    """The cells of all rows of its tables."""
    return [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]


def test_it_has_every_key_once_with_who_may_set_it(capsys):
    assert main(["reference"]) == 0
    pages, _, shared = (
        capsys.readouterr().out.partition("## Hosts files")[0].partition("## Every t")
    )
    rows = read_rows(pages)
    owners = {row[0].strip("|` "): row[3] for row in rows}
    of_tasks = {row[0].strip("|` "): row[3] for row in read_rows(shared)}
    leaves = collect_fields(PipelineConfig)
    assert len(rows) == len(owners)
    assert leaves.keys() == owners.keys() | {f"{job}.{key}" for job in JOBS for key in of_tasks}
    assert {key for key, owner in owners.items() if owner.startswith("run")} == {
        key for key, leaf in leaves.items() if leaf.is_per_run
    }
    assert (owners["train.hosts"], of_tasks["runs_on"], owners["evaluate.gate[].at_least"]) == (
        "author",
        "author, always",
        "author, always",
    )
    assert [row for row in rows if not all(cell.strip() for cell in row[:4])] == []


def test_it_has_the_keys_of_each_launcher_with_a_meaning():
    shared, *parts = render_reference().partition("### All launchers")[2].split("### `launcher: ")
    assert [part.partition("`")[0] for part in parts] == list_launchers()
    for part, model in zip(parts, map(find_section, list_launchers()), strict=True):
        rows = {row[0].strip("|` "): row for row in read_rows(shared) + read_rows(part)}
        leaves = collect_fields(model)
        assert rows.keys() == leaves.keys()
        assert {key for key, row in rows.items() if row[3].startswith("*Fingerprint.*")} == {
            key for key, leaf in leaves.items() if leaf.selects_program
        }
        assert [key for key, row in rows.items() if not row[3].strip("| ")] == []
