"""`preview`: one picture of what the stages do."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import yaml

from pipeline_ops.cli.main import main


@pytest.fixture
def config(config_file):
    """Twelve images of 20x30 pixels, four broken files and a text in a pipeline of three stages."""
    for label, level in (("0", 0), ("1", 255)):
        (config_file.parent / "raw" / label / "a.png").unlink()
        for index in range(6):
            image = np.full((20, 30, 3), level, np.uint8)
            (config_file.parent / "raw" / label / f"{index}.png").write_bytes(
                cv2.imencode(".png", image)[1].tobytes()
            )
        for index in range(2):
            (config_file.parent / "raw" / label / f"broken{index}.png").write_bytes(b"no image")
    values = yaml.safe_load(config_file.read_text())
    values["preprocess"]["stages"] = [
        "decode",
        {"filter": {"classes": ["1", "0"], "max_side": 30}},
        {"resize": {"height": 8, "width": 8}},
    ]
    config_file.write_text(yaml.safe_dump(values, sort_keys=False))
    return config_file


def run(config, capsys, *words: str) -> tuple[str, np.ndarray]:
    """Runs the command. Returns its output and the picture."""
    output = config.parent / "out" / "picture.png"
    assert main(["preview", str(config), "--output", str(output), *words]) == 0, (
        capsys.readouterr().err
    )
    return capsys.readouterr().out.strip().removeprefix(f"{output}: "), cv2.imread(str(output))


def test_the_whole_chain_is_shown(config, capsys):
    printed, picture = run(config, capsys)
    assert printed == "12 changed, 4 rejected by decode: not_image"
    assert picture.shape[0] > 8 * 260
    assert (picture == 0).all(axis=2).sum() > 6 * 260 * 170  # the black ones, before


def test_one_stage_is_shown_alone(config, capsys):
    assert (
        run(config, capsys, "--stage", "filter")[0]
        == "4 rejected by decode: not_image, 12 unchanged, keeps its bytes"
    )


def test_what_is_skipped_is_said(config, capsys):
    printed, _ = run(config, capsys, "--set", "preprocess.stages.1={filter: {classes: ['1']}}")
    assert printed == "6 changed, 4 rejected by decode: not_image, 6 skipped by filter: class"


def test_the_same_examples_are_shown_every_time_and_as_many_as_asked(config, capsys):
    (_, once), (printed, again) = (run(config, capsys, "--examples", "3") for _ in range(2))
    assert sum(int(part.split()[0]) for part in printed.split(", ")) == 3
    assert (once == again).all()


def test_the_tiles_of_an_image_stand_side_by_side(config, capsys):
    stages = "preprocess.stages=[decode, {tile: {height: 20, width: 10}, served: by_client}]"
    _, picture = run(config, capsys, "--set", stages)
    assert 4 * 260 < picture.shape[1] < 5 * 260


@pytest.mark.parametrize(
    ("option", "value", "status", "message"),
    [
        (
            "--stage",
            "risize",
            78,
            "--stage risize: the config has no such stage; the nearest valid name is 'resize'",
        ),
        (
            "--set",
            "preprocess.stages.1={filter: {classes: [nine]}}",
            78,
            "there is no class 'nine' before this stage",
        ),
        ("--set", "preprocess.source.path=nowhere", 65, "preprocess.source.path"),
    ],
)
def test_what_cannot_be_drawn_is_told(config, command, option, value, status, message):
    assert message in command("preview", config, option, value, status=status)


@pytest.mark.parametrize("number", ["0", "201", "many"])
def test_a_number_of_examples_that_makes_no_picture_is_refused(config, command, number):
    assert "Invalid value for '--examples'" in command(
        "preview", config, "--examples", number, status=2
    )


def test_the_figures_by_which_a_stage_has_decided_are_printed(config, capsys, monkeypatch):
    """A person chooses a threshold by them."""
    (config.parent / "dark.py").write_text(
        "from beam_jobs.stages.stage import Example, Reject, parameters\n\n\n"
        "@parameters\nclass Dark:\n    pass\n\n\n"
        "def dark(example: Example, parameters: Dark):\n"
        "    level = example.image.mean() + int(example.key.split('/')[-1][0])\n"
        "    raise Reject('too_dark', f'mean {level:.1f}, at least 300')\n"
    )
    values = yaml.safe_load(config.read_text())
    monkeypatch.syspath_prepend(str(config.parent))
    values["preprocess"]["stages"] = ["decode", {"dark:dark": {}}]
    config.write_text(yaml.safe_dump(values, sort_keys=False))
    printed, picture = run(config, capsys)
    lines = printed.splitlines()
    assert lines[0].startswith("12 rejected by dark")
    assert lines[1].endswith(": 0 to 260, half of them between 2.75 and 257.2")
    assert 1000 < picture.shape[1] <= 1400


def test_many_examples_are_smaller_in_as_many_columns_as_fit(config, capsys):
    for label in ("0", "1"):
        for index in range(6, 20):
            image = np.full((20, 30, 3), 100, np.uint8)
            cv2.imwrite(str(config.parent / "raw" / label / f"{index}.png"), image)
    _, picture = run(config, capsys, "--examples", "44")
    assert picture.shape[0] < 15 * 230 and 1000 < picture.shape[1] <= 1400
