"""The private parts of TensorFlow and Keras are checked in one place, with a clear error."""

from __future__ import annotations

import importlib
import re
import runpy
import tomllib
from pathlib import Path

import pytest

from pipeline_ops.errors import ConfigError
from pipeline_ops.input import framework_internals

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "module, owner, name",
    [
        ("keras.src.backend.common.name_scope", None, "current_path"),
        ("keras", "Layer", "_flatten_layers"),
        (
            "tensorflow.python.distribute.collective_all_reduce_strategy",
            "CollectiveAllReduceExtended",
            "_initialize_local_devices",
        ),
        (
            "tensorflow.python.framework.convert_to_constants",
            None,
            "convert_variables_to_constants_v2",
        ),
    ],
)
def test_a_part_that_is_missing_is_named_with_the_versions(monkeypatch, module, owner, name):
    holder = importlib.import_module(module)
    holder = getattr(holder, owner) if owner else holder
    while owner and name not in vars(holder):
        holder = holder.__mro__[1]
    monkeypatch.delattr(holder, name)
    with pytest.raises(ConfigError) as error:
        runpy.run_path(framework_internals.__file__)
    assert re.fullmatch(
        r"TensorFlow 2\.21\.\d+ and Keras 3\.15\.\d+ have no \S+" + name + ", which is used here. "
        r"The tested versions are TensorFlow 2\.21 and Keras 3\.15\. Install these: "
        r"pip install 'tensorflow>=2\.21,<2\.22' 'keras>=3\.15,<3\.16'",
        str(error.value),
    )


def test_an_attribute_that_only_instances_have_is_checked_too(monkeypatch):
    import keras

    monkeypatch.setattr(keras.optimizers.Adam, "build", lambda self, variables: None)
    with pytest.raises(ConfigError, match="have no keras:optimizers.Adam._momentums, "):
        runpy.run_path(framework_internals.__file__)


def test_the_tested_versions_are_those_that_the_distribution_requires():
    project = (ROOT / "pyproject.toml").read_text()
    requirements = tomllib.loads(project)["project"]["optional-dependencies"]["train"]
    for package, (first, end) in framework_internals.TESTED.items():
        assert any(line.startswith(f"{package}>={first},<{end}") for line in requirements)


def test_no_other_module_imports_private_parts():
    found = {
        str(file.relative_to(ROOT))
        for package in ("pipeline_ops", "beam_jobs")
        for file in (ROOT / package).rglob("*.py")
        if re.search(r"\b(tensorflow\.python|keras\.src)\b", file.read_text())
    }
    assert found == {"pipeline_ops/input/framework_internals.py", "pipeline_ops/models/slim.py"}
