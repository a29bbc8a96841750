"""A person who never saw a terminal rolls a model back with one click in Airflow's form, and
promotes another version; in a real Airflow."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from airflow_ui import Person, needs_chromium, person_at_browser, running_airflow, wait_for
from publishers import publish

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.operators.models_dag import DAG_ID
from pipeline_ops.registry.registry import Registry

DIGITS = Path(__file__).resolve().parents[2] / "configs" / "digits.yaml"
_DAG = """
from airflow.sdk import DAG
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.operators.models_dag import make_models_dag

models = make_models_dag([load_config({config!r})])
"""


@pytest.fixture
def airflow(tmp_path, survivors):
    """An Airflow with the DAG of the models, and a registry of three versions,
    of which the third was never in service."""
    home = tmp_path / "home"
    home.mkdir()
    config = home / "digits.yaml"
    config.write_text(
        yaml.safe_dump(
            yaml.safe_load(DIGITS.read_text()) | {"storage": {"root": str(tmp_path / "root")}}
        )
    )
    (home / "dag.py").write_text(_DAG.format(config=str(config)))
    registry = Registry(load_config(config).registry)
    for digest in "abc":
        publish(registry, digest, num_bytes=10)
    for number in (1, 2):
        registry.promote(number, "better")
    with running_airflow(home, config, DAG_ID, survivors.environment) as api:
        yield api, registry


@pytest.mark.slow
@needs_chromium
def test_the_form_rolls_back_as_it_opens_and_promotes_what_is_chosen_in_it(airflow):
    api, registry = airflow
    with person_at_browser(api) as person:
        person.log_in()
        send(person, open_form(person), "rolled-back")
        assert (registry.champion().number, registry.previous()) == (1, None)
        assert registry.history()[-1].reason.startswith(
            "rolled back from version 2: by hand, in Airflow, run manual__"
        )
        form = open_form(person)
        form.locator("[name='element_action']").locator(
            "xpath=ancestor-or-self::*[@data-part='root'][1]"
        ).get_by_role("combobox").click()
        person.page.get_by_role("option", name="promote").click()
        form.locator("[name='element_version']").fill("3")
        form.locator("[name='element_reason']").fill("asked for by sales")
        send(person, form, "promoted")
    wait_for(lambda: registry.champion().number == 3)
    assert registry.previous().number == 1 and registry.aliased("champion").number == 3
    assert registry.history()[-1].reason == "asked for by sales"


def open_form(person: Person):
    form = person.open_form(DAG_ID)
    form.get_by_text("Action", exact=False).first.wait_for()
    return form


def send(person: Person, form, name: str) -> None:
    person.look(f"models-before-{name}")
    person.send(form)
    person.page.get_by_text("Success", exact=True).first.wait_for()
    person.look(f"models-{name}")
