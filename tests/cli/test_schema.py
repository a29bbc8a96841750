"""`schema`: editors accept every valid config, and flag a mistake at its place."""

from __future__ import annotations

import copy
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from editor_schema import find_problems, list_problems
from npm_packages import find_missing_program
from random_configs import draw_config, list_changes, write_nets, write_raw_data

from beam_jobs.stages import check_stages
from pipeline_ops.cli.commands.schema import FILE_NAME, render_hosts_schema, render_schema
from pipeline_ops.cli.main import main
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.config.reading import ConfigText
from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.errors import ConfigError

CONFIGS = CODE_ROOT / "configs"
FILES = sorted(CONFIGS.glob("*.yaml"))
HOSTS = [*CODE_ROOT.glob("configs/hosts/*.yaml"), *CODE_ROOT.glob("docker/**/hosts/*.yaml")]
DIGITS = ConfigText.read(CONFIGS / "digits.yaml").values
NUM_RANDOM = 150


def change(key: str, value: Any) -> dict:
    """The values of `configs/digits.yaml`, with another one at a dotted key."""
    values = copy.deepcopy(DIGITS)
    *sections, last = [int(part) if part.isdecimal() else part for part in key.split(".")]
    inner = values
    for section in sections:
        inner = inner.setdefault(section, {}) if isinstance(inner, dict) else inner[section]
    inner[last] = value
    return values


def load(values: dict, folder: Path) -> None:
    shutil.copytree(CONFIGS / "hosts", folder / "hosts")
    file = folder / "digits.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    check_stages(load_config(file).preprocess, file)


# The files


def test_the_schemas_beside_the_configs_are_current():
    assert (CONFIGS / FILE_NAME).read_text() == render_schema(), (
        f"run `trainyard schema > configs/{FILE_NAME}`"
    )
    assert (CONFIGS / "hosts" / "hosts.schema.json").read_text() == render_hosts_schema(), (
        "run `trainyard schema --hosts > configs/hosts/hosts.schema.json`"
    )


def test_the_command_prints_them(capsys):
    assert main(["schema"]) == 0
    assert capsys.readouterr().out == render_schema()
    assert main(["schema", "--hosts"]) == 0
    assert capsys.readouterr().out == render_hosts_schema()


@pytest.mark.parametrize("file", [*FILES, *CONFIGS.glob("hosts/*.yaml")], ids=lambda f: f.name)
def test_each_config_names_the_schema_in_its_first_line(file):
    head, _, name = file.read_text().partition("\n")[0].partition("=")
    assert head == "# yaml-language-server: $schema"
    assert (file.parent / name).is_file()


# What is valid. tests/docs has the examples of the documents, test_init.py the configs of `init`.


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_it_accepts_a_config(file):
    assert find_problems(file) == []


@pytest.mark.parametrize("file", HOSTS, ids=lambda file: f"{file.parents[1].name}-{file.name}")
def test_it_accepts_a_hosts_file(file):
    assert find_problems(file, is_for_hosts=True) == []


@pytest.mark.timeout(600)
def test_it_accepts_random_valid_configs(tmp_path, monkeypatch):
    write_raw_data(tmp_path / "raw")
    write_nets(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    changes = list_changes()
    files = [draw_config(number, tmp_path, changes) for number in range(NUM_RANDOM)]
    assert {file.name: found for file in files if (found := find_problems(file))} == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schedule", "0 3 * * *"),
        ("schedule", {"assets": ["raw", {"name": "other", "uri": "s3://bucket/raw"}]}),
        ("per_run", {"train.hosts": ["ssh", None], "train.seed": []}),
        ("preprocess.source", {"type": "my_sources:patients", "path": "raw", "min_age": 18}),
        ("preprocess.source", {"type": "my:own", "path": "x", "parameters": {"min_age": 18}}),
        ("preprocess.source", {"type": "beam", "path": "x", "transform": "my:Entries", "limit": 5}),
        (
            "preprocess.source",
            {"type": "parquet", "path": "x", "task": "detection", "boxes": "objects.bbox"},
        ),
        ("preprocess.stages.0", "decode"),
        ("preprocess.stages.0", {"decode": None}),
        ("preprocess.stages.0", {"name": "decode", "parameters": {"channels": 1}}),
        ("preprocess.stages.0", {"decode": {}, "served": "by_client"}),
        ("train.loss", {"keras.losses:CategoricalFocalCrossentropy": {"gamma": 3}}),
        ("train.class_weights", {"3": 2.0}),
        ("train.optimizer", {"class": "keras.optimizers.Lion"}),
        ("train.metrics", ["my:f1", {"my:brier": {"mode": "min", "scale": 2}}]),
        ("train.callbacks", ["my:watch", {"keras.callbacks:CSVLogger": {"filename": "a.csv"}}]),
        ("train.warm_start", "version 3"),
        ("train.warm_start", {"path": "weights.npz"}),
        ("train.best_checkpoint", None),
        ("train.epochs", None),
        ("evaluate.gate", [{"metric": "my:dice", "at_least": 1}]),
    ],
)
def test_it_accepts_each_form_of_a_value(key, value, tmp_path):
    load(change(key, value), tmp_path)
    assert list_problems(change(key, value)) == []


