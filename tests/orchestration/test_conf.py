"""The conf that a task reads: what only the author sets ends every task at once, before it has read
or written anything."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException
from config.test_overrides import AUTHORS, flat_key, nested
from config_files import write_config
from task_contexts import make_context

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.orchestration.approval import ApproveOperator
from pipeline_ops.orchestration.search import ChooseOperator, SearchOperator, TrialOperator
from pipeline_ops.orchestration.tasks import OPERATORS
from pipeline_ops.planning.job_kinds import JOBS


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pipeline")
    changes = {
        "storage.root": "storage",
        "evaluate.approval": {"timeout_seconds": 60},
        "search": {"parameters": {"train.seed": [1, 2]}},
    }
    return write_config(folder, changes)


def refusal(operator, conf: dict) -> str:
    context = make_context(dict.fromkeys(JOBS, "a manifest"), conf=conf)
    with pytest.raises(AirflowFailException) as error:
        operator.execute(context)
    assert context["task_state_store"] == {}
    return str(error.value)


def test_every_field_of_the_authors_ends_a_task(config):
    """F1, F6: whatever wrote the conf. A failure of this kind is never retried."""
    for key, kind in zip(AUTHORS, itertools.cycle(OPERATORS)):
        flat, operator = flat_key(key), kind(config_file=str(config))
        for conf in ({flat: 1}, {flat: None}, {f"{flat}.0": 1}, nested(key, "x")):
            [name] = conf
            assert refusal(operator, conf).startswith(f"conf {name}: "), conf
    assert [path.name for path in (config.parent / "storage").iterdir()] == ["runs"]


@pytest.mark.parametrize(
    "conf",
    [
        {"storage.root": "/srv/other"},
        {"search": {"parameters": {}}},
        {"evaluate": {"approval": None}},
        {"train.epochs": 10**400},
        {"a" * 5000: 1},
        {"\ud800": "\0"},
    ],
)
def test_every_kind_of_task_refuses_it(config, conf):
    """F20, too: a hostile conf is refused, and not tried again."""
    file = str(config)
    others = [
        SearchOperator(config_file=file),
        ChooseOperator(config_file=file),
        TrialOperator(config_file=file, task_id="trial", trial={}),
        ApproveOperator(config_file=file, approval=load_config(config).evaluate.approval),
    ]
    for operator in [*(kind(config_file=file) for kind in OPERATORS), *others]:
        assert refusal(operator, conf).startswith("conf ")
    assert [path.name for path in (config.parent / "storage").iterdir()] == ["runs"]
