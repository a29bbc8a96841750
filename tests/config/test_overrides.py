"""What a run's conf may set. One table walks every leaf of the config:
it is a run's or the author's, and nothing between."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from config.cases import parse_cases
from config_files import DIGITS, write_config

from pipeline_ops.config.fields import collect_fields, get_declarations, get_value
from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.config.run_conf import (
    TRUSTED_CONF,
    apply_conf,
    load_run_config_or_author,
    parse_conf,
)
from pipeline_ops.errors import ConfigError

AUTHOR, LEAVES = load_config(DIGITS), collect_fields(PipelineConfig)
AUTHORS = sorted(key for key, leaf in LEAVES.items() if not leaf.is_per_run)
A_RUNS = sorted(key for key, leaf in LEAVES.items() if leaf.is_per_run)
_NEVER_OPEN = """
    pipeline description owner tags schedule storage search notify per_run export
    evaluate.gate evaluate.approval evaluate.slices evaluate.allowed_leaks evaluate.top_k
    preprocess.source preprocess.stages preprocess.split preprocess.runner preprocess.rejects
    preprocess.drift preprocess.allowed_changes train.model train.model_parameters train.loss
    train.metrics train.callbacks train.hosts train.workers train.strategy train.tpu train.debug
    train.tensorboard train.input.local_folder train.input.cache_limit_mib train.steps_per_call
"""
NEVER_OPEN_BY_DEFAULT = _NEVER_OPEN.split() + [
    f"{task}.{name}"
    for task in ("preprocess", "train", "evaluate", "export")
    for name in ("pool", "retries", "runs_on", "timeout_seconds")
]


def refusal(conf: Any, file: Path = DIGITS) -> str:
    with pytest.raises(ConfigError) as error:
        apply_conf(load_config(file), conf)
    return str(error.value)


def flat_key(key: str) -> str:
    """The key as a conf would name it: the first item of a list."""
    return key.replace("[]", ".0")


def nested(key: str, value: Any) -> dict[str, Any]:
    """A whole section with the value in it."""
    *sections, name = flat_key(key).split(".")
    inner: Any = {name: value}
    for section in reversed(sections):
        inner = [inner] if section == "0" else {section: inner}
    return inner


def test_the_table_has_every_leaf_of_unions_and_lists_too():
    assert {
        "preprocess.source.path",
        "preprocess.source.builder",
        "preprocess.source.parts[].annotations",
        "preprocess.stages[].name",
        "train.optimizer.schedule.boundaries_steps",
        "train.input.augment.scale.min",
        "evaluate.gate[].at_least",
        "notify[].notifier",
        "schedule.assets[].uri",
        "search.parameters",
        "evaluate.approval.on_timeout",
    } <= set(LEAVES)
    assert len(LEAVES) > 200 and len(A_RUNS) > 30


def test_each_leaf_is_a_runs_or_the_authors_and_not_both():
    assert [
        key
        for key, leaf in LEAVES.items()
        if leaf.is_per_run and (leaf.fixed or leaf.kind != "scalar" or leaf.is_in_list)
    ] == []
    twins = [leaf for leaf in LEAVES.values() if len(leaf.fields) > 1]
    marks = [
        {get_declarations(field).get("is_per_run", False) for field in leaf.fields}
        for leaf in twins
    ]
    assert twins and all(len(each) == 1 for each in marks), (
        "sections that may stand at one place declare a field alike"
    )


@pytest.mark.parametrize("prefix", NEVER_OPEN_BY_DEFAULT)
def test_what_must_never_be_open_by_default_is_the_authors(prefix):
    below = (f"{prefix}.", f"{prefix}[]")
    found = [key for key in LEAVES if key == prefix or key.startswith(below)]
    assert found and not set(found) & set(A_RUNS)


@pytest.mark.parametrize("key", AUTHORS)
def test_an_authors_field_is_refused_flat_in_its_section_by_index_and_as_null(key):
    """F1, F6: a run changes numbers and nothing else."""
    flat = flat_key(key)
    sections, own = flat.split("."), get_value(AUTHOR, key)
    with pytest.raises(ConfigError, match=f"Change it in {DIGITS}"):
        parse_conf(AUTHOR, {flat: 1})
    for value in (None, 1, "x", own):
        names = (flat, f"{flat}.0", f"{flat}.-1", f"{flat}.name", sections[0])
        confs = [{name: value} for name in names] + [nested(key, value)]
        for depth in range(1, len(sections)):
            inner = nested(".".join(sections[depth:]), value)
            confs.append({".".join(sections[:depth]): inner})
        for conf in confs:
            [name] = conf
            with pytest.raises(ConfigError, match=f"^conf {re.escape(name)}: "):
                parse_conf(AUTHOR, conf)


@pytest.mark.parametrize("key", A_RUNS)
def test_a_runs_field_takes_a_single_value_and_nothing_else(key):
    for value in ([1], {"a": 1}, [], {}):
        with pytest.raises(ConfigError, match=f"^conf {key}: must be a single value, got a"):
            parse_conf(AUTHOR, {key: value})
    with pytest.raises(ConfigError, match=rf"^conf {key}\.0: unknown key"):
        parse_conf(AUTHOR, {f"{key}.0": 1})


@pytest.mark.parametrize(
    "conf",
    [
        {"train.epochs": 3},
        {"train.optimizer.learning_rate": 1},
        {"train.early_stopping.patience_epochs": 9},
        {"train.optimizer.schedule.warmup_steps": 9},
        {"train.warm_start": "version 12"},
        {"train.warm_start": None},
        {"train.input.augment.flip_left_right": True, "evaluate.batch_size": 8},
        {},
    ],
)
def test_what_a_run_may_set(conf):
    config = apply_conf(AUTHOR, conf)
    assert {key: get_value(config, key) for key in conf} == conf
    assert config.train.epochs == conf.get("train.epochs", 20)


def test_a_run_without_a_conf_has_the_authors_config():
    assert apply_conf(AUTHOR, None) is AUTHOR


REFUSED = r"""
{train.seed: null}
    conf train.seed: must not be null. Leave it out to use the value of the YAML
{train.epochs: "3"}
    override train.epochs: train.epochs: input should be a valid integer
{train.epochs: true}
    override train.epochs: train.epochs: input should be a valid integer
{train.epochs: 0}
    train.epochs: input should be greater than or equal to 1
{train.epoch: 3}
    conf train.epoch: unknown key; the nearest valid name is 'train.epochs'
{train.warm_start: ../../other/model}
    conf train.warm_start: a run may set it to champion, or a published version such as `version 3`
{train.warm_start.path: other.h5}
    conf train.warm_start.path: cannot be overridden for a single run
{train.warm_start: "version 1\n"}
    must be a text of at most 4096 printable characters
{preprocess.dataset: ../../etc}
    preprocess.dataset: must match the pattern
{train.runs_on: other}
    conf train.runs_on: cannot be overridden for a single run: it selects a program to execute
{train.hosts: /any/file}
    or open it there with per_run
