"""Who may start a run may change numbers, and may not make its hosts run something else."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pipeline_ops.contracts.config import load_config
from pipeline_ops.contracts.errors import ConfigError
from pipeline_ops.contracts.programs import refuse_other_programs

DIGITS = Path(__file__).resolve().parents[2] / "configs" / "digits.yaml"
OWN = {"model": "acme.nets:build", "loss": "acme.nets:loss", "metrics": ["acme.nets:top3"], "callbacks": ["acme.watch:Callback"]}
TFDS = {"type": "tfds", "builder": "acme.sets.Mine", "parts": [{"name": "train"}]}


def make_config(folder: Path, train: dict, **sections) -> Path:
    values = yaml.safe_load(DIGITS.read_text())
    values["train"] |= train
    (folder / "digits.yaml").write_text(yaml.safe_dump(values | sections))
    return folder / "digits.yaml"


@pytest.mark.parametrize(("overrides", "message"), [
    ({"train.python": "/bin/sh"}, "train.python"),
    ({"preprocess.python": "/bin/sh"}, "preprocess.python"),
    ({"train.model": "os:system"}, "train.model: os:system"),
    ({"train.loss": "os:system"}, "train.loss: os:system"),
    ({"train.metrics": ["os:system"]}, "train.metrics.0: os:system"),
    ({"train.callbacks": ["os:system"]}, "train.callbacks.0: os:system"),
    ({"preprocess.stages": ["decode", {"os:system": {}}]}, "preprocess.stages.1: os:system"),
    ({"preprocess.stages.0": "os:system"}, "preprocess.stages.0: os:system"),
    ({"preprocess.source": TFDS}, "preprocess.source.builder: acme.sets.Mine"),
    ({"preprocess.runner": {"name": "portable", "options": {"environment_config": "sh"}}}, "preprocess.runner.options"),
    ({"search": {"parameters": {"train.model": ["dense", "os:system"]}}}, "search.parameters.train.model: os:system"),
    ({"search": {"parameters": {"train.metrics": [[], ["os:system"]]}}}, "search.parameters.train.metrics: os:system"),
    ({"notify": [{"notifier": "os.system", "events": ["failed"]}]}, "notify"),
])
def test_a_program_that_the_yaml_does_not_have_is_refused_by_its_key(tmp_path, overrides, message):
    file = make_config(tmp_path, {})
    with pytest.raises(ConfigError) as error:
        refuse_other_programs(load_config(file, overrides))
    assert str(error.value) == f"{message} can't be chosen for a run; it is for the author of {file}"


@pytest.mark.parametrize("overrides", [
    {"train.epochs": 3, "train.model": "dense", "preprocess.runner.workers": 2, "preprocess.stages.1": "decode"},
    {"train.model": "digits_cnn", "train.loss": None, "train.metrics": [], "train.callbacks": []},
    {"train.metrics": ["acme.nets:loss", "acme.nets:top3"]},
    {"search": {"parameters": {"train.model": ["digits_cnn", "acme.nets:build"], "train.global_batch": [32, 64]}}},
])
def test_what_the_yaml_has_can_be_chosen_and_left_out(tmp_path, overrides):
    refuse_other_programs(load_config(make_config(tmp_path, OWN), overrides))


def test_what_the_yaml_searches_among_can_be_trained(tmp_path):
    file = make_config(tmp_path, {}, search={"parameters": {"train.model": ["digits_cnn", "acme.nets:build"]}})
    refuse_other_programs(load_config(file, {"train.model": "acme.nets:build"}))
