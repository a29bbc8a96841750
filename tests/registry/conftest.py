"""The kinds of registries that the tests share."""

from __future__ import annotations

import pytest

from pipeline_ops.registry.registry import Registry

KINDS = ("folder", "s3")


@pytest.fixture(params=KINDS)
def registry(request, tmp_path) -> Registry:
    """An empty registry of each kind."""
    return Registry(
        tmp_path / "models" / "digits"
        if request.param == "folder"
        else request.getfixturevalue(f"{request.param}_uri")
    )


@pytest.fixture
def folder(tmp_path) -> Registry:
    """An empty local registry."""
    return Registry(tmp_path / "models" / "digits")
