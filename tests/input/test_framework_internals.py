"""The private parts of TensorFlow and Keras are checked in one place, with a clear error."""

from __future__ import annotations

import importlib
import operator
import re
import runpy
import tomllib
from pathlib import Path

import pytest

from pipeline_ops.errors import ConfigError
from pipeline_ops.input import framework_internals

ROOT = Path(__file__).resolve().parents[2]


PARTS = [
    path
    for path in framework_internals.PRIVATE_NAMES
    if not path.endswith((".__init__", "_FIELD_NUMBER"))  # cannot be removed
]


@pytest.mark.parametrize("path", PARTS)
def test_a_part_that_is_missing_is_named_with_the_versions(monkeypatch, path):
    module, _, names = path.partition(":")
    *owners, name = names.split(".")
    holder = importlib.import_module(module)
    if owners:
        owner = operator.attrgetter(".".join(owners))(holder)
        holder = next(kind for kind in owner.__mro__ if name in vars(kind))
    monkeypatch.delattr(holder, name)
    with pytest.raises(ConfigError) as error:
        runpy.run_path(framework_internals.__file__)
    assert re.fullmatch(
        r"TensorFlow 2\.21\.\d+ and Keras 3\.15\.\d+ have no \S+" + name + r"\S*, which is used "
        r"here. The tested versions are TensorFlow 2\.21 and Keras 3\.15\. Install these: "
        r"pip install 'tensorflow>=2\.21,<2\.22' 'keras>=3\.15,<3\.16'",
        str(error.value),
    )


def test_an_attribute_that_only_instances_have_is_checked_too(monkeypatch):
    from tensorflow.python.eager.context import Context

    monkeypatch.setattr(Context, "__init__", lambda self: None)
    with pytest.raises(ConfigError, match="have no tensorflow.python.eager.context:Context._con"):
        runpy.run_path(framework_internals.__file__)


@pytest.mark.parametrize(
    "name, slots",
    [
        ("SGD", {"momentums"}),
        ("RMSprop", {"momentums", "velocities"}),
        ("Adam", {"momentums", "velocities"}),
        ("AdamW", {"momentums", "velocities"}),
    ],
)
def test_each_variable_of_an_optimizer_is_in_one_slot(name, slots):
    import keras

    weights = [keras.Variable([1.0], name=name) for name in ("average", "a_velocity", "momentum")]
    options = {} if name.startswith("Adam") else {"momentum": 0.9}
    optimizer = getattr(keras.optimizers, name)(use_ema=True, **options)
    optimizer.build(weights)
    found = framework_internals.get_slots(optimizer)
    assert found.keys() == {*slots, "averages"}
    assert [len(variables) for variables in found.values()] == [3] * len(found)
    rest = {"iteration", "learning_rate"}
    of_weights = [each for each in optimizer.variables if each.name not in rest]
    assert {id(each) for variables in found.values() for each in variables} == set(
        map(id, of_weights)
    )


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


def test_there_are_at_most_seventeen_private_parts():
    """Besides the parts above there are `Context._config`, and four and a moved module of tf_keras
    in `models/slim.py`, whose tests fail without them."""
    assert len(PARTS) + 1 + 5 <= 17
