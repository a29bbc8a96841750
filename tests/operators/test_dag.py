"""The DAG file: cheap to parse, light to import, and a broken config does not take the others down."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.models.taskinstance import TaskInstance

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("tensorflow", "keras", "apache_beam", "cv2", "PIL", "sklearn", "scipy")

PARSE = """
import json, sys, time
from airflow.sdk import DAG, BaseOperator, Param
from airflow.triggers.base import BaseTrigger
before = set(sys.modules)
begin = time.process_time()
import runpy
made = runpy.run_path(sys.argv[1])
print(json.dumps({"seconds": time.process_time() - begin, "dags": sorted({v.dag_id for v in made.values() if isinstance(v, DAG)}),
                  "new": sorted(set(sys.modules) - before)}))
"""


@pytest.fixture(scope="module")
def parsed() -> dict:
    """What parsing the DAG file in a clean interpreter makes and imports."""
    output = subprocess.run([sys.executable, "-c", PARSE, str(ROOT / "dags" / "trainyard.py")], check=True, capture_output=True, text=True, cwd=ROOT)
    return json.loads(output.stdout.splitlines()[-1])


def test_every_config_becomes_a_dag_and_one_dag_moves_their_models(parsed):
    assert parsed["dags"] == sorted([*(path.stem for path in (ROOT / "configs").glob("*.yaml")), "trainyard_models"])


def test_the_dag_file_imports_nothing_heavy(parsed):
    assert [module for module in parsed["new"] if module.split(".")[0] in HEAVY] == []


def bag(tmp_path, monkeypatch, *files: Path):
    from airflow.dag_processing.dagbag import DagBag

    monkeypatch.setenv("TRAINYARD_CONFIGS", ":".join(map(str, files)))
    return DagBag(ROOT / "dags", bundle_path=ROOT / "dags", bundle_name="dags")


def test_the_tasks_run_one_after_the_other(tmp_path, monkeypatch):
    dag = bag(tmp_path, monkeypatch, ROOT / "configs" / "digits.yaml").dags["digits"]
    assert [task.task_id for task in dag.topological_sort()] == ["preprocess", "train", "evaluate", "export"]
    assert dag.get_task("train").upstream_task_ids == {"preprocess"}
    assert dag.get_task("train").retries == 2


def test_the_first_retry_comes_at_once_and_later_ones_outlast_an_airflow_that_comes_back_slowly(tmp_path, monkeypatch):
    train = bag(tmp_path, monkeypatch, ROOT / "configs" / "digits.yaml").dags["digits"].get_task("train")
    end = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    failed = {"task": train, "dag_id": "digits", "task_id": "train", "logical_date": None, "end_date": end, "retry_delay_override": None}
    waits = [(TaskInstance.next_retry_datetime(SimpleNamespace(try_number=number, **failed)) - end).total_seconds() for number in (1, 2, 3, 4)]
    assert all(low <= wait <= high for wait, (low, high) in zip(waits, [(5, 10), (30, 60), (180, 300), (300, 300)], strict=True)), waits


def test_a_task_has_the_pool_the_priority_and_the_executor_that_its_section_names(tmp_path, monkeypatch):
    config = tmp_path / "digits.yaml"
    text = (ROOT / "configs" / "digits.yaml").read_text()
    config.write_text(text.replace("  model: digits_cnn", "  model: digits_cnn\n  pool: gpu_hosts\n  priority: 7\n  executor: LocalExecutor"))
    dag = bag(tmp_path, monkeypatch, config).dags["digits"]
    train, evaluate = dag.get_task("train"), dag.get_task("evaluate")
    assert (train.pool, train.priority_weight, train.weight_rule, train.executor) == ("gpu_hosts", 7, "absolute", "LocalExecutor")
    assert (evaluate.pool, evaluate.priority_weight, evaluate.executor) == ("default_pool", 1, None)


def test_a_search_stands_for_train_and_what_comes_after_it_knows_nothing_of_it(tmp_path, monkeypatch):
    file = tmp_path / "searched.yaml"
    file.write_text((ROOT / "configs" / "digits.yaml").read_text().replace("pipeline: digits", "pipeline: searched")
                    + "\nsearch:\n  parameters: {train.optimizer.learning_rate: [0.001, 0.01]}\n  max_parallel: 3\n")
    dag = bag(tmp_path, monkeypatch, file).dags["searched"]
    upstream = {task.task_id: task.upstream_task_ids for task in dag.tasks}
    assert upstream == {"preprocess": set(), "search": set(), "trial": {"preprocess", "search"}, "train": {"trial"}, "evaluate": {"train"},
                        "export": {"evaluate"}}
    assert dag.get_task("trial").is_mapped
    assert dag.get_task("trial").max_active_tis_per_dagrun == 3
    assert dag.get_task("train").trigger_rule == "all_done"


def test_a_broken_config_is_an_import_error_and_does_not_take_the_others_down(tmp_path, monkeypatch):
    text = (ROOT / "configs" / "digits.yaml").read_text()
    broken, misspelt = tmp_path / "broken.yaml", tmp_path / "misspelt.yaml"
    broken.write_text(text.replace("global_batch", "golbal_batch"))
    misspelt.write_text(text.replace("- resize: {height: 28", "- resize: {heigth: 28"))
    found = bag(tmp_path, monkeypatch, ROOT / "configs" / "digits.yaml", broken, misspelt)
    assert set(found.dags) == {"digits", "trainyard_models"}
    [message] = found.import_errors.values()
    assert f"{broken}:" in message
    assert "train.golbal_batch: unknown key; the nearest valid name is 'global_batch'" in message
    assert "heigth" in message
    assert "'height'" in message


def test_the_form_offers_what_the_config_has_with_its_types_bounds_and_help():
    from pipeline_ops.contracts.config import load_config
    from pipeline_ops.operators.form import form_params

    params = form_params(load_config(ROOT / "configs" / "digits.yaml"))
    epochs = params["train.epochs"]
    assert (epochs.value, epochs.schema["type"], epochs.schema["section"]) == (20, "integer", "Train")
    assert epochs.description.endswith("At least 1, at most 100000.")
    rate = params["train.optimizer.learning_rate"]
    assert (rate.value, rate.schema["type"], rate.schema["title"]) == (1e-3, "number", "Learning rate")
    assert {"one_device", "multi_worker_mirrored", "parameter_server"} <= set(params["train.strategy"].schema["enum"])
    patience = params["train.early_stopping.patience_epochs"]
    assert (patience.schema["section"], patience.schema["title"]) == ("Train: early stopping", "Patience (epochs)")
    assert "digits_cnn" in params["train.model"].schema["examples"]
    assert params["train.global_batch"].description.endswith("It never follows the number of workers. At least 1, at most 1000000.")
    assert params["train.hosts"].description == "The hosts to train on: the name of a file in hosts/ beside this one. Empty: this machine."
    assert "evaluate.gate" not in params
    assert next(iter(params)) == "train.model"
    assert "train.retries" not in params


def test_the_form_stands_in_the_dag_once_and_not_in_each_of_its_tasks(tmp_path, monkeypatch):
    """Airflow would check every copy whenever the file is read: a third of a second for each pipeline."""
    dag = bag(tmp_path, monkeypatch, ROOT / "configs" / "digits.yaml").dags["digits"]
    assert len(dag.params) > 100
    assert [len(task.params) for task in dag.tasks] == [0, 0, 0, 0]


def sections_of(params) -> list[str]:
    return list(dict.fromkeys(param.schema["section"] for param in params.values()))


def test_the_form_asks_what_matters_first_and_patience_last():
    from pipeline_ops.contracts.config import load_config
    from pipeline_ops.operators.form import form_params

    sections = sections_of(form_params(load_config(ROOT / "configs" / "digits.yaml")))
    of_train = [section for section in sections if section.startswith("Train")]
    assert sections[:2] == ["Train", "Start from"]
    assert sections[2 : len(of_train) + 1] == of_train[1:]
    assert of_train[-1] == "Train: where and how patiently"
    assert sections.index("Preprocess") < sections.index("Evaluate") < sections.index("Export")


@pytest.mark.parametrize(("key", "value"), [("train.epochs", 0), ("train.epochs", 100_001), ("train.optimizer.learning_rate", 0), ("train.seed", "a"),
                                            ("train.optimizer.momentum", 1), ("train.strategy", "none"), ("train.min_workers", 0)])
def test_a_value_out_of_range_is_refused_and_the_form_has_no_bounds_to_clamp_it_to(key, value):
    from airflow.sdk.exceptions import ParamValidationError

    from pipeline_ops.contracts.config import load_config
    from pipeline_ops.operators.form import form_params

    params = form_params(load_config(ROOT / "configs" / "digits.yaml"))
    assert not {"minimum", "maximum"} & set(params[key].schema)
    with pytest.raises(ParamValidationError):
        params[key].resolve(value)


def test_no_field_of_the_form_is_empty_and_required():
    """Airflow's form can't be sent then, and does not say why."""
    from pipeline_ops.contracts.config import load_config
    from pipeline_ops.operators.form import form_params

    params = form_params(load_config(ROOT / "configs" / "digits.yaml"))
    assert [key for key, param in params.items() if param.value == "" or (param.value is None and "null" not in param.schema["type"])] == []


def test_the_hosts_to_choose_from_are_the_files_beside_the_config(tmp_path):
    from pipeline_ops.contracts.config import load_config
    from pipeline_ops.operators.form import form_params

    config = tmp_path / "digits.yaml"
    config.write_text((ROOT / "configs" / "digits.yaml").read_text())
    assert "enum" not in form_params(load_config(config))["train.hosts"].schema
    (tmp_path / "hosts").mkdir()
    for name in ("lab", "cloud"):
        (tmp_path / "hosts" / f"{name}.yaml").write_text("")
    assert form_params(load_config(config))["train.hosts"].schema["enum"] == [None, "cloud", "lab"]


def test_what_the_form_sends_untouched_is_the_config_itself():
    from pipeline_ops.contracts.config import load_config
    from pipeline_ops.operators.form import form_params

    config = load_config(ROOT / "configs" / "digits.yaml")
    sent = json.loads(json.dumps({key: param.resolve() for key, param in form_params(config).items()}))
    assert load_config(config.file, sent) == config
