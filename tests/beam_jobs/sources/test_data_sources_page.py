"""The examples and tables of docs/data-sources.md."""

from __future__ import annotations

import re

import pytest
import yaml
from pydantic import TypeAdapter

from beam_jobs.sources import CATALOGUE
from pipeline_ops.config.sources import AnySource
from pipeline_ops.contract.source_code import CODE_ROOT

PAGE = (CODE_ROOT / "docs" / "data-sources.md").read_text()
EXAMPLES = [
    yaml.safe_load(block)["preprocess"]["source"]
    for block in re.findall(r"```(?:yaml)?\n(preprocess:.*?)```", PAGE, re.DOTALL)
]


@pytest.mark.parametrize("source", EXAMPLES, ids=lambda source: source["type"])
def test_an_example_is_a_valid_source(source):
    TypeAdapter(AnySource).validate_python(source, strict=True)


def test_every_source_is_on_the_page():
    assert {name for name in CATALOGUE if f"| `{name}`" in PAGE or f", `{name}`" in PAGE} == set(
        CATALOGUE
    )


def test_every_reason_for_a_reject_is_on_the_page():
    code = "".join(
        file.read_text()
        for file in [
            *(CODE_ROOT / "beam_jobs" / "sources").glob("*.py"),
            CODE_ROOT / "beam_jobs/stages/boxes.py",
            CODE_ROOT / "beam_jobs/io/tfrecord_files.py",
        ]
    )
    reasons = set(re.findall(r'Reject\(\s*"(\w+)"', code)) | set(
        re.findall(r'reject\([^"\n]*(?:f"[^"]*")?[^"\n]*"(\w+)", ', code)
    )
    assert len(reasons) > 15
    assert {reason for reason in reasons if f"`{reason}`" not in PAGE} == set()
