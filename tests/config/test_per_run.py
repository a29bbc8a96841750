"""`per_run` of a pipeline config: what the author opens, with the values that he allows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from config.cases import parse_cases
from config_files import write_config

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.config.run_conf import apply_conf
from pipeline_ops.errors import ConfigError
from pipeline_ops.planning.job_kinds import JOBS


@pytest.fixture
def write(tmp_path) -> Callable[[dict[str, Any]], Path]:
    """Writes a pipeline with two hosts files next to it and a folder of daily data;
    the author opens the given keys."""
    (tmp_path / "configs" / "hosts").mkdir(parents=True)
    for name in ("lab", "cloud"):
        (tmp_path / "configs" / "hosts" / f"{name}.yaml").write_text("launcher: local\n")
    for day in ("monday", "tuesday/late"):
        (tmp_path / "daily" / day).mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "daily" / "escape").symlink_to(tmp_path / "secret")

    return lambda opened: write_config(tmp_path / "configs", {"per_run": opened})


REFUSED = """
per_run: [train]
    per_run: per_run: cannot be opened to runs
storage.root: [/a]
    storage.root: cannot be opened to runs: pages, the orphan reaper and other runs need it
pipeline: [a]
    pipeline: cannot be opened to runs
export.registry: [/a]
    export.registry: cannot be opened to runs
export.model: [a]
    export.model: cannot be opened to runs
train.runs_on: [other]
    train.runs_on: cannot be opened to runs: it selects a program to execute. Remove this line
train.retries: [1]
    train.retries: cannot be opened to runs: Airflow reads it when it makes the DAG
evaluate.approval.timeout_seconds: [1]
    cannot be opened to runs
train.callbacks: ['a:b']
    train.callbacks: cannot be opened to runs: it is a list
train.model_parameters: [1]
    train.model_parameters: cannot be opened to runs: it is a mapping
'evaluate.gate[].at_least': [0.5]
    cannot be opened to runs
train.optimizer: [1]
    train.optimizer: there is no such value
train.wokers: [1]
    train.wokers: there is no such value; the nearest valid name is 'train.workers'
train.workers: [0]
    train.workers: 0 is not a valid value of it. Correct or remove it
train.workers: ['2']
    train.workers: '2' is not a valid value of it
train.workers: [null]
    train.workers: None is not a valid value of it
train.hosts: [../lab]
    train.hosts: '../lab' is not a valid value of it
train.hosts: [lba]
    the nearest valid name is 'lab'
