"""The steps of a person who retrains a model of the digits with nothing but a browser.

Each step leaves a picture.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from airflow_ui import BrowserUser
from processes import wait_until

from pipeline_ops.cli.airflow_api import AirflowApi


def assert_refused(person: BrowserUser, form, api: AirflowApi) -> None:
    """Enters an invalid value. The form keeps it, shows the rule and starts nothing."""
    form.locator("[name='element_train.epochs']").wait_for()
    person.look("form")
    epochs = person.fill(form, "Run Parameters", "train.epochs", "0")
    form.get_by_role("button", name="Trigger").click()
    form.get_by_text(
        "train.epochs: 0 is less than the minimum of 1"
    ).first.scroll_into_view_if_needed()
    person.look("refused")
    assert epochs.input_value() == "0"
    assert api.list_active_runs("digits") == []


def fill_in(person: BrowserUser, form, dataset: str) -> None:
    """Fills in the form: epochs, no early stopping, a published model, and an existing data set."""
    person.fill(form, "Run Parameters", "train.epochs", "30")
    person.look("form-train")
    person.fill(form, "Train: early stopping", "train.early_stopping.patience_epochs", "30")
    person.fill(form, "Run Parameters", "train.warm_start", "version 1")
    person.fill(form, "Run Parameters", "preprocess.dataset", dataset)
    person.look("form-start-from")


def follow_progress(person: BrowserUser) -> None:
    """Watches the progress page, whose number of steps grows by itself."""
    train, seen = person.open_tab("Progress").locator("section#train"), set()

    def grows() -> bool:
        seen.update(
            map(int, re.findall(r"(\d+) of 6\d\d", train.inner_text()))
        )  # 30 epochs of 23 steps, or of 22 where examples are missing
        return len(seen) > 1

    wait_until(grows, seconds=400)
    person.look("progress")
    train.get_by_text("success", exact=True).wait_for()


def read_report(person: BrowserUser, verdict: str) -> None:
    report = person.open_tab("Report").frame_locator("iframe[title='Evaluation']")
    report.get_by_text(verdict).first.wait_for()
    person.look(verdict.split()[0].lower())


def approve(person: BrowserUser, run: str) -> None:
    """Approves the export in the list of required actions of the run's page."""
    person.go(run)
    person.page.get_by_text("Required Actions").first.click()
    person.page.get_by_text("Publish a new version of digits?").first.wait_for()
    report = person.page.get_by_role("link", name="the report").get_attribute("href")
    run_id = unquote(run.rpartition("/")[2])
    address = f"{person.url}/trainyard/pipelines/digits/report?run_id={run_id}"
    assert unquote(report) == address, "a phone can show it, too"
    person.look("approval")
    person.page.get_by_role("button", name="Approve", exact=True).first.click()
    person.go(run)


def roll_back(person: BrowserUser, challenger: int, champion: int) -> None:
    """Rolls back on the page of the models."""
    models = person.open_tab("Models")
    models.get_by_text(f"version {challenger}", exact=True).wait_for()
    person.look("models")
    models.get_by_role("link", name="digits").click()
    models.get_by_text(f"Version {challenger} is in service").wait_for()
    models.get_by_text(f"against {champion}").first.wait_for()
    person.look("model")
    models.get_by_text(f"Roll back to version {champion}").click()
    models.get_by_label("Reason").first.fill("customers complained")
    person.look("model-change")
    models.get_by_role("button", name=f"Put version {champion} of digits back in service").click()
    models.get_by_role("status").wait_for()
    person.look("rolled-back")
