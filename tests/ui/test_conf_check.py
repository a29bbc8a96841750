"""A conf over Airflow's own REST API:
what only the author sets is refused before there is a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from config.test_overrides import AUTHORS, flat_key, nested
from sqlalchemy import func, select

from pipeline_ops.ui import conf_check

ADDRESS = "/api/v2/dags/digits/dagRuns"


@pytest.fixture(scope="module")
def airflow(airflow_folder):
    """Airflow's API with our check, as the role `user` reaches it."""
    from airflow.api_fastapi.app import create_app, get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.models.dagrun import DagRun
    from fastapi.testclient import TestClient
    from sqlalchemy import event

    app = create_app(apps="core")
    token = get_auth_manager().generate_jwt(
        SimpleAuthManagerUser(username="user", role="user", teams=None)
    )
    conf_check.install()
    yield TestClient(app, headers={"Authorization": f"Bearer {token}"})
    event.remove(DagRun, "init", conf_check.check_conf)


def count_runs() -> int:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        return session.scalar(select(func.count()).select_from(DagRun))


def trigger(airflow, conf):
    return airflow.post(ADDRESS, json={"logical_date": None, "conf": conf})


def confs() -> Iterator[dict]:
    """Every field of the author: flat, as null, by index and in its section, as many at once as a
    refusal lists."""
    flat = list(map(flat_key, AUTHORS))
    for names, value in ((flat, 1), (flat, None), ([f"{name}.0" for name in flat], 1)):
        yield from (
            dict.fromkeys(some, value)
            for some in (names[first : first + 20] for first in range(0, len(names), 20))
        )
    yield from (nested(key, "x") for key in AUTHORS)


def test_every_field_of_the_authors_is_refused_over_rest(airflow):
    """F1, F6."""
    before = count_runs()
    for conf in confs():
        answer = trigger(airflow, conf)
        rejected_keys = [line.partition(": ")[0] for line in answer.json()["detail"].splitlines()]
        assert (answer.status_code, rejected_keys) == (400, [f"conf {name}" for name in conf]), (
            answer.text
        )
    assert count_runs() == before


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"train.epochs": 0}, "Invalid input for param train.epochs"),
        ({"train.epoch": 3}, "the nearest valid name is 'train.epochs'"),
        ({"train.warm_start": "/models/foreign"}, "Invalid input for param train.warm_start"),
        ({"train.optimizer.clip.norm": -1}, "override train.optimizer.clip.norm"),
    ],
)
def test_a_value_that_is_wrong_is_refused_with_its_reason(airflow, conf, message):
    answer = trigger(airflow, conf)
    assert answer.status_code == 400 and message in answer.json()["detail"]


def test_what_a_run_may_set_starts_one(airflow):
    answer = trigger(airflow, {"train.epochs": 3})
    assert (answer.status_code, answer.json()["conf"]) == (200, {"train.epochs": 3})


def test_a_dag_of_somebody_else_takes_any_conf(airflow):
    """The DAG that moves models has params of its own."""
    answer = airflow.post(
        ADDRESS.replace("digits", "trainyard_models"),
        json={"logical_date": None, "conf": {"pipeline": "digits", "train": 1}},
    )
    assert answer.status_code == 200


def test_it_needs_no_file_of_the_author(airflow, airflow_folder):
    """The API server may be on a host without the DAG folder."""
    file = airflow_folder / "digits.yaml"
    hidden = file.rename(airflow_folder / "elsewhere")
    try:
        refused = trigger(airflow, {"export.model": "other"})
        allowed = trigger(airflow, {"train.epochs": 3})
    finally:
        hidden.rename(file)
    assert refused.status_code == 400 and "export.model" in refused.text
    assert allowed.status_code == 200, allowed.text
