"""The steps of a person who retrains a model with nothing but a browser, on the digits.
Each leaves a picture."""

from __future__ import annotations

import re
from urllib.parse import unquote

from airflow_ui import Person, wait_for

from pipeline_ops.cli.local_airflow.airflow_api import AirflowApi


def assert_refused(person: Person, form, api: AirflowApi) -> None:
    """A value that is out of range stays as it was typed, is refused with the rule,
    and starts nothing."""
    form.locator("[name='element_train.epochs']").wait_for()
    person.look("form")
    epochs = person.fill(form, "Run Parameters", "train.epochs", "0")
    form.get_by_role("button", name="Trigger").click()
    form.get_by_text(
        "train.epochs: 0 is less than the minimum of 1"
    ).first.scroll_into_view_if_needed()
    person.look("refused")
    assert epochs.input_value() == "0"
    assert api.active_runs("digits") == []


def fill_in(person: Person, form, dataset: str) -> None:
    """More epochs than the YAML has, all of them,
    from a published model and on a data set that was made before."""
    person.fill(form, "Run Parameters", "train.epochs", "30")
    person.look("form-train")
    person.fill(form, "Train: early stopping", "train.early_stopping.patience_epochs", "30")
    person.fill(form, "Run Parameters", "train.warm_start", "version 1")
    person.fill(form, "Run Parameters", "preprocess.dataset", dataset)
    person.look("form-start-from")


def watch(person: Person) -> None:
    """The page of the progress goes on by itself:
    the number of steps grows while one looks at it."""
    train, seen = person.open_tab("Progress").locator("section#train"), set()

    def grows() -> bool:
        seen.update(
            map(int, re.findall(r"(\d+) of 6\d\d", train.inner_text()))
        )  # 30 epochs of 23 steps, or of 22 where examples are missing
        return len(seen) > 1

    wait_for(grows, seconds=400)
    person.look("progress")
    train.get_by_text("success", exact=True).wait_for()


def read_report(person: Person, verdict: str) -> None:
    report = person.open_tab("Report").frame_locator("iframe[title='Evaluation']")
    report.get_by_text(verdict).first.wait_for()
    person.look(verdict.split()[0].lower())


def approve(person: Person, run: str) -> None:
    """In the list of what is to be done, which the run's page offers."""
    person.go(run)
    person.page.get_by_text("Required Actions").first.click()
    person.page.get_by_text("Publish a new version of digits?").first.wait_for()
    report = person.page.get_by_role("link", name="the report").get_attribute("href")
    assert unquote(report) == f"{person.url}{unquote(run)}/plugin/trainyard_report"
    person.look("approval")
    person.page.get_by_role("button", name="Approve", exact=True).first.click()
    person.go(run)


def roll_back(person: Person, challenger: int, champion: int) -> None:
    """On the page of the models, in the navigation."""
    models = person.open_tab("Models")
    models.get_by_text(f"version {challenger}", exact=True).wait_for()
    person.look("models")
    models.get_by_role("link", name="digits").click()
    models.get_by_text(f"Version {challenger} is in service").wait_for()
    assert models.locator("svg.chart").count() > 1
    models.get_by_text(f"Roll back to version {champion}").click()
    models.get_by_label("Reason").first.fill("customers complained")
    person.look("model")
    models.get_by_role("button", name=f"Put version {champion} back in service").click()
    models.get_by_role("status").wait_for()
    person.look("rolled-back")
