"""The messages about wrong stages in a YAML, and the cost of the checks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from beam_jobs.stages import CATALOGUE, check_stages
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.errors import ConfigError

STAGES = """\
pipeline: tiny
preprocess:
  source: {type: image_folder, path: raw}
  stages:
%s
  split: {train: 0.8, validation: 0.1, test: 0.1}
train: {model: digits_cnn, epochs: 1}
evaluate:
  gate: [{metric: accuracy, at_least: 0.5}]
export: {model: tiny}
"""


@pytest.fixture
def complaint(tmp_path: Path):
    """The error about a config with these lines as its stages, without the folder;
    empty where there is none."""

    def complain(*lines: str) -> str:
        file = tmp_path / "tiny.yaml"
        file.write_text(STAGES % "\n".join(f"    - {line}" for line in lines))
        config = load_config(file)
        try:
            check_stages(config.preprocess, config.file)
        except ConfigError as error:
            return str(error).replace(f"{tmp_path}/", "")
        return ""

    return complain


def test_good_stages_pass(complaint):
    assert complaint("decode: {channels: 1}", "resize: {height: 28, width: 28}") == ""
    assert complaint("decode", "name: resize\n      parameters: {height: 28, width: 28}") == ""


def test_a_misspelt_parameter_is_told_with_line_key_and_the_nearest_name(complaint):
    assert complaint("decode", "resize: {height: 28, width: 28, heigth: 28}") == (
        "tiny.yaml:6: preprocess.stages.1.resize.heigth: unknown parameter; "
        "the nearest valid name is 'height'"
    )


def test_a_misspelt_stage_is_told_with_the_nearest_name(complaint):
    assert complaint("decode", "risize: {height: 28, width: 28}") == (
        "tiny.yaml:6: preprocess.stages.1.risize: unknown stage; the nearest valid name is 'resize'"
    )


def test_a_stage_like_no_other_lists_all_there_are(complaint):
    assert complaint("decode", "zzz").endswith(
        "unknown stage; valid names are " + ", ".join(sorted(CATALOGUE))
    )


def test_the_stage_augment_points_to_the_augmentation_of_the_training(complaint):
    message = complaint("decode", "augment: {brightness: 0.1}")
    assert "unknown stage; valid names are " in message
    assert message.endswith("Random changes of training images are train.input.augment")


def test_a_missing_parameter_is_named(complaint):
    assert (
        complaint("decode", "resize: {height: 28}")
        == "tiny.yaml:6: preprocess.stages.1.resize.width: required, but not given"
    )


@pytest.mark.parametrize(
    "value, rule",
    [
        ("0", "input should be greater than or equal to 1, got 0"),
        ("'28'", "input should be a valid integer, got '28'. Write it without quotes"),
        ("28.5", "input should be a valid integer, got 28.5"),
    ],
)
def test_a_wrong_value_is_told_with_its_rule(complaint, value, rule):
    assert (
        complaint("decode", f"resize: {{height: {value}, width: 28}}")
        == f"tiny.yaml:6: preprocess.stages.1.resize.height: {rule}"
    )


def test_a_wrong_choice_lists_the_choices(complaint):
    assert (
        complaint("decode: {channels: 2}")
        == "tiny.yaml:5: preprocess.stages.0.decode.channels: must be one of 1, 3, got 2"
    )


def test_everything_wrong_is_told_at_once(complaint):
    lines = complaint("decode: {channels: 2}", "resize: {height: 0}").splitlines()
    assert len(lines) == 3


def test_decode_comes_first_and_once(complaint):
    assert "the first stage must be decode, got resize" in complaint(
        "resize: {height: 8, width: 8}", "decode"
    )
    assert "must have the stage decode exactly once" in complaint("resize: {height: 8, width: 8}")
    assert "must have the stage decode exactly once" in complaint("decode", "decode")


def test_encode_comes_last(complaint):
    assert complaint("decode", "encode: {format: jpeg}") == ""
    assert complaint("decode", "encode: {format: jpeg}", "resize: {height: 8, width: 8}") == (
        "tiny.yaml:6: preprocess.stages.1: encode must be the last stage: "
        "what comes after it would change the pixels again"
    )


@pytest.mark.parametrize(
    "line, rule",
    [
        ("filter: {classes: cat}", "filter.classes: input should be a valid tuple, got 'cat'"),
        (
            "filter: {classes: [1]}",
            "filter.classes.0: input should be a valid string, got 1. Put it in quotes",
        ),
        (
            "resize: {height: 8, width: 8, pad_color: [0, 0, 256]}",
            "pad_color.2: input should be less than or equal to 255, got 256",
        ),
        (
            "resize: {height: 8, width: 8, pad_color: [0, 0]}",
            "pad_color.2: required, but not given",
        ),
        (
            "tile: {height: 8, width: 8, overlap: 8}",
            "tile: overlap must be less than the shorter side of a tile (8), got 8",
        ),
    ],
)
def test_lists_and_combinations_have_rules_too(complaint, line, rule):
    assert complaint("decode", line).splitlines()[0].endswith(rule)


def test_checking_stages_imports_no_heavy_package():
    """The DAG processor does it for every config, every half minute."""
    code = (
        "import sys; import beam_jobs.stages; "
        "print([name for name in ('apache_beam', 'numpy', 'cv2', 'PIL', "
        "'simplejpeg', 'tensorflow', 'google.protobuf') if name in sys.modules])"
    )
    root = Path(__file__).resolve().parents[3]
    assert (
        subprocess.run(
            [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_stage_lives_in_the_file_of_its_name(name):
    """The fingerprint of a data set digests `stages/<name>.py`:
    code elsewhere would change without anybody noticing."""
    stage = CATALOGUE[name]
    assert stage.function.__module__ == stage.parameters.__module__ == f"beam_jobs.stages.{name}"
