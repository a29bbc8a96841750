"""The DAG that rolls back and promotes, as a person triggers it from its form."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from airflow.sdk.exceptions import AirflowFailException
from publishers import publish

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.operators.models_dag import PROMOTE, ROLL_BACK, make_models_dag
from pipeline_ops.registry.registry import Registry

DIGITS = Path(__file__).resolve().parents[2] / "configs" / "digits.yaml"


@pytest.fixture
def config(tmp_path):
    """A pipeline with three versions, of which the first two were in service."""
    values = yaml.safe_load(DIGITS.read_text()) | {"storage": {"root": "root"}}
    (tmp_path / "digits.yaml").write_text(yaml.safe_dump(values))
    config = load_config(tmp_path / "digits.yaml")
    registry = Registry(config.registry)
    for digest in "abc":
        publish(registry, digest, num_bytes=10)
    for number in (1, 2):
        registry.promote(number, "better")
    return config


def trigger(config, **changes) -> int:
    dag = make_models_dag([config])
    form = {name: dag.params.get_param(name).resolve() for name in dag.params} | changes
    return dag.get_task("move_champion").execute({"params": form, "run_id": "manual__1"})


def test_the_form_as_it_opens_rolls_back(config):
    assert trigger(config) == 1
    registry = Registry(config.registry)
    assert registry.find_champion().number == 1
    assert (
        registry.read_history().moves[-1].reason
        == "rolled back from version 2: by hand, in Airflow, run manual__1"
    )


def test_no_field_of_the_form_is_empty_and_required(config):
    """Airflow's form cannot be sent with an empty required field, and gives no reason."""
    params = make_models_dag([config]).params
    fields = {name: params.get_param(name) for name in params}
    assert [
        name
        for name, field in fields.items()
        if field.value in ("", None) and "null" not in field.schema["type"]
    ] == []


def test_any_version_can_be_promoted_with_a_reason(config):
    assert trigger(config, action=PROMOTE, version=3, reason="asked for by sales") == 3
    assert Registry(config.registry).read_history().moves[-1].reason == "asked for by sales"


def test_a_misspelt_key_that_comes_by_rest_moves_nothing(config):
    with pytest.raises(
        AirflowFailException, match="acton: unknown key; the nearest valid name is 'action'"
    ):
        trigger(config, acton=PROMOTE)
    assert Registry(config.registry).find_champion().number == 2


@pytest.mark.parametrize(
    "changes, complaint",
    [
        (
            {"action": PROMOTE},
            "version is empty. Published versions: 1, 2, 3",
        ),
        ({"action": PROMOTE, "version": 9}, "there is no version 9. Existing versions: 1, 2, 3"),
    ],
)
def test_what_can_not_be_done_fails_for_good_and_says_why(config, changes, complaint):
    with pytest.raises(AirflowFailException, match=complaint):
        trigger(config, **changes)
    assert Registry(config.registry).find_champion().number == 2


def test_a_roll_back_beyond_the_first_champion_fails_for_good(config):
    trigger(config)
    with pytest.raises(AirflowFailException, match="no earlier champion"):
        trigger(config, action=ROLL_BACK)