preprocess.source.path: [/data/*]
    A slash at its end opens the whole folder
preprocess.source.path: ['/data/{start}/']
    must be a plain path
"""


@pytest.mark.parametrize(("opened", "message"), parse_cases(REFUSED))
def test_what_can_not_be_opened_is_refused_with_its_reason(write, opened, message):
    file = write(yaml.safe_load(f"{{{opened}}}"))
    with pytest.raises(ConfigError) as error:
        load_config(file)
    assert message in str(error.value)


def test_a_wrong_opening_is_told_with_its_line(write):
    file = write({"train.runs_on": ["other"]})
    line = file.read_text().partition("per_run:")[0].count("\n") + 1
    with pytest.raises(ConfigError, match=f"digits.yaml:{line}: per_run: train.runs_on"):
        load_config(file)


def test_a_run_may_set_what_is_opened_to_the_values_that_are_allowed(write):
    opened = {"train.workers": [1, 4], "train.epochs": [5], "train.seed": []}
    file = write(opened | {"train.hosts": ["lab", "cloud"]})
    chosen = {"train.hosts": "cloud", "train.workers": 4, "train.epochs": 5}
    config = apply_conf(load_config(file), chosen)
    assert (config.train.hosts, config.train.workers, config.train.epochs) == ("cloud", 4, 5)
    for conf, message in (
        ({"train.hosts": "cluod"}, "must be one of the values that per_run allows (lab, cloud)"),
        ({"train.hosts": "/etc/passwd"}, "must be one of the values"),
        ({"train.workers": 3}, "per_run allows (1, 4)"),
        ({"train.workers": 4.0}, "per_run allows"),
        ({"train.epochs": 6}, "per_run allows (5)"),
        ({"train.seed": 7}, "conf train.seed: is closed to runs by per_run"),
    ):
        with pytest.raises(ConfigError) as error:
            apply_conf(load_config(file), conf)
        assert message in str(error.value)


def test_the_value_of_the_yaml_is_always_allowed(write):
    file = write({"train.workers": [4], "train.seed": []})
    assert apply_conf(load_config(file), {"train.workers": 2, "train.seed": 1}).train.workers == 2


@pytest.mark.parametrize(
    "value",
    [
        "../daily/monday",
        "{root}/daily/monday",
        "{root}/daily/tuesday/late",
        "{root}/daily/nowhere/../monday",
        "{root}/daily//monday/",
    ],
)
def test_a_path_in_an_opened_folder_is_used_without_links_and_dots(write, tmp_path, value):
    file, path = write({"preprocess.source.path": ["../daily/"]}), value.format(root=tmp_path)
    config = apply_conf(load_config(file), {"preprocess.source.path": path})
    assert config.preprocess.source.path == str((tmp_path / "configs" / path).resolve())
    assert config.preprocess.source.path.startswith(f"{tmp_path}/daily/")


@pytest.mark.parametrize(
    "value",
    [
        "{root}/secret",
        "{root}/daily/../secret",
        "{root}/daily/escape",
        "{root}/daily/escape/x",
        "{root}/dailyx",
        "/",
        "~",
        "{root}/daily/{{start}}",
        "s3://daily/monday",
        "file://{root}/daily/monday",
        "../daily/*",
        "**",
    ],
)
def test_a_path_that_leaves_the_allowed_folder_is_refused(write, tmp_path, value):
    """F12: also through a link, and through a name that a format string would make."""
    file = write({"preprocess.source.path": ["../daily/"]})
    with pytest.raises(ConfigError, match=r"conf preprocess\.source\.path: "):
        apply_conf(load_config(file), {"preprocess.source.path": value.format(root=tmp_path)})


@pytest.mark.parametrize(
    ("folder", "value", "is_allowed"),
    [
        ("s3://lake/daily/", "s3://lake/daily/monday", True),
        ("s3://lake/daily/", "s3://lake/daily/a/b", True),
        ("s3://lake/daily/", "s3://lake/daily", True),
        ("s3://lake/daily/", "s3://lake/dailyx/a", False),
        ("s3://lake/daily/", "s3://lake/daily/../secret", False),
        ("s3://lake/daily/", "s3://lake/daily/%2e%2e/secret", False),
        ("s3://lake/daily/", "s3://lake//daily/a", False),
        ("s3://lake/daily/", "gs://lake/daily/a", False),
        ("s3://lake/daily/", "s3://other@lake/daily/a", False),
        ("s3://lake/daily/", "/lake/daily/a", False),
        ("s3://lake/daily", "s3://lake/daily/monday", False),
        ("../daily/", "../daily/tuesday/late", True),
        ("../daily/monday", "../daily/monday", True),
        ("../daily/monday", "../daily/monday/x", False),
    ],
)
def test_an_opened_folder_stands_for_all_below_it_and_for_no_other_place(
    write, folder, value, is_allowed
):
    file = write({"preprocess.source.path": [folder]})
    try:
        apply_conf(load_config(file), {"preprocess.source.path": value})
    except ConfigError as error:
        assert not is_allowed and "preprocess.source.path" in str(error)
    else:
        assert is_allowed


def test_a_run_may_begin_with_weights_only_where_the_author_opens_a_folder_of_them(write, tmp_path):
    conf = {"train.warm_start": "../daily/monday"}
    with pytest.raises(ConfigError, match="a run may set it to champion"):
        apply_conf(load_config(write({})), conf)
    opened = write({"train.warm_start": ["champion", "../daily/"]})
    assert apply_conf(load_config(opened), conf).train.warm_start == f"{tmp_path}/daily/monday"


def test_what_is_opened_is_in_no_fingerprint(write):
    opened, closed = (load_config(write(opened)) for opened in ({"train.workers": [1, 4]}, {}))
    for task in JOBS:
        of_opened, of_closed = getattr(opened, task), getattr(closed, task)
        assert of_opened.to_fingerprint_dict() == of_closed.to_fingerprint_dict()
