"""A person who never saw a terminal rolls a model back with one click in Airflow's form, and promotes another version; in a real Airflow."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml
from airflow_ui import CHROMIUM, logged_in_page, running_airflow, wait_for
from publishers import publish

from pipeline_ops.contracts.config import load_config
from pipeline_ops.contracts.registry import Registry
from pipeline_ops.operators.models_dag import DAG_ID

DIGITS = Path(__file__).resolve().parents[2] / "configs" / "digits.yaml"
_DAG = """
from airflow.sdk import DAG
from pipeline_ops.contracts.config import load_config
from pipeline_ops.operators.models_dag import make_models_dag

models = make_models_dag([load_config({config!r})])
"""


@pytest.fixture
def airflow(tmp_path, survivors):
    """An Airflow with the DAG of the models, and a registry of three versions, of which the third was never in service."""
    home = tmp_path / "home"
    home.mkdir()
    config = home / "digits.yaml"
    config.write_text(yaml.safe_dump(yaml.safe_load(DIGITS.read_text()) | {"storage": {"root": str(tmp_path / "root")}}))
    (home / "dag.py").write_text(_DAG.format(config=str(config)))
    registry = Registry(load_config(config).registry)
    for digest in "abc":
        publish(registry, digest, num_bytes=10)
    for number in (1, 2):
        registry.promote(number, "better")
    with running_airflow(home, config, DAG_ID, survivors.environment) as api:
        yield api, registry


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine: install the package chromium")
def test_the_form_rolls_back_as_it_opens_and_promotes_what_is_chosen_in_it(airflow, tmp_path):
    """Pictures of the form go to the folder that TRAINYARD_SCREENSHOTS names."""
    (api, registry), pictures = airflow, Path(os.environ.get("TRAINYARD_SCREENSHOTS", tmp_path / "pictures"))
    pictures.mkdir(parents=True, exist_ok=True)

    def open_form(name: str):
        page.goto(f"{str(api._client.base_url).rstrip('/')}/dags/{DAG_ID}")
        page.get_by_role("button", name=re.compile("Trigger")).first.click()
        form = page.get_by_role("dialog").first
        form.get_by_text("Action", exact=False).first.wait_for()
        page.wait_for_timeout(800)  # Airflow draws a moment after it has loaded
        page.screenshot(path=pictures / f"models-{name}.png")
        return form

    def send(form, name: str) -> None:
        form.get_by_role("button", name="Trigger").click()
        page.wait_for_url(re.compile("/runs/"))
        page.get_by_text("Success", exact=True).first.wait_for()
        page.screenshot(path=pictures / f"models-{name}.png")

    with logged_in_page(api) as page:
        send(open_form("as-it-opens"), "rolled-back")
        assert (registry.champion().number, registry.previous()) == (1, None)
        assert registry.history()[-1].reason.startswith("rolled back from version 2: by hand, in Airflow, run manual__")
        form = open_form("promote")
        form.locator("[name='element_action']").locator("xpath=ancestor-or-self::*[@data-part='root'][1]").get_by_role("combobox").click()
        page.get_by_role("option", name="promote").click()
        form.locator("[name='element_version']").fill("3")
        form.locator("[name='element_reason']").fill("asked for by sales")
        page.screenshot(path=pictures / "models-filled.png")
        send(form, "promoted")
    wait_for(lambda: registry.champion().number == 3)
    assert registry.previous().number == 1 and registry.aliased("champion").number == 3
    assert registry.history()[-1].reason == "asked for by sales"
