"""Each place says the same of a run, for the outcomes of a whole pipeline in a real Airflow.

Those that need a person are in `test_approval.py`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cli.places_of_outcomes import check_all_places, look
from config_files import write_config, write_digits
from held_airflow import run_airflow
from processes import wait_until

from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.run_summary import read_summary
from pipeline_ops.storage.open_store import open_root

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]

ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 300
_CALLBACK = """
import pathlib
import keras

class Fail(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs):
        if pathlib.Path({marker!r}).exists():
            logs["lose"]
"""


def test_every_place_says_the_same_of_the_runs_of_a_whole_pipeline(tmp_path, survivors, capsys):
    home = tmp_path / "airflow"
    shutil.copytree(ROOT / "dags", home, ignore=shutil.ignore_patterns("__pycache__"))
    (home / ".airflowignore").write_text("logs/\n")
    write_digits(tmp_path / "raw")
    changes = {
        "storage.root": str(tmp_path / "storage"),
        "preprocess.source.path": str(tmp_path / "raw"),
        "train.epochs": 1,
        "train.workers": 1,
        "train.strategy": "one_device",
        "train.early_stopping": None,
        "train.reduce_learning_rate": None,
        "train.retries": 0,
        "train.callbacks": ["own:Fail"],
        "evaluate.gate": [{"metric": "accuracy", "at_least": 0.01}],
    }
    marker = tmp_path / "fail"
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "own.py").write_text(_CALLBACK.format(marker=str(marker)))
    config = write_config(tmp_path / "configs", changes)
    layout = Layout(open_root(tmp_path / "storage"), "digits")
    with run_airflow(home, config, ["digits"], survivors.environment) as api:

        def run(conf: dict, state: str) -> str:
            run_id = api.trigger("digits", conf)
            over = ("success", "failed")
            wait_until(lambda: api.run("digits", run_id)["state"] in over, _SECONDS)
            assert api.run("digits", run_id)["state"] == state, api.tasks("digits", run_id)
            return run_id

        first = api.trigger("digits", {})
        wait_until(lambda: "Running: preprocess." in look(api, "progress", first), _SECONDS)
        assert "Running: preprocess." in look(api, "report", first)
        assert "Running: preprocess." in look(api, "runs", all=1)
        wait_until(lambda: api.run("digits", first)["state"] == "success", _SECONDS)
        unchanged = run({}, "success")
        second = run({"train.seed": 2}, "success")
        put_back = run({}, "success")
        marker.touch()
        failed = run({"train.seed": 3}, "failed")
        for number in range(6):
            (tmp_path / "raw" / "0" / f"broken-{number}.png").write_bytes(b"not an image")
        refused = run({}, "failed")
        found = {
            run_id: read_summary(layout, run_id)
            for run_id in (first, unchanged, second, put_back, failed, refused)
        }
        kinds = ("published", "unchanged", "published", "not_in_service", "failed", "data_refused")
        assert [each.outcome.kind for each in found.values()] == [*kinds]
        begun = f"{api.run('digits', first)['start_date'][:10]}"
        sentences = [each.outcome.sentence for each in found.values()]
        for sentence, words in zip(
            sentences,
            (
                "Published as version 1 of digits, in service (accuracy ",
                f"Unchanged: data, config and code are those of the run of {begun}",
                "Published as version 2 of digits, in service (accuracy ",
                "Published as version 1 of digits, not in service: this model was in service "
                "before, as version 1, and was replaced by version 2.",
                "Failed in train: worker 0 on localhost failed at step ",
                "Data refused: ",
            ),
            strict=True,
        ):
            assert sentence.startswith(words), sentence
        expected = {run_id: each.outcome.sentence for run_id, each in found.items()}
        check_all_places(api, layout, config, expected, capsys)
