"""A pipeline whose YAML cannot be used has a broken DAG, and does not affect the others (F11)."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import AirflowException, AirflowFailException, ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization
from config.broken_case import GOOD
from config.broken_yamls import ALL
from task_contexts import make_context

from beam_jobs.stages import check_stages
from pipeline_ops.orchestration.dags import make_dags
from pipeline_ops.planning.job_kinds import JOBS

ROOT = Path(__file__).resolve().parents[2]


def make(folder: Path, **files: str):
    """The DAGs of some configs, by the stems of their files."""
    for stem, text in files.items():
        (folder / f"{stem}.yaml").write_text(text)
    return make_dags([folder], check_stages)


def named(name: str, old: str = "", new: str = "") -> str:
    return GOOD.replace("pipeline: small", f"pipeline: {name}").replace(old, new)


def message(dag) -> str:
    """The message of a broken DAG, or the error of a DAG that is not broken."""
    assert "broken" in dag.tags
    with pytest.raises(ParamValidationError) as refused:
        dag.params.validate()
    return str(refused.value)


def test_every_broken_file_of_the_corpus_is_a_dag_and_the_good_one_beside_them_is_whole(tmp_path):
    """F11: no exception in a YAML reaches Airflow, whatever it is."""
    for broken in ALL:
        broken.write(tmp_path)
    dags = make(tmp_path, good=named("good"))
    assert len(dags) == len(ALL) + 1
    assert [task.task_id for task in dags["good"].tasks] == [*JOBS]
    assert dags["good"].tags == {"trainyard"}
    for dag in (dag for name, dag in dags.items() if name != "good"):
        json.dumps(DagSerialization.to_dict(dag)).encode()
        assert str(tmp_path) in message(dag)


def test_it_keeps_name_and_tasks_says_what_is_wrong_and_takes_no_run(tmp_path):
    text = named("searched", "epochs: 3", "epoch: 3").replace("  gate:", "  approval: {}\n  gate:")
    text += "search: {parameters: {train.seed: [1, 2]}}\n"
    dag = make(tmp_path, searched=text)["searched"]
    rule = f"{tmp_path}/searched.yaml:8: train.epoch: unknown key; the nearest valid name is"
    assert rule in message(dag)
    assert textwrap.indent(rule, "    ") in dag.doc_md
    assert rule[:60] in dag.description
    tasks = ["preprocess", "search", "trial", "train", "evaluate", "approve", "export"]
    assert [task.task_id for task in dag.tasks] == tasks
    for value in ("", None, "x", 3):
        with pytest.raises(ParamValidationError):
            dag.params["broken"] = value


def test_a_task_that_finds_its_yaml_broken_says_so_and_may_be_retried(tmp_path):
    """Its DAG may have been read before the file broke, or after. A conf is refused for good."""
    context = make_context({}, conf={"train.epoch": 3})
    good = make(tmp_path, one=named("one"))["one"].get_task("train")
    with pytest.raises(AirflowFailException, match=r"conf train.epoch: unknown key"):
        good.execute(context)
    broken = make(tmp_path, one="pipeline: one\ntrain: [")["one"].get_task("train")
    for task in (good, broken):
        with pytest.raises(AirflowException, match=r"one.yaml:2: not valid YAML") as failed:
            task.execute(context)
        assert not isinstance(failed.value, AirflowFailException)


def test_a_pipeline_is_named_as_its_file(tmp_path):
    dags = make(tmp_path, one="[", two=named("other"), three=named("three"))
    assert dags.keys() == {"one", "two", "three"}
    rule = "two.yaml:1: pipeline: must be the name of the file, two, got other"
    assert rule in message(dags["two"])
    assert "broken" not in dags["three"].tags


def test_of_two_files_with_one_name_none_is_used(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        make(tmp_path / folder, same=named("same"))
    dags = make_dags([tmp_path / "a", tmp_path / "b", tmp_path / "a"], check_stages)
    rule = f"{tmp_path}/a/same.yaml: {tmp_path}/b/same.yaml has the same name"
    assert rule in message(dags["same"])


def test_the_name_of_trainyards_own_dag_is_refused(tmp_path):
    dags = make(tmp_path, trainyard_gc=named("trainyard_gc"), good=named("good"))
    rule = "trainyard_gc.yaml: is named as a DAG of Trainyard. Rename it"
    assert rule in message(dags["trainyard_gc.broken"])


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (f"tags: [{'x' * 101}]", "tags.0: string should have at most 100 characters"),
        (f"owner: {'x' * 300}", "owner: string should have at most 250 characters"),
    ],
)
def test_what_airflow_would_refuse_for_the_whole_file_is_the_pipelines_own_problem(
    tmp_path, line, rule
):
    """F11: Airflow's own checks of a DAG are made where their failure concerns one DAG."""
    one = named("one").replace("pipeline: one\n", f"pipeline: one\n{line}\n")
    dags = make(tmp_path, one=one, good=named("good"))
    assert f"one.yaml:2: {rule}" in message(dags["one"])
    assert "broken" not in dags["good"].tags


