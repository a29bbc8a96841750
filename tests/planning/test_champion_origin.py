"""A champion that another pipeline has published: nothing begins with it or is compared with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_files import DIGITS
from publishers import publish

from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.contract.fingerprint import Fingerprint
from pipeline_ops.contract.manifest import Input
from pipeline_ops.errors import ConfigError
from pipeline_ops.planning.inputs import (
    find_baseline,
    find_champion,
    find_champion_dataset,
    find_warm_start,
)
from pipeline_ops.registry.registry import Registry

CHALLENGER = Input(uri="", digest="challenger")
FINGERPRINT = Fingerprint(config={}, inputs={}, code={}, versions={})
USES = {
    "the comparison": lambda config: find_baseline(config, CHALLENGER),
    "its own evaluation": lambda config: find_baseline(config, Input(uri="", digest="a")),
    "the reference of the data": find_champion_dataset,
    "a warm start": lambda config: find_warm_start(config, FINGERPRINT),
    "validate": find_champion,
}


@pytest.fixture
def root(tmp_path) -> Path:
    """A storage root, in which the model digits is of the pipeline p."""
    registry = Registry(tmp_path / "models" / "digits")
    registry.promote(publish(registry, "a", num_bytes=300).number, "newer")
    return tmp_path


def load(root: Path, **overrides) -> PipelineConfig:
    fixed = {"storage.root": str(root), "train.warm_start": "champion"}
    return load_config(
        DIGITS, fixed | {key.replace("__", "."): overrides[key] for key in overrides}
    )


@pytest.mark.parametrize("use", USES)
def test_a_champion_of_another_pipeline_is_refused_with_both_cures(root, use):
    with pytest.raises(ConfigError) as refused:
        USES[use](load(root))
    assert ": export.model: the champion of digits (version 1) comes from " in str(refused.value)
    assert "pipeline p, and this is digits" in str(refused.value)
    assert "another export.model. If p is its earlier name" in str(refused.value)
    assert "set export.shared_with: [p]" in str(refused.value)


@pytest.mark.parametrize("use", USES)
def test_one_that_the_config_names_is_used(root, use):
    USES[use](load(root, export__shared_with=["earlier", "p"]))


def test_the_cure_keeps_the_names_that_are_there(root):
    with pytest.raises(ConfigError, match=r"export.shared_with: \[earlier, p\]"):
        find_champion(load(root, export__shared_with=["earlier"]))


def test_a_version_by_its_number_follows_the_same_rule(root):
    with pytest.raises(ConfigError, match=r"train.warm_start: the version of digits \(version 1\)"):
        find_warm_start(load(root, train__warm_start="version 1"), FINGERPRINT)
    shared = load(root, train__warm_start="version 1", export__shared_with=["p"])
    assert find_warm_start(shared, FINGERPRINT).uri.endswith("/1/manifest.json")


def test_the_key_changes_no_fingerprint(root):
    sections = [load(root, export__shared_with=names).export for names in ([], ["p"])]
    assert sections[0].to_fingerprint_dict() == sections[1].to_fingerprint_dict()
