"""The places that say what has become of a run, compared."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from pathlib import Path

from processes import wait_until

from pipeline_ops.cli.airflow_api import AirflowApi
from pipeline_ops.cli.main import main
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.run_summary import read_summary


def check_all_places(
    api: AirflowApi,
    layout: Layout,
    config: Path,
    expected: Mapping[str, str],
    capsys,
    without_summary: str = "",
) -> None:
    """Compares the note of Airflow's run, the head of both tabs, the summary, the table and
    `trainyard runs` with the expected sentences by run. A run that was ended from outside is
    `without_summary`.
    """
    for run_id, sentence in expected.items():
        wait_until(lambda run_id=run_id: api.run("digits", run_id)["note"])
        assert api.run("digits", run_id)["note"] == sentence
        for page in ("progress", "report"):
            found = re.findall('class="sentence">(.*)</p>', look(api, page, run_id))
            assert [html.unescape(each) for each in found] == [sentence]
        summary = read_summary(layout, run_id)
        assert (summary is None) == (run_id == without_summary)
        assert summary is None or summary.outcome.sentence == sentence
    cells = re.findall("</b> (.*?)(?:<br>.*)?</td>", html.unescape(look(api, "runs", all=1)))
    assert sorted(cell for cell in cells if cell in expected.values()) == sorted(expected.values())
    capsys.readouterr()
    assert main(["runs", str(config), "--json"]) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {run["run_id"]: run["outcome"]["sentence"] for run in listed} == {
        run_id: sentence for run_id, sentence in expected.items() if run_id != without_summary
    }


def look(api: AirflowApi, page: str, run_id: str = "", **query: object) -> str:
    """Returns one of our pages as the browser gets it."""
    params = ({"run_id": run_id} if run_id else {}) | query
    answer = api._client.get(f"/trainyard/pipelines/digits/{page}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.text