# What is not


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("tag", "x", ": .*'tag' was unexpected"),
        ("storage.rot", "x", "storage: .*'rot' was unexpected"),
        ("storage.keep", {"runs": 0}, "storage.keep.runs: 0 is less than"),
        ("schedule", {"cronn": "@daily"}, "schedule"),
        ("per_run", {"train.epoch": [3]}, "per_run: 'train.epoch' is not one of"),
        ("preprocess.source.type", "image_fodler", "preprocess.source.type: "),
        ("preprocess.source.class_foldr", "x", "preprocess.source: .*'class_foldr' was unexpected"),
        ("preprocess.stages.1", {"resiz": {"height": 28, "width": 28}}, "preprocess.stages.1: "),
        ("preprocess.stages.1.resize.heigth", 28, "preprocess.stages.1.resize: .*'heigth'"),
        ("preprocess.stages.1.resize.height", 0, "preprocess.stages.1.resize.height: 0 is less"),
        ("preprocess.split.train", "most", "preprocess.split.train: 'most' is not of type"),
        ("preprocess.shards", 2.5, "preprocess.shards: 2.5 is not of type 'integer'"),
        ("train.model", "digit_cnn", "train.model: "),
        ("train.model_parameters", {"units": 3}, "train.model_parameters: .*'units'"),
        ("train.epochs", -1, "train.epochs: -1 is less than"),
        ("train.strategy", "mirored", "train.strategy: 'mirored' is not one of"),
        ("train.input.augment.flip", True, "train.input.augment: .*'flip' was unexpected"),
        ("train.optimizer.schedule", {"type": "cosin"}, "train.optimizer.schedule.type: 'cosin'"),
        ("train.metrics", [{"my:f1": {"mode": "high"}}], "train.metrics.0"),
        ("train.early_stopping", {"patience": 3}, "train.early_stopping: "),
        ("evaluate.gate.0.metric", "acuracy", "evaluate.gate.0.metric: "),
        ("evaluate.gate.0.at_most", "0.1", "evaluate.gate.0.at_most: '0.1' is not of type"),
        ("export.formats", ["tf_lite"], "export.formats.0: 'tf_lite' is not one of"),
        ("notify", [{"notifier": "a.B", "events": ["fail"]}], "notify.0.events.0: 'fail'"),
    ],
)
def test_it_flags_what_validate_refuses_at_its_place(key, value, problem, tmp_path):
    values = change(key, value)
    with pytest.raises(ConfigError):
        load(values, tmp_path)
    found = "\n".join(list_problems(values))
    assert re.search(f"(?m)^{problem}", found), found


def test_it_flags_a_mistake_in_a_hosts_file():
    hosts = {"launcher": "ssh", "hosts": [{"nme": "a"}]}
    assert any("'nme' was unexpected" in each for each in list_problems(hosts, True))
    [problem] = list_problems({"launcher": "shh"}, is_for_hosts=True)
    assert problem.startswith("launcher: 'shh' is not one of")


# The server behind editors


@pytest.mark.stores
def test_the_yaml_language_server_completes_explains_and_checks_a_config(tmp_path):
    """The server is fetched from npm the first time."""
    from language_server import LanguageServer

    if missing := find_missing_program():
        pytest.skip(f"the YAML language server needs {missing}, which is not installed")
    shutil.copy(CONFIGS / FILE_NAME, tmp_path)
    text = (CONFIGS / "digits.yaml").read_text()
    lines = text.splitlines()
    files = {name: tmp_path / f"{name}.yaml" for name in ("valid", "typo", "begun")}
    files["valid"].write_text(text)
    files["typo"].write_text(text.replace("  epochs:", "  epoch:"))
    files["begun"].write_text("\n".join([*lines[: lines.index("train:") + 1], "  ", ""]))
    epochs = next(number for number, line in enumerate(lines) if "  epochs:" in line)
    batch = next(number for number, line in enumerate(lines) if "  global_batch_size:" in line)
    with LanguageServer(tmp_path) as server:
        assert server.open(files["valid"]) == []
        assert server.open(files["typo"]) == [(epochs, "Property epoch is not allowed.")]
        server.open(files["begun"])
        offered = server.complete(files["begun"], lines.index("train:") + 1, 2)
        assert {"epochs", "model", "optimizer"} <= {*offered}
        assert "Examples per optimizer step" in server.hover(files["valid"], batch, 4)
