"""The small real data set."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cv2
import pytest

from pipeline_ops.errors import DataError
from pipeline_ops.examples.digits import write_digits


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("raw") / "digits"
    assert write_digits(folder)
    return folder


def test_there_are_1797_grey_images_of_28_by_28_in_ten_classes(digits: Path):
    files = sorted(digits.glob("*/*"))
    assert len(files) == 1797
    assert sorted(folder.name for folder in digits.iterdir()) == list("0123456789")
    assert {cv2.imread(str(file), cv2.IMREAD_UNCHANGED).shape for file in files} == {(28, 28)}


def test_an_image_shows_its_digit(digits: Path):
    """The first image is a zero: bright on a ring, dark in the middle and in the corners."""
    image = cv2.imread(str(digits / "0" / "00000.png"), cv2.IMREAD_GRAYSCALE)
    assert image[14, 14] < 40
    assert image[0, 0] < 40
    assert image.max() > 200


def test_what_is_there_is_left_alone(digits: Path):
    before = (digits / "0" / "00000.png").stat()
    assert not write_digits(digits)
    assert (digits / "0" / "00000.png").stat() == before


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    with pytest.raises(
        DataError,
        match=(
            "holds other files than the digits: 1797 files are missing, 1 are unexpected. "
            "Remove the folder, or name another one."
        ),
    ):
        write_digits(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_the_command_says_what_it_did(digits: Path):
    run = subprocess.run(
        [sys.executable, "-m", "pipeline_ops.examples.digits", str(digits)],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0
    assert "images of handwritten digits exist, nothing to do" in run.stdout
