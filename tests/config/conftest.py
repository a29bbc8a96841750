"""A small pipeline config, loaded after a change of its text."""

from __future__ import annotations

import pytest
from config.broken_case import GOOD

from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.errors import ConfigError

SMALL = GOOD.replace("  epochs: 3\n", "")


@pytest.fixture
def load(tmp_path):
    """Loads SMALL after a replacement of some of its text, or any other text."""

    def load(old: str = "", new: str = "", text: str = SMALL, **overrides) -> PipelineConfig:
        assert old in text
        file = tmp_path / "small.yaml"
        file.write_text(text.replace(old, new) if old else text)
        return load_config(
            file, {key.replace("__", "."): value for key, value in overrides.items()}
        )

    return load


@pytest.fixture
def complaint(load):
    """Returns the message of the error that `load` raises."""

    def complaint(*args, **kwargs) -> str:
        with pytest.raises(ConfigError) as raised:
            load(*args, **kwargs)
        return str(raised.value)

    return complaint
