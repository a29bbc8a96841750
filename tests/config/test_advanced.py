"""The keys that are marked as advanced: no shipped config sets one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from config_files import DIGITS

from pipeline_ops.config.fields import collect_fields
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.reading import ConfigText


def iterate_keys(value: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield f"{prefix}.{name}".removeprefix(".")
            yield from iterate_keys(inner, f"{prefix}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from iterate_keys(inner, f"{prefix}[]")


def test_no_shipped_config_sets_an_advanced_key():
    advanced = {key for key, field in collect_fields(PipelineConfig).items() if field.is_advanced}
    assert len(advanced) > 100
    for file in DIGITS.parent.glob("*.yaml"):
        assert not advanced & set(iterate_keys(ConfigText.read(file).values)), file


def test_an_advanced_section_makes_all_its_keys_advanced():
    fields = collect_fields(PipelineConfig)
    assert fields["preprocess.runner.workers"].is_advanced
    assert fields["search.parameters"].is_advanced
    assert not fields["train.epochs"].is_advanced
