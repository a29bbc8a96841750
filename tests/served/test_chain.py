"""A stage of a user's own, from the YAML to the answers of everything that is published."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.training
EXAMPLE = Path(__file__).parents[2] / "configs/digits.yaml"


def write_config(folder: Path, raw: Path, stage, **changes) -> Path:
    config = yaml.safe_load(EXAMPLE.read_text())
    config["preprocess"]["source"]["path"] = str(raw)
    config["preprocess"]["stages"].append(stage)
    config["train"] |= {"workers": 1, "epochs": 4, "strategy": "one_device"}
    config["evaluate"]["gate"] = [{"metric": "accuracy", "at_least": 0.9}]
    config["storage"]["root"] = str(folder / "root")
    for name, value in changes.items():
        config[name] |= value
    file = folder / "digits.yaml"
    file.write_text(yaml.safe_dump(config))
    return file
