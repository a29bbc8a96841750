"""What comes of inputs like those of public bug reports: right boxes and labels, or a clear error.

`inputs.py` draws them, `own_inputs.py` those of the same kinds that no report has. `reports.yaml`
and `own_reports.yaml` say what should come of each.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from reports import inputs, own_inputs
from reports.drawing import in_fractions
from reports.formats import write_yolo
from reports.reading import read_case

HERE = Path(__file__).parent
CASES = inputs.CASES | own_inputs.CASES
TABLE = {
    name: row
    for file in ("reports.yaml", "own_reports.yaml")
    for name, row in yaml.safe_load((HERE / file).read_text()).items()
}
SAMPLE = [name for name, row in TABLE.items() if row.get("sample")]


def check_case(make, row, folder, capsys):
    data = folder / "data"
    data.mkdir()
    make(data)
    config, colours = folder / "first.yaml", row.get("colours")
    result = read_case(data, config, capsys, colours)
    if "error" in row:
        assert result.error, f"no error, but {result.findings} of {result.output}"
        assert [text for text in row["error"] if text not in result.error] == [], result.error
        if "answer" not in row:
            return
        result = read_case(data, config, capsys, colours, "--source", row["answer"])
    assert not result.error, result.error
    found = result.findings
    told = f"{found}\n{result.output}"
    assert found.wrong.total() == row.get("wrong", 0), told
    assert (found.right, found.missed) == (row["right"], row.get("missed", 0)), told
    assert not found.doubled, told
    assert [text for text in row.get("says", ()) if text not in result.output] == [], told


@pytest.mark.parametrize("name", SAMPLE)
def test_the_data_of_a_report_are_right_or_refused_with_a_reason(name, tmp_path, capsys):
    check_case(CASES[name], TABLE[name], tmp_path, capsys)


@pytest.mark.stores
@pytest.mark.parametrize("name", [name for name in CASES if name not in SAMPLE])
def test_the_data_of_any_report_are_right_or_refused_with_a_reason(name, tmp_path, capsys):
    check_case(CASES[name], TABLE[name], tmp_path, capsys)


def test_the_table_has_a_row_for_each_input():
    assert {*TABLE} == {*CASES}


def test_boxes_that_are_nearly_the_same_are_told(tmp_path, capsys):
    def draw_again(number, rows, boxes):
        near = (box._replace(x0=box.x0 + 1) for box in boxes)
        numbers = (" ".join(map(str, in_fractions(box.centre))) for box in near)
        return [
            *rows,
            *(f"{row.split()[0]} {each}" for row, each in zip(rows, numbers, strict=True)),
        ]

    write_yolo(tmp_path / "data", draw_again)
    result = read_case(tmp_path / "data", tmp_path / "first.yaml", capsys)
    said = "64 of 128 boxes nearly equal another one of its class and image (train 40 of 80,"
    assert said in result.output