def test_code_of_the_author_that_ends_python_is_a_problem_of_its_pipeline(tmp_path, monkeypatch):
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    one = named("one", "[decode]", "[decode, 'leaving:stage']")
    dags = make(tmp_path, one=one, good=named("good"))
    text = message(dags["one"])
    assert all(part in text for part in ("one.yaml:4", "leaving:stage", "SystemExit: 3"))
    assert "broken" not in dags["good"].tags


def test_hidden_files_are_none_of_the_configs(tmp_path):
    (tmp_path / ".#digits.yaml").symlink_to("person@host.1234")
    assert make(tmp_path, good=named("good")).keys() == {"good"}


def test_the_dag_file_of_the_repository_has_a_dag_for_each_file_and_no_import_error(
    tmp_path, monkeypatch
):
    (tmp_path / "good.yaml").write_text(named("good"))
    (tmp_path / "one.yaml").write_text(named("one", "epochs", "epoch"))
    monkeypatch.setenv("TRAINYARD_CONFIGS", str(tmp_path))
    bag = DagBag(ROOT / "dags", bundle_path=ROOT / "dags", bundle_name="dags")
    assert bag.dags.keys() == {"good", "one"} and bag.import_errors == {}


HOOK = """
from beam_jobs.stages import check_stages
from pipeline_ops.orchestration.dags import make_dags  # airflow

def customize(dag, config):
    dag.max_active_tasks = 3
    if config.pipeline == "one":
        {fault}

globals().update(make_dags([{folder!r}], check_stages, customize=customize))
"""


@pytest.mark.parametrize(
    ("fault", "line", "wrong"),
    [
        ('raise LookupError("no such team")', 8, "LookupError: no such team"),
        ('dag.get_task("exprot")', 8, "TaskNotFound: Task exprot not found"),
        ('dag.get_task("export") >> dag.get_task("train")', 5, "Cycle detected in Dag: one"),
        ("dag.schedule_interval = '@daily'", 5, "has no schedule_interval; the nearest valid name"),
        ("dag.max_actve_runs = 2", 5, "has no max_actve_runs; the nearest valid name is 'max_act"),
        ("dag.get_task('train').retrys = 2", 5, "has no retrys; the nearest valid name is 'retrie"),
        ("dag.get_task('train').trigger_rule = 'all_dnoe'", 5, "the nearest valid name is 'all_do"),
        ("dag.get_task('train').execution_timeout = 60", 5, "60, which is no timedelta"),
        ("dag.get_task('train').weight_rule = 'most'", 5, "Unknown priority strategy most"),
        ("dag.start_date = '2026-01-01'", 5, "'2026-01-01' is not of type 'number'"),
        ("dag.dag_id = 'good'", 5, "dag_id must stay one"),
        ("return type(dag)('other')", 5, "and returned another one: <DAG: other>"),
        ("yield dag", 5, "it must be a plain function, without async and yield"),
    ],
)
def test_a_hook_that_fails_breaks_its_pipeline_alone(tmp_path, fault, line, wrong):
    """Airflow takes no half-made DAG, and finds no error in the file."""
    for name in ("one", "good"):
        (tmp_path / f"{name}.yaml").write_text(named(name))
    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "mine.py").write_text(HOOK.format(fault=fault, folder=str(tmp_path)))
    for _ in range(5):  # it would take one of two DAGs of a name by chance
        bag = DagBag(folder, bundle_path=folder, bundle_name="mine")
        assert not bag.import_errors
        text = message(bag.dags["one"])
        assert f"{folder}/mine.py:{line}: customize failed for the pipeline one: " in text
        assert wrong in text and "trainyard validate" not in bag.dags["one"].doc_md
        if not fault.startswith("yield"):  # Python then sees a generator for both pipelines.
            assert "broken" not in bag.dags["good"].tags and bag.dags["good"].max_active_tasks == 3


def test_a_callback_of_a_dag_that_a_hook_sets_is_one_that_airflow_runs(tmp_path):
    def customize(dag, config):
        dag.on_failure_callback = print

    (tmp_path / "one.yaml").write_text(named("one"))
    dag = make_dags([tmp_path], check_stages, customize=customize)["one"]
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert (stored.has_on_failure_callback, stored.has_on_success_callback) == (True, False)


def test_files_with_the_short_suffix_are_pipelines_too(tmp_path):
    (tmp_path / "two.yml").write_text(named("two"))
    (tmp_path / "one.yml").write_text(named("one"))
    dags = make(tmp_path, one=named("one"))
    assert "broken" not in dags["two"].tags
    assert "has the same name. Rename all of them but one" in message(dags["one"])