[[train.epochs, 3]]
    the run's conf must be a mapping of keys to values, got list
train.epochs=3
    the run's conf must be a mapping
"""


@pytest.mark.parametrize(("conf", "message"), parse_cases(REFUSED))
def test_a_refusal_says_what_is_wrong(conf, message):
    assert message in refusal(yaml.safe_load(conf))


@pytest.mark.parametrize(
    "conf",
    [
        {"train.epochs": 10**400},
        {"train.seed": -(10**5000)},
        {"train.optimizer.learning_rate": math.inf},
        {"train.label_smoothing": math.nan},
        {"train.early_stopping.min_delta": math.inf},
        {"train.warm_start": "\0"},
        {"train.warm_start": "\ud800"},
        {"train.warm_start": "a" * 5000},
        {"\0": 1},
        {"train.epochs\0": 1},
        {"\ud800": 1},
        {"a" * 5000: 1},
        {".": 1},
        {"": 1},
        {"train..epochs": 1},
        {"train.epochs.": 1},
        {1: 2},
        {None: 1},
        {("train", "epochs"): 1},
        {"[]": 1},
        {"evaluate.gate[].at_least": 0},
        {str(number): number for number in range(5000)},
    ],
)
def test_hostile_keys_and_values_are_a_config_error_that_can_be_printed(conf):
    """F20: such a conf was tried again and again."""
    message = refusal(conf)
    message.encode()
    assert len(message) < 20_000 and message.isprintable() or "\n" in message


def test_all_that_is_wrong_is_told_at_once():
    assert refusal({"train.epoch": 3, "pipeline": "other", "train.epochs": 5}).count("\n") == 1


def test_a_refused_conf_leaves_notifications_with_the_authors_config():
    """F6: a run cannot lead them to the files of another team."""
    config = load_run_config_or_author(DIGITS, {"storage.root": "/srv/other", "pipeline": "other"})
    assert (config.root, config.pipeline) == (load_config(DIGITS).root, "digits")


def test_in_the_embedded_airflow_a_conf_may_set_any_key_but_the_locations(tmp_path, monkeypatch):
    """`trainyard run --set` gives a run its values in this way."""
    file = write_config(tmp_path, {})
    conf = {
        "train.workers": 1,
        "train.optimizer": {"name": "sgd"},
        "train.optimizer.momentum": 0.5,
        "evaluate.gate.0.at_least": 0.5,
    }
    with pytest.raises(ConfigError, match=re.escape("conf train.workers: cannot be overridden")):
        apply_conf(load_config(file), conf)
    monkeypatch.setenv(TRUSTED_CONF, os.environ["AIRFLOW_HOME"])
    config = apply_conf(load_config(file), conf)
    assert (config.train.workers, config.train.optimizer.momentum) == (1, 0.5)
    assert config.evaluate.gate[0].at_least == 0.5
    in_a_default = apply_conf(load_config(file), {"train.optimizer.schedule.warmup_steps": 9})
    assert in_a_default.train.optimizer.schedule.warmup_steps == 9
    for same in ({"storage": {"root": "/a"}}, {"storage.root": "/a"}, {"export.model": "other"}):
        with pytest.raises(ConfigError, match="conf: the names and locations of a pipeline"):
            apply_conf(load_config(file), same)
    with pytest.raises(ConfigError, match="override train.workers: train.workers: "):
        apply_conf(load_config(file), {"train.workers": 0})


@pytest.mark.parametrize("inherited", ["1", "", "/srv/airflow"])
@pytest.mark.parametrize("home", ["/home/me/.trainyard/airflow", "/srv/airflow/", "", None])
def test_another_airflow_that_inherits_the_variable_trusts_no_conf(inherited, home, monkeypatch):
    """M5: it has another home than the embedded one, or none that its environment names."""
    monkeypatch.setenv(TRUSTED_CONF, inherited)
    monkeypatch.delenv("AIRFLOW_HOME")
    if home is not None:
        monkeypatch.setenv("AIRFLOW_HOME", home)
    assert "cannot be overridden for a single run" in refusal({"storage": {"root": "/srv/x"}})
