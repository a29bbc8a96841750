"""A rollback with one click in Airflow's form, and a promotion, in a real Airflow."""

from __future__ import annotations

import pytest
from airflow_ui import BrowserUser, needs_chromium, open_browser
from config_files import write_config
from held_airflow import run_airflow
from processes import wait_until
from publishers import publish

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.operators.models_dag import DAG_ID
from pipeline_ops.registry.registry import Registry

_DAG = """
from airflow.sdk import DAG
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.operators.models_dag import make_models_dag

models = make_models_dag([load_config({config!r})])
"""


@pytest.fixture
def airflow(tmp_path, survivors):
    """An Airflow with the DAG of the models and three versions. The third was never in service."""
    home = tmp_path / "home"
    config = write_config(home, {"storage.root": str(tmp_path / "root")})
    (home / "dag.py").write_text(_DAG.format(config=str(config)))
    registry = Registry(load_config(config).registry)
    for digest in "abc":
        publish(registry, digest, num_bytes=10)
    for number in (1, 2):
        registry.promote(number, "better")
    with run_airflow(home, config, [DAG_ID], survivors.environment) as api:
        yield api, registry


@pytest.mark.airflow
@needs_chromium
def test_the_form_rolls_back_as_it_opens_and_promotes_what_is_chosen_in_it(airflow):
    api, registry = airflow
    with open_browser(api) as person:
        person.log_in()
        send(person, open_form(person), "rolled-back")
        assert (registry.find_champion().number, registry.find_by_alias("previous")) == (1, None)
        assert (
            registry.read_history()
            .moves[-1]
            .reason.startswith("rolled back from version 2: by hand, in Airflow, run manual__")
        )
        form = open_form(person)
        form.locator("[name='element_action']").locator(
            "xpath=ancestor-or-self::*[@data-part='root'][1]"
        ).get_by_role("combobox").click()
        person.page.get_by_role("option", name="promote").click()
        form.locator("[name='element_version']").fill("3")
        form.locator("[name='element_reason']").fill("asked for by sales")
        send(person, form, "promoted")
    wait_until(lambda: registry.find_champion().number == 3)
    assert registry.find_by_alias("previous").number == 1
    assert registry.find_by_alias("champion").number == 3
    assert registry.read_history().moves[-1].reason == "asked for by sales"


def open_form(person: BrowserUser):
    form = person.open_form(DAG_ID)
    form.get_by_text("Action", exact=False).first.wait_for()
    return form


def send(person: BrowserUser, form, name: str) -> None:
    person.look(f"models-before-{name}")
    person.send(form)
    person.page.get_by_text("Success", exact=True).first.wait_for()
    person.look(f"models-{name}")
