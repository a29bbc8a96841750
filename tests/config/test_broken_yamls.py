"""Every broken config of the corpus is refused with file, line and cure,
and with no other exception (F11)."""

from __future__ import annotations

import pytest
from config.broken_case import GOOD, Broken
from config.broken_yamls import ALL

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.errors import ConfigError


def test_the_config_that_they_are_made_of_is_valid(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(GOOD)
    assert load_config(file).pipeline == "small"


@pytest.mark.parametrize("broken", ALL, ids=lambda broken: broken.name)
def test_a_broken_config_is_refused_with_file_line_and_cure(broken: Broken, tmp_path):
    """F11: nothing in a file raises anything but ConfigError, and the message can be acted upon."""
    file = broken.write(tmp_path)
    with pytest.raises(ConfigError) as refused:
        load_config(file)
    message = str(refused.value)
    assert message.startswith(f"{file}:{broken.line}: " if broken.line else f"{file}:"), message
    assert [words for words in broken.says if words not in message] == [], message
    assert len(message) < 2000
